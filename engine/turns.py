"""Turning neurons up and down, as data (METHODS.md §3). Torch-free; `engine.contract` gives all of it on."""

import dataclasses

from engine.errors import RequestError, UnknownName

POSITIONS = ("all", "image", "question", "answer")
"""Where a steering acts. `question` includes the template positions of the prompt; `answer` is every position from
the prompt's last one on (the one that predicts the first answer token) — so that `answer` reaches each prediction."""

LAMBDA_RANGE = (-2.0, 4.0)
NEURON_VALUE_LIMIT = 1e4
"""A single neuron is scaled, shifted or set by at most this; far beyond, a norm overflows and every logit turns 0."""

LATENT_VALUE_LIMIT = 1e4
"""A latent is scaled, shifted or set by at most this, for the same reason."""

OPERATIONS = ("scale", "add", "set")
"""What can be done to a neuron's or a latent's activation."""

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
class LatentTurn:
    """Edit one latent's activation H_c of an attached SAE (its name or id) at every position where it stands and the
    steering acts: `scale` multiplies by value, `add` adds it, `set` replaces by it. The stream gets (H'_c − H_c) times
    the latent's decoder row; all else that the layer says stays, what the SAE does not explain included. See
    `engine.sae.steering`."""

    sae: str
    index: int
    operation: str
    value: float

    @property
    def latent(self) -> str:
        return f"sae.{self.sae}.{self.index}"


@dataclasses.dataclass(frozen=True, slots=True)
class Steering:
    """An intervention as data. Concepts' λ add up per neuron before multiplying; single neurons are edited after, and
    latents read what came of both. `layers` (first, last), both included: concepts act in these alone; None = in all.
    Single neurons and latents act wherever they are.
    `control`, if set, is a seed: the same edits are dealt to random other neurons of the same layers, and to random
    other latents of the same SAE, first of all to those that are active in the prompt (the control)."""

    concepts: tuple[ConceptTurn, ...] = ()
    neurons: tuple[NeuronTurn, ...] = ()
    positions: str = "all"
    control: int | None = None
    layers: tuple[int, int] | None = None
    latents: tuple[LatentTurn, ...] = ()

    @property
    def empty(self) -> bool:
        return all(turn.lam == 0 for turn in self.concepts) and not self.neurons and not self.latents


PLAIN = Steering()
"""No intervention."""


def in_layers(layers: tuple[int, int] | None, n_layers: int) -> None:
    """Refuse layers (first, last) that a model of `n_layers` does not have. Raises RequestError."""
    if layers is not None and not 0 <= layers[0] <= layers[1] < n_layers:
        raise RequestError(
            f"A steering acts in layers from 0 to {n_layers - 1}, the first not above the last; "
            f"it asks for {layers[0]} to {layers[1]}."
        )


def check_latent(turn: LatentTurn, n_latents: int) -> None:
    """Raises UnknownName or RequestError for a turn of an SAE of `n_latents` latents that cannot be carried out."""
    if not 0 <= turn.index < n_latents:
        raise UnknownName(f"There is no latent {turn.latent}: its latents go from 0 to {n_latents - 1}.")
    if turn.operation not in OPERATIONS:
        raise UnknownName(f"A latent can be turned by {', '.join(OPERATIONS)}, not by {turn.operation}.")
    if not abs(turn.value) <= LATENT_VALUE_LIMIT:
        raise RequestError(
            f"The value for {turn.latent} is {turn.value:g}; it must be a finite number of magnitude at most "
            f"{LATENT_VALUE_LIMIT:g}."
        )
