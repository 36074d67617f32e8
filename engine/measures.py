"""Attribution methods by name, the patch grid, and what is measured around an attribution, as data. Torch-free.

`engine.contract` gives all of it on: the rest of Sfumato reads it there.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

OnProgress = Callable[[int, int], None]
"""(done, all): how far a measurement is."""

METHODS: dict[str, str] = {
    "gradient": "activation × ⟨write vector, gradient of the target⟩, summed over all positions",
    "direct": "what the neuron writes straight into the logits at the positions that predict the answer",
    "pan": "the single-token baseline: activation × ⟨write vector, unembedding of the first token⟩, without the norm",
    "logprob_increase": "how much the neuron's write raises the answer's log-probability in its own layer's stream",
    "integrated": "the gradient score averaged along the path on which all MLP activations grow from zero",
    "ablation": "what the target loses when the neuron is set to zero: measured, for the candidates only",
}
"""Attribution methods by name, each with its one-line definition (METHODS.md §1)."""

UNITS: dict[str, str] = {"direct": "logit", "pan": "logit before the norm"}
"""What `Attribution.value` is for methods that have a quantity of their own; the others take the target's."""

MAPPED = ("gradient", "integrated")
"""Methods that score image positions one by one, and so have heat maps."""

QUANTITIES = ("logprob", "logit")
"""What of a token a target sums: its natural-log probability, or its logit."""

APART = ("special", "high-norm")
"""Positions that can be left out of an attribution's sums: special tokens; and high-norm positions (attention sinks and
register-like image patches), whose residual stream, entering the middle layer, is over HIGH_NORM times the median's."""

HIGH_NORM = 3.0


def unit(method: str, quantity: str = "logprob") -> str:
    """The unit of a target's value, as a word for a person."""
    return UNITS.get(method, "log-probability" if quantity == "logprob" else "logit")


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The patch grid: `rows` × `cols` patches that cover `box` = (left, top, right, bottom) in pixels of the
    *original* picture (after EXIF transposition). With a crop the box is smaller than the picture, with padding
    larger; row 0 is the top."""

    rows: int
    cols: int
    box: tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class InputHeat:
    """Gradient × input of the embeddings x_p that the decoder is given: ⟨x_p, ∂S/∂x_p⟩, S = the target, of `value`.

    `heat` (rows, cols) = that of image positions on the patches of `grid`, both None without a picture. `by_modality`:
    sums over all positions of prompt and answer, in the order of MODALITIES; positions that the target leaves out count
    as zero. `note`: what x_p is in this model, and which ways of the picture into it are no part of the map."""

    heat: Floats | None
    by_modality: tuple[float, float, float, float]
    value: float
    grid: Grid | None
    note: str


@dataclasses.dataclass(frozen=True, slots=True)
class Apart:
    """A kind of position (see APART), where it is, which part of Σ|score| lies there (before anything is left out), and
    whether it was left out of the sums."""

    kind: str
    positions: tuple[int, ...]
    share: float
    left_out: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A way to write a text as answer tokens: `text` as it goes into `Target.text` (leading space kept), its exact ids
    with each one's own text, and its summed log-probability after the prompt (and the answer's tokens before it)."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    logprob: float


@dataclasses.dataclass(frozen=True, slots=True)
class Faithfulness:
    """Does a ranking name the neurons that matter? Measured by ablation, to zero at every position.

    `sizes`: how many of the neurons of highest score were ablated together; `ranked[k]` = the target S then;
    `random[j][k]` the same for the j-th random ranking; `whole` = S with nothing ablated. `area`: mean over
    ln(size) of the random curves' mean less the ranked curve, in units of S (above 0: better than chance); `auc` the
    ranked curve's own mean loss S − S_k. `spearman`: of scores against exact single-neuron effects over `sample`
    neurons ("text.LAYER.INDEX"), whose `scores` and `effects` are given. `total` = Σ of all scores and `emptied` =
    S − S(no neuron at all): their difference is the method's completeness error. `unit`: of S."""

    method: str
    unit: str
    whole: float
    sizes: tuple[int, ...]
    ranked: tuple[float, ...]
    random: tuple[tuple[float, ...], ...]
    area: float
    auc: float
    spearman: float
    sample: tuple[str, ...]
    scores: tuple[float, ...]
    effects: tuple[float, ...]
    total: float
    emptied: float

    @property
    def completeness_error(self) -> float:
        """|Σ scores − (S − S(no neuron))| / |S − S(no neuron)|; infinite where nothing is lost."""
        gap = abs(self.total - self.emptied)
        return gap / abs(self.emptied) if self.emptied else float("inf") if gap else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseBand:
    """How far the first `top` neurons depend on arithmetic alone: those that change place between two computations of
    the same thing, and the largest difference of a score relative to the largest score."""

    against: str
    top: int
    moved: tuple[str, ...]
    difference: float


def ranks(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Ranks from 1; tied values share the mean of theirs."""
    array = np.asarray(values, np.float64)
    order = np.argsort(array, kind="stable")
    _, inverse, counts = np.unique(array[order], return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    result = np.empty(len(array))
    result[order] = (ends - (counts - 1) / 2)[inverse]
    return result


def spearman(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman's rank correlation, ties by mean ranks; 0 where one side is constant or there are none."""
    a, b = ranks(one), ranks(other)
    if not len(a):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def mean_over_log(sizes: npt.ArrayLike, values: npt.ArrayLike) -> float:
    """The trapezoid mean of `values` over ln(size): each doubling of a set's size weighs the same."""
    x, y = np.log(np.asarray(sizes, np.float64)), np.asarray(values, np.float64)
    if len(x) == 1:
        return float(y[0])
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


def moved(before: list[str], after: list[str]) -> tuple[str, ...]:
    """Those of `before` that do not stand at the same place of `after`."""
    return tuple(name for k, name in enumerate(before) if k >= len(after) or after[k] != name)
