"""`engine.concepts.contract.ConceptEngine` over one loaded model: what `LocalEngine` can do with concepts."""

from collections.abc import Collection, Sequence

from engine.builtin import probes as world
from engine.concepts import building, validation
from engine.concepts.collaboration import TOP, collaboration
from engine.concepts.fuzzy import Memberships
from engine.concepts.probes import OnBatch, Probe, ProbeEvidence
from engine.concepts.results import Candidate, Collaboration, ConceptValidation
from engine.contract import IsCancelled, OnProgress, UnknownName, never
from engine.loading import Loaded


class ConceptCalls:
    """Mixed into an engine that owns a model."""

    @property
    def loaded(self) -> Loaded:
        """The model."""
        raise AssertionError("an engine says which model it owns")

    def _enter(self, method: str) -> None:
        """Refuse a method that does not exist, and another thread."""
        raise AssertionError("an engine says who may call it")

    def probe_evidence(
        self,
        probes: Sequence[Probe],
        done: Collection[int] = (),
        on_batch: OnBatch | None = None,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> ProbeEvidence:
        self._enter("gradient")
        return building.probe_evidence(self.loaded, probes, done, on_batch, on_progress, cancelled)

    def world_concepts(self) -> tuple[tuple[str, str], ...]:
        drawn = world.concept_names() if self.loaded.builtin else ()
        return tuple((concept.name, concept.kind) for concept in drawn)

    def world_probes(self, name: str, n: int, split: str = "build") -> tuple[Probe, ...]:
        if name not in dict(self.world_concepts()):
            raise UnknownName(f"The built-in world draws no concept “{name}” for this model.")
        if split not in world.SPLITS:
            raise UnknownName(f"There is no split “{split}” of probes. Choose one of {', '.join(world.SPLITS)}.")
        chosen: world.Split = next(known for known in world.SPLITS if known == split)
        return tuple(
            Probe(drawn.picture, drawn.question, drawn.answer, drawn.span_text, drawn.box, drawn.against)
            for drawn in world.probes(name, n, 0, chosen)
        )

    def baseline_evidence(self, probes: Sequence[Probe], cancelled: IsCancelled = never) -> Memberships:
        self._enter("pan")
        return validation.baseline_evidence(self.loaded, probes, cancelled)

    def collaboration(
        self,
        memberships: Memberships,
        probes: Sequence[Probe],
        alpha: float = 0.5,
        top: int = TOP,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Collaboration:
        self._enter("ablation")
        return collaboration(self.loaded, memberships, probes, alpha, top, on_progress=on_progress, cancelled=cancelled)

    def validate_concept(
        self,
        candidate: Candidate,
        alpha: float = validation.ALPHA,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> ConceptValidation:
        self._enter("gradient")
        return validation.validate(self.loaded, candidate, alpha, on_progress, cancelled)
