"""The noise band of a ranking: which of the first neurons change place with the arithmetic alone (METHODS.md §1).

The same `gradient` scores are computed again (1) by a copy of the model in bfloat16 (in float32 where the model itself
is in bfloat16), the picture's features computed anew by that copy, and (2) as one row of a batch of two. A difference
between two neurons that is smaller than these changes means nothing. The copy needs half of the model's memory again
(twice as much where it is in float32) while it lives; a model that is packed in 4 or 8 bits, or partly off its devices,
cannot be cast, and (1) is left out. Between two computations it can be cancelled.
"""

import copy
import dataclasses
from collections.abc import Sequence

import torch

from engine.anatomy import find_anatomy
from engine.attribution.effects import Subject, subject_of
from engine.attribution.gradient import gradient
from engine.attribution.result import rank
from engine.contract import Cancelled, IsCancelled, NoiseBand, never
from engine.hooks import intervene
from engine.loading import Loaded
from engine.measures import moved
from engine.prompts import Prompt
from engine.running import picture_features
from engine.targets import Part

TOP = 20


def totals(subject: Subject, rows: int = 1) -> torch.Tensor:
    """(n_layers, d_mlp) float32 on the CPU: the gradient scores, computed as the first of `rows` equal rows."""
    result = torch.zeros(())
    for part, inputs in subject.sides:
        with intervene(subject.loaded.anatomy, [subject.steering] * rows):
            scored = gradient(subject.loaded, inputs.repeat(rows, 1, 1), part.ids, part.target)
        result = result + part.sign * torch.stack([layer.float().sum(0).cpu() for layer in scored.scores])
    return result


def in_dtype(loaded: Loaded, dtype: torch.dtype) -> Loaded:
    """A copy of the model in another dtype."""
    model = copy.deepcopy(loaded.model).to(dtype)
    return dataclasses.replace(loaded, model=model, anatomy=find_anatomy(model))


def compare(before: torch.Tensor, after: torch.Tensor, against: str, top: int = TOP) -> NoiseBand:
    """Two computations of the same totals (n_layers, d_mlp)."""
    d_mlp = before.shape[-1]
    first, second = ([f"text.{n // d_mlp}.{n % d_mlp}" for n in rank(scores, top)] for scores in (before, after))
    difference = float((after - before).abs().max() / before.abs().max().clamp(min=1e-12))
    return NoiseBand(against, len(first), moved(first, second), difference)


def noise_bands(
    loaded: Loaded, prompt: Prompt, subject: Subject, parts: Sequence[Part], cancelled: IsCancelled = never
) -> tuple[NoiseBand, ...]:
    """Against another dtype, where the model can be cast, and against a batch of two. Raises Cancelled."""
    _go_on(cancelled)
    plain = totals(subject)
    _go_on(cancelled)
    batch = compare(plain, totals(subject, 2), "a batch of two")
    if not loaded.whole:
        return (batch,)
    _go_on(cancelled)
    other = torch.float32 if loaded.model.dtype == torch.bfloat16 else torch.bfloat16
    copied = in_dtype(loaded, other)
    features = picture_features(copied, prompt.pixels) if prompt.pixels else None
    _go_on(cancelled)
    again = totals(subject_of(copied, prompt, features, parts, subject.steering))
    name = str(other).removeprefix("torch.")
    return compare(plain, again, name), batch


def _go_on(cancelled: IsCancelled) -> None:
    if cancelled():
        raise Cancelled("Stopped between two computations of the scores.")
