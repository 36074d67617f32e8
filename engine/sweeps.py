"""Steering's half of the contract, beside `Engine.steer`: sweeps of one value, and many answers in batches. Torch-free.

A sweep generates one answer for each of some values of one turn, all in one batch over one prompt; `answers` runs
many questions, each under a steering of its own.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.measures import OnProgress
from engine.turns import ConceptTurn, LatentTurn, NeuronTurn, Steering

if TYPE_CHECKING:
    from engine.contract import Answer, Question

SWEEP_LIMIT = 41
"""Values that a sweep takes at most."""

__all__ = ["SWEEP_LIMIT", "OnPoints", "SteeringEngine", "SweepPoint", "varied"]


@dataclasses.dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of a sweep and what is answered there: `text` and `ids` so far, `logprob` of these ids (sum, nats),
    `original` = the original answer's log-probability under the same steering (teacher-forced). `live` while its
    answer is being generated."""

    value: float
    text: str
    ids: tuple[int, ...]
    logprob: float
    original: float
    live: bool = False


OnPoints = Callable[[tuple[SweepPoint, ...]], None]


def varied(steering: Steering, turn: ConceptTurn | NeuronTurn | LatentTurn, value: float) -> Steering:
    """The steering with this turn's λ (or a neuron's or latent's value) set to `value`; it is put in where it is not
    there. Turns of the same latent that name its SAE the same way make room for it."""
    if isinstance(turn, ConceptTurn):
        others = tuple(known for known in steering.concepts if known.concept != turn.concept)
        return dataclasses.replace(steering, concepts=(*others, dataclasses.replace(turn, lam=value)))
    if isinstance(turn, LatentTurn):
        rest = tuple(known for known in steering.latents if (known.sae, known.index) != (turn.sae, turn.index))
        return dataclasses.replace(steering, latents=(*rest, dataclasses.replace(turn, value=value)))
    kept = tuple(known for known in steering.neurons if (known.layer, known.index) != (turn.layer, turn.index))
    return dataclasses.replace(steering, neurons=(*kept, dataclasses.replace(turn, value=value)))


def _never() -> bool:
    return False


class SteeringEngine(Protocol):
    """Calls that leave nothing on the model, and stop with Cancelled within one token."""

    def sweep(
        self,
        question: "Question",
        original_ids: Sequence[int],
        steering: Steering,
        turn: ConceptTurn | NeuronTurn | LatentTurn,
        values: Sequence[float],
        on_points: OnPoints | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> tuple[SweepPoint, ...]:
        """The answers under `varied(steering, turn, value)` for each of `values`, generated as one batch; `on_points`
        is called after each token with all points so far. `original_ids`: the unsteered answer. Each point's answer is
        the one that `steer` gives for that steering. Raises RequestError for no values, or more than SWEEP_LIMIT."""
        ...

    def answers(
        self,
        asked: "Sequence[tuple[Question, Steering]]",
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> "tuple[Answer, ...]":
        """The answer to each question under its steering, in order, generated in batches. `on_progress(done, all)` is
        called between batches and before each question is prepared, with nothing on the model. An answer is `ask`'s (to
        float32 rounding of batches)."""
        ...
