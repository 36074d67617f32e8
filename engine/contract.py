"""What the rest of Sfumato may know of an engine: errors, data and the `Engine` protocol. Torch-free.

The errors are those of `engine.errors`, the methods and measures those of `engine.measures`, steerings those of
`engine.turns`, fuzzy sets those of `engine.concepts.fuzzy`: all are given on here.

Axis names in shapes: rows, cols = the patch grid; n_layers, d_mlp = the decoder's MLPs; pos = absolute positions.
A neuron is written ``text.LAYER.INDEX`` (both from 0). All scores are float32 numpy arrays or Python floats.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine import evaluation, sweeps
from engine import neurons_contract as neurons
from engine.concepts import contract as concepts
from engine.concepts.fuzzy import evidence_share, similarities
from engine.errors import (
    BadTarget,
    Cancelled,
    EngineError,
    ModelRefused,
    NonFinite,
    PictureTooSmall,
    PromptTooLong,
    RequestError,
    UnknownName,
)
from engine.measures import (
    APART,
    MAPPED,
    METHODS,
    QUANTITIES,
    UNITS,
    Apart,
    Faithfulness,
    Floats,
    Grid,
    InputHeat,
    NoiseBand,
    OnProgress,
    Variant,
    spearman,
    unit,
)
from engine.sae import contract as saes
from engine.turns import (
    LAMBDA_RANGE,
    MAX_SET,
    NEURON_VALUE_LIMIT,
    PLAIN,
    POSITIONS,
    ConceptTurn,
    LatentTurn,
    NeuronTurn,
    Steering,
    in_layers,
)

__all__ = [
    "APART", "LAMBDA_RANGE", "MAPPED", "MAX_SET", "METHODS", "MODALITIES", "NEURON_VALUE_LIMIT", "PLAIN", "POSITIONS",
    "QUANTITIES", "UNITS", "Alternative", "Answer", "AnswerToken", "Apart", "Asked", "Attribution", "BadTarget",
    "Cancelled", "Check", "Concept", "ConceptScore", "ConceptTurn", "Engine", "EngineError", "Faithfulness", "Floats",
    "Grid", "InputHeat", "IsCancelled", "LatentTurn", "Library", "ModelInfo", "ModelRefused", "NeuronScore",
    "NeuronTurn", "NoiseBand", "NonFinite", "OnProgress", "OnToken", "PictureTooSmall", "Pixels", "PromptToken",
    "PromptTooLong", "Question", "RequestError", "Steered", "Steering", "Target", "UnknownName", "Variant", "concepts",
    "evaluation", "evidence_share", "in_layers", "neurons", "never", "saes", "similarities", "spearman", "sweeps",
    "unit",
]  # fmt: skip

Pixels = npt.NDArray[np.uint8]

MODALITIES = ("image", "question", "template", "answer")
"""Every position belongs to exactly one of these; `template` holds BOS, role marks and other special tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One line of the self-check: what was compared, whether it holds, and the measured difference in words."""

    name: str
    holds: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model. `revision` is a hash of its weights' files: two models with one revision are the same. `device`
    names every place that holds a part of it, `dtype` also the bits of packed weights. `no_gradient`: why `gradient`
    and `integrated` cannot be computed on it as it is loaded; '' = they can."""

    name: str
    revision: str
    family: str
    device: str
    dtype: str
    n_layers: int
    d_model: int
    d_mlp: int
    n_parameters: int
    processor: str
    builtin: bool
    checks: tuple[Check, ...]
    no_gradient: str = ""

    @property
    def n_neurons(self) -> int:
        return self.n_layers * self.d_mlp

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A picture (height, width, 3; uint8 RGB, upright) — or None for a text-only question — and a text."""

    picture: Pixels | None
    text: str
    max_new_tokens: int = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    text: str
    id: int
    logprob: float


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerToken:
    """One token of an answer: exact id, its text as it reads in the answer (leading space kept; a character that spans
    several tokens is shown on the one that completes it, the others are empty), natural-log probability under
    the model that gave it, and the most probable tokens at that place (most probable first, itself included)."""

    text: str
    id: int
    logprob: float
    alternatives: tuple[Alternative, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of the prompt, `text` as in AnswerToken; `count` image placeholders in a row are folded into one."""

    text: str
    id: int
    modality: str
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` exclude the end-of-sequence token. `stopped` is 'end' or 'length'. `text` is stripped."""

    text: str
    tokens: tuple[AnswerToken, ...]
    stopped: str
    prompt: tuple[PromptToken, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The scalar to explain: the sum, over some tokens, of `quantity` (one of QUANTITIES). The tokens are start:end of
    the answer (end exclusive; None = to the last); with `text` they are that text's instead, which need not be what the
    model said: it is put (teacher-forced, exactly as written, leading space and all) after the answer's first `start`
    tokens. `against`: a contrast; the same sum for that text, put at the same place, is subtracted. `leave_out`: kinds
    of APART whose positions are left out of all sums of scores. `direct`, `pan` and `logprob_increase` explain the
    quantity of their definition."""

    start: int = 0
    end: int | None = None
    text: str | None = None
    against: str | None = None
    quantity: str = "logprob"
    leave_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronScore:
    """A ranked neuron. `score` = summed over all positions; `by_modality` in the order of MODALITIES, sums to
    `score`. `heat` (rows, cols) = its score on image positions (None where Attribution.heat is None). `peak` = its
    activation of largest magnitude over the scored positions. `activation` (rows, cols) = its activation on image
    positions, whatever is left out of the sums; a cell's is the mean of those that share it. None without a picture,
    and for methods that read only the positions which predict the answer."""

    layer: int
    index: int
    score: float
    by_modality: tuple[float, float, float, float]
    heat: Floats | None
    peak: float
    activation: Floats | None = None

    @property
    def neuron(self) -> str:
        return f"text.{self.layer}.{self.index}"

    @property
    def image_share(self) -> float:
        """Part of the score that came from image positions, by magnitude: |image| / Σ |modality|; 0 if all zero."""
        whole = sum(abs(part) for part in self.by_modality)
        return abs(self.by_modality[0]) / whole if whole else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptScore:
    """`score` = Σ_n μ(n) s(n) over all neurons and positions; `heat` (rows, cols) = Σ_n μ(n) s_n(p) on the patches
    (METHODS.md §2.6). `similarity` ∈ [0, 1] = Σmin / Σmax of the concept and the evidence shares' own fuzzy set."""

    concept: str
    score: float
    heat: Floats | None
    similarity: float


@dataclasses.dataclass(frozen=True, slots=True)
class Attribution:
    """Which neurons carried a target (`target.end` is resolved, never None), of `value` nats (logit for `direct`).
    `layer_sums` (n_layers, len(MODALITIES)). `positions` (n_layers, pos) = per-layer sums at each absolute position
    of prompt + answer. `heat` (rows, cols) = all neurons together on the patches; None without a picture, and for
    methods that score only the positions that predict the answer (all but MAPPED): they have no heat map at all.
    `layer_heats` (n_layers, rows, cols) = a whole layer's neurons together on the patches; they add up to `heat`.
    `neurons`: the `top` of largest |score|, ordered by score's magnitude, ties by (layer, index).
    `concepts`: all of the library, by falling similarity, ties by name. `scores` (n_layers, d_mlp): every neuron's.
    `evidence_heat` (rows, cols) = Σ_n μ(n) s_n(p) on the patches, μ = the target's own fuzzy set: where the neurons
    that carried it found it. `modality_shares`: Σ_n |its part| per modality, as shares that add up to 1.
    `checks`: identities verified on this very result, in words. `explained`: the ids whose quantity was summed, and
    `explained_against` those of a contrast's other side, whose sequence may be longer: `positions` are as many as the
    longer one's, absolute on both. `apart`: special and high-norm positions, and whether they were left out."""

    method: str
    target: Target
    value: float
    grid: Grid | None
    heat: Floats | None
    neurons: tuple[NeuronScore, ...]
    concepts: tuple[ConceptScore, ...]
    scores: Floats
    layer_sums: Floats
    positions: Floats
    modality_of_position: tuple[str, ...]
    evidence_heat: Floats | None
    modality_shares: tuple[float, float, float, float]
    checks: tuple[Check, ...] = ()
    explained: tuple[int, ...] = ()
    explained_against: tuple[int, ...] = ()
    apart: tuple[Apart, ...] = ()
    layer_heats: Floats | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Steered:
    """A steered answer, and both answers under both models: `original_under_steered[i]` is the log-probability of
    the original answer's token i under the steered model, `steered_under_original` the reverse (teacher-forced)."""

    answer: Answer
    original_under_steered: tuple[float, ...]
    steered_under_original: tuple[float, ...]
    n_neurons: int


@dataclasses.dataclass(frozen=True, slots=True)
class Concept:
    """A fuzzy set of neurons. `memberships` (n_layers, d_mlp) in [0, 1]; `probes` = how many; `figures` = measured."""

    name: str
    kind: str
    probes: int
    memberships: Floats
    figures: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """The concepts that belong to one model revision; `revision` is a hash over names and memberships."""

    revision: str
    concepts: tuple[Concept, ...]
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """Result of `Engine.ask`. `timing_ms` by stage: picture, generate, attribute, total."""

    answer: Answer
    attribution: Attribution
    timing_ms: dict[str, float]


OnToken = Callable[[AnswerToken], None]
IsCancelled = Callable[[], bool]


def never() -> bool:
    """The default for `cancelled`."""
    return False


class Engine(concepts.ConceptEngine, neurons.NeuronEngine, saes.SaeEngine, sweeps.SteeringEngine, Protocol):
    """One model, owned by one thread. All calls block and must come from one thread at a time; no call leaves
    anything behind on the model, whatever happens in it. Arguments and results are ids and arrays."""

    def info(self) -> ModelInfo:
        """The loaded model and its self-check."""
        ...

    def library(self) -> Library:
        """The concepts known for this model (empty for a model without a library)."""
        ...

    def grid(self, question: Question) -> Grid | None:
        """The patch grid for this picture, without running the model. Raises PictureTooSmall."""
        ...

    def ask(
        self,
        question: Question,
        method: str = "gradient",
        steering: Steering = PLAIN,
        top: int = 50,
        on_token: OnToken | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        cancelled: IsCancelled = never,
    ) -> Asked:
        """Generate (greedily, under `steering`) and attribute the whole answer (under the same `steering`).
        `on_token` is called for each token as it comes, `on_answer` before attribution begins. Raises RequestError
        before any work, BadTarget after `on_answer` when the answer is empty (there is nothing to attribute), Cancelled
        within one token of `cancelled()` turning true."""
        ...

    def attribute(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        method: str = "gradient",
        steering: Steering = PLAIN,
        top: int = 50,
        cancelled: IsCancelled = never,
        on_progress: OnProgress | None = None,
    ) -> Attribution:
        """Attribute a target over a given answer (teacher-forced). Slow methods call `on_progress(done, all)` between
        their batches: nothing of theirs is then on the model, and the engine may be called from within it."""
        ...

    def steer(
        self,
        question: Question,
        original_ids: Sequence[int],
        steering: Steering,
        on_token: OnToken | None = None,
        cancelled: IsCancelled = never,
    ) -> Steered:
        """Generate under `steering` and score both answers under both models. `original_ids`: the baseline's."""
        ...

    def input_heat(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        steering: Steering = PLAIN,
        cancelled: IsCancelled = never,
    ) -> InputHeat:
        """Gradient × input of the prompt's and answer's embeddings for a target over a given answer."""
        ...

    def variants(self, question: Question, text: str, before: Sequence[int] = ()) -> tuple[Variant, ...]:
        """Ways to write `text` after the prompt and the answer tokens `before`: with and without a leading space, as
        written, in small letters, capitalised; each once, most probable first. Raises BadTarget for an empty text."""
        ...

    def faithfulness(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        method: str = "gradient",
        steering: Steering = PLAIN,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Faithfulness:
        """Does the ranking name the neurons that matter? Ablated; `on_progress` as in `attribute` counts its runs."""
        ...

    def noise(
        self, question: Question, answer_ids: Sequence[int], target: Target, cancelled: IsCancelled = never
    ) -> tuple[NoiseBand, ...]:
        """Which of `gradient`'s first 20 neurons change place in bfloat16, and in a batch of two; cancelled between."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
