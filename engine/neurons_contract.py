"""The neurons' half of the contract: what an engine can tell of single neurons, whatever was asked. Torch-free.

*Lens*: which tokens a neuron's write vector promotes and suppresses. *Survey*: what every neuron does over many
questions; statistics of image positions and of text positions are kept apart, and histograms have fixed bins, so that
two surveys' counts add up. *Fires*: which neurons are active inside a box of one picture.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.measures import Floats, Grid, OnProgress

if TYPE_CHECKING:
    from engine.contract import Question

Box = tuple[float, float, float, float]
SORTS = ("image", "text")
"""Sorts of positions in a survey; `text` = question and template, without the tokens that the tokenizer reserves."""
TOP = 9
POWERS = tuple(range(-8, 8))
EDGES: npt.NDArray[np.float64] = np.array([-(2.0**k) for k in reversed(POWERS)] + [2.0**k for k in POWERS])
"""Bins of a histogram of activations: bin i holds what is above EDGES[i − 1] and at most EDGES[i]. Powers of two on
both sides of zero, whose neighbourhood is one bin."""
BINS = len(EDGES) + 1
RECORD = np.dtype(
    [
        ("mean", "<f4", (2,)),
        ("deviation", "<f4", (2,)),
        ("positive", "<f4", (2,)),
        ("bins", "<u4", (2, BINS)),
        ("case", "<i4", (2, TOP)),
        ("position", "<i4", (2, TOP)),
        ("value", "<f4", (2, TOP)),
    ]
)
"""What a survey holds of one neuron; the first axis is SORTS. `positive` = share of positions above 0; `case`,
`position` and `value` = its TOP questions by largest |activation|, each with the position where that is, case −1 where
there are no more."""


def _never() -> bool:
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class LensToken:
    """A token and how far the neuron moves its logit: see `Lens`."""

    text: str
    id: int
    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Lens:
    """`promoted` and `suppressed`, strongest first: ⟨v ⊙ γ, W_U[t]⟩ less its mean over all tokens t (which no
    probability depends on), γ = the final norm's weight and before it that of the layer's post-norm, where there is
    one. Norms' scales are left out, so values compare within a neuron only; a negative activation swaps both lists.
    `alike` = (neuron, cosine of write vectors), nearest first. `notes`: what the model's shape means for it."""

    promoted: tuple[LensToken, ...]
    suppressed: tuple[LensToken, ...]
    alike: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Promotions:
    """Of every neuron the tokens it promotes: `ids` and `values` (n_layers, d_mlp, top); `texts` of these ids."""

    ids: npt.NDArray[np.int64]
    values: Floats
    texts: dict[int, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """`neurons` (n_layers · d_mlp) of RECORD. `tokens`: the prompt of each question as (text, count) with image
    positions folded; () where it was refused. `positions`: how many of each sort were seen. `refused` = (index,
    reason)."""

    neurons: npt.NDArray[Any]
    tokens: tuple[tuple[tuple[str, int], ...], ...]
    positions: tuple[int, int]
    refused: tuple[tuple[int, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Fired:
    """A neuron inside a box: mean |activation| there and on the rest of the picture, and its activations (rows,
    cols)."""

    neuron: str
    inside: float
    outside: float
    activation: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Fires:
    """`cells` = how many cells of `grid` have their centre in the box; `neurons`, strongest inside first."""

    grid: Grid
    cells: int
    neurons: tuple[Fired, ...]


class NeuronEngine(Protocol):
    """Forward passes only, without any steering."""

    def lens(self, layer: int, index: int, top: int = 12, alike: int = 10) -> Lens:
        """What the neuron's write vector says. Raises UnknownName for a neuron that is not there."""
        ...

    def promotions(
        self, top: int = 5, on_progress: OnProgress | None = None, cancelled: Callable[[], bool] = _never
    ) -> Promotions:
        """The lens of all neurons. `on_progress` counts layers; raises Cancelled between two."""
        ...

    def scenes(self, n: int) -> "tuple[Question, ...]":
        """The first `n` of a fixed list of questions about scenes of the little world, for a survey; none for a model
        that does not know it."""
        ...

    def survey(
        self,
        questions: "Sequence[Question]",
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Survey:
        """What every neuron does over these prompts. `questions` is read once, in order, a window at a time. Memory
        does not grow with their number, nor does it hold maps (see `activation_maps`). Raises Cancelled between
        batches, and RequestError where not one question can be asked."""
        ...

    def activation_maps(self, layer: int, index: int, questions: "Sequence[Question]") -> tuple[Floats | None, ...]:
        """The neuron's activations on the patches of each question's picture (rows, cols); None without a picture, or
        where it cannot be asked."""
        ...

    def fires(self, question: "Question", box: Box, top: int = 12) -> Fires:
        """The neurons of largest mean |activation| over the patches whose centre lies in `box` (left, top, right,
        bottom in pixels of the picture). Raises RequestError where no patch does."""
        ...
