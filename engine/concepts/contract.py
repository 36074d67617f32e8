"""The concepts' half of the contract, given on by `engine.contract` as `concepts`: what an engine can do with them, and
the torch-free modules about them (`algebra`, `evidence`, `fuzzy`, `imports`, `probes`, `results`)."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.concepts import algebra, evidence, fuzzy, imports, probes, results
from engine.concepts.fuzzy import Memberships
from engine.concepts.probes import OnBatch, Probe, ProbeEvidence
from engine.concepts.results import Candidate, Collaboration, ConceptValidation
from engine.measures import OnProgress

if TYPE_CHECKING:
    from engine.contract import Concept

__all__ = ["ConceptEngine", "algebra", "evidence", "fuzzy", "imports", "probes", "results"]


def _never() -> bool:
    return False


class ConceptEngine(Protocol):
    """Calls that a job drives: each tells its progress, stops with Cancelled between batches, and leaves nothing on the
    model."""

    def probe_evidence(
        self,
        probes: Sequence[Probe],
        done: Collection[int] = (),
        on_batch: OnBatch | None = None,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> ProbeEvidence:
        """Evidence shares of the probes but those whose indices are `done`. What `on_batch` was handed stays good: call
        again with the same probes, and the result is bit for bit that of a call that was never stopped. A probe that
        the model cannot take is among the refused, with the reason."""
        ...

    def adopt(self, own: "Sequence[Concept]") -> None:
        """A person's own concepts join the library, and those adopted before leave it: from now on answers are
        compared with them, and steerings may name them. The library's revision changes with them. Raises RequestError
        for memberships of another shape, or a name that is there already."""
        ...

    def world_concepts(self) -> tuple[tuple[str, str], ...]:
        """(name, kind) of all that the model's own world can draw probes of; empty where the model is not the built-in
        one."""
        ...

    def world_probes(self, name: str, n: int, split: str = "build") -> tuple[Probe, ...]:
        """`n` probes of one of `world_concepts`; the same arguments give the same ones, and splits share no scene.
        Raises UnknownName."""
        ...

    def baseline_evidence(self, probes: Sequence[Probe], cancelled: Callable[[], bool] = _never) -> Memberships:
        """(n_layers, d_mlp): mean evidence share by the single-token baseline, for `Candidate.baseline`."""
        ...

    def collaboration(
        self,
        memberships: Memberships,
        probes: Sequence[Probe],
        alpha: float = 0.5,
        top: int = 12,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Collaboration:
        """Synergy of the α-cut and pairwise interactions of its first `top` neurons, over held-out probes.
        `results.collaboration_runs` estimates. Raises RequestError for an α-cut of fewer than two neurons."""
        ...

    def validate_concept(
        self,
        candidate: Candidate,
        alpha: float = 0.5,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> ConceptValidation:
        """Does the concept work, on held-out probes? `on_progress` counts probes."""
        ...
