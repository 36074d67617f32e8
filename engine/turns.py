"""Turning neurons up and down, as data (METHODS.md §3). Torch-free; `engine.contract` gives all of it on."""

import dataclasses

from engine.errors import RequestError

POSITIONS = ("all", "image", "question", "answer")
"""Where a steering acts. `question` includes the template positions of the prompt; `answer` is every position from
the prompt's last one on (the one that predicts the first answer token) — so that `answer` reaches each prediction."""

LAMBDA_RANGE = (-2.0, 4.0)
NEURON_VALUE_LIMIT = 1e4
"""A single neuron is scaled, shifted or set by at most this; far beyond, a norm overflows and every logit turns 0."""

MAX_SET = 300
"""A concept steers through at most this many neurons: its members of highest membership (ties by layer, index)."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptTurn:
    """Multiply each member n of a concept by (1 + λ μ(n)) (METHODS.md §3). λ in LAMBDA_RANGE; 0 leaves alone."""

    concept: str
    lam: float


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronTurn:
    """Edit one neuron's activation: `scale` multiplies by value, `add` adds it, `set` replaces by it."""

    layer: int
    index: int
    operation: str
    value: float

    @property
    def neuron(self) -> str:
        return f"text.{self.layer}.{self.index}"


@dataclasses.dataclass(frozen=True, slots=True)
class Steering:
    """An intervention as data. Concepts' λ add up per neuron before multiplying; single neurons are edited after.
    `layers` (first, last), both included: concepts act in these alone; None = in all. Single neurons act wherever they
    are.
    `control`, if set, is a seed: the same edits are dealt to random other neurons of the same layers (the control)."""

    concepts: tuple[ConceptTurn, ...] = ()
    neurons: tuple[NeuronTurn, ...] = ()
    positions: str = "all"
    control: int | None = None
    layers: tuple[int, int] | None = None

    @property
    def empty(self) -> bool:
        return all(turn.lam == 0 for turn in self.concepts) and not self.neurons


PLAIN = Steering()
"""No intervention."""


def in_layers(layers: tuple[int, int] | None, n_layers: int) -> None:
    """Refuse layers (first, last) that a model of `n_layers` does not have. Raises RequestError."""
    if layers is not None and not 0 <= layers[0] <= layers[1] < n_layers:
        raise RequestError(
            f"A steering acts in layers from 0 to {n_layers - 1}, the first not above the last; "
            f"it asks for {layers[0]} to {layers[1]}."
        )
