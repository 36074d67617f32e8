"""What an intervention does to a target: exact, by running the model with it. The yardstick of all methods.

1. A target's sides are run teacher-forced, many copies of a row in one batch, each copy with edits of its own.
2. S of a row = Σ over the sides of sign × S(side); the effect of ablating a set of neurons is S − S(those set to zero).
3. A steering that is being explained stays active in every row, before the row's own edits.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from engine.contract import Cancelled, IsCancelled, never
from engine.features import Inputs, Seen, embed, forward
from engine.hooks import intervene, require_finite
from engine.interventions import NO_EDITS, Edits, LayerEdit
from engine.loading import Loaded
from engine.measures import OnProgress
from engine.prompts import Prompt
from engine.running import with_answer
from engine.targets import Part, scalar

BATCH = 16


@dataclasses.dataclass(frozen=True)
class Subject:
    """One question's target, ready to be run: `sides` = each part with its inputs (one row, prompt + answer);
    `modality` of the prompt's positions; `steering` = the edits under which the target is explained."""

    loaded: Loaded
    modality: tuple[str, ...]
    sides: tuple[tuple[Part, Inputs], ...]
    steering: Edits = NO_EDITS

    @property
    def length(self) -> int:
        """Positions of the prompt."""
        return len(self.modality)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The modality of each absolute position, up to the end of the longest side."""
        return (*self.modality, *["answer"] * max(len(part.ids) for part, _ in self.sides))

    @torch.no_grad()
    def values(self, rows: Sequence[Edits]) -> list[float]:
        """S under each row's edits, in one batch a side."""
        total = [0.0] * len(rows)
        for part, inputs in self.sides:
            start, end = part.target.start, part.target.end
            with intervene(self.loaded.anatomy, [self.steering] * len(rows)), intervene(self.loaded.anatomy, rows):
                logits = forward(self.loaded, inputs.repeat(len(rows), 1, 1), len(part.ids) + 1)
            require_finite(logits, "the logits of an ablated run")
            for k in range(len(rows)):
                total[k] += part.sign * float(scalar(logits[k, start:end], part.explained, part.target.quantity))
        return total


def subject_of(
    loaded: Loaded, prompt: Prompt, features: Seen | None, parts: Sequence[Part], steering: Edits = NO_EDITS
) -> Subject:
    """A target's sides over one prompt, ready to be run."""
    sides = tuple((part, embed(loaded, with_answer(prompt, part.ids), features)) for part in parts)
    return Subject(loaded, prompt.modality, sides, steering)


def zeroed(
    neurons: Iterable[int],
    d_mlp: int,
    device: torch.device | str = "cpu",
    where: torch.Tensor | None = None,
    later: bool = True,
    to: torch.Tensor | None = None,
) -> Edits:
    """Edits that set these neurons (flat indices) to zero, or to their entry of `to` (n_layers, d_mlp); at the prompt
    positions of the mask `where` (None = at all) and, with `later`, at those after the prompt."""
    by_layer: dict[int, list[int]] = {}
    for flat in sorted(neurons):
        by_layer.setdefault(flat // d_mlp, []).append(flat % d_mlp)
    layers = {}
    for layer, indices in by_layer.items():
        index = torch.tensor(indices, device=device)
        nothing = torch.zeros(len(indices), device=device)
        layers[layer] = LayerEdit(index, nothing, nothing if to is None else to[layer, index].float())
    return Edits(layers, where, later)


def in_batches(
    subject: Subject,
    rows: Sequence[Edits],
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> list[float]:
    """S under each row's edits. Raises Cancelled between batches; `on_progress(done, all)` after each."""
    values: list[float] = []
    for start in range(0, len(rows), batch):
        if cancelled():
            raise Cancelled("Stopped between two batches of ablated runs.")
        values += subject.values(rows[start : start + batch])
        if on_progress is not None:
            on_progress(len(values), len(rows))
    return values
