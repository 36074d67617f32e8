"""`ablation`: what the target loses when a neuron is taken away: exact, the causal yardstick (METHODS.md §1).

1. Candidates: all neurons of a small model; else the `TOP` of largest `gradient` score (`direct` where the model has
   no gradients) and `DRAWN` others drawn at random (the same ones every time). The others have no score and stand at 0;
   the result says how many.
2. s = S − S(neuron set to zero at every position), or to its mean over this run's positions.
3. The parts by modality are exact too: the neuron is taken away at image positions; then at image and question
   positions; then at template positions as well; then everywhere. Each step's further loss is that modality's part, so
   the parts add up to s (in this order: it can matter, for positions act together).
4. Ablation knows modalities, not positions: a part stands at the last position of its modality, and there is no heat
   map. Many rows run in one batch; between batches it can be cancelled.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from engine.attribution.direct import direct
from engine.attribution.effects import BATCH, Subject, in_batches, zeroed
from engine.attribution.gradient import gradient
from engine.attribution.result import Scored, rank
from engine.contract import MODALITIES, Check, IsCancelled, never
from engine.features import Inputs
from engine.hooks import capture, intervene
from engine.interventions import NO_EDITS, Edits
from engine.measures import OnProgress
from engine.running import forward
from engine.targets import Part

TOP, DRAWN, ALL_BELOW = 64, 16, 256
CANDIDATES = "which neurons were ablated"


def candidates(totals: torch.Tensor, top: int = TOP, drawn: int = DRAWN, seed: int = 0) -> list[int]:
    """Flat indices, ascending: every neuron of a model with at most ALL_BELOW; else the `top` of largest |totals|
    (n_layers, d_mlp) and `drawn` of the others."""
    n = totals.numel()
    if n <= ALL_BELOW:
        return list(range(n))
    first = rank(totals, top)
    others = np.setdiff1d(np.arange(n), np.array(first, dtype=np.int64))
    more = np.random.default_rng(seed).choice(others, size=min(drawn, len(others)), replace=False)
    return sorted([*first, *(int(flat) for flat in more)])


def steps_of(subject: Subject) -> list[tuple[str, torch.Tensor | None, bool]]:
    """(modality, prompt mask or None, after the prompt too): growing sets of positions, the last one all of them."""
    steps: list[tuple[str, torch.Tensor | None, bool]] = []
    present = [kind for kind in MODALITIES if kind in subject.kinds]
    for k, kind in enumerate(present):
        if k == len(present) - 1:
            steps.append((kind, None, True))
        else:
            mask = torch.tensor([here in present[: k + 1] for here in subject.modality], device=subject.loaded.device)
            steps.append((kind, mask, False))
    return steps


def ablation(
    subject: Subject,
    chosen: Sequence[int] | None = None,
    to: str = "zero",
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Scored:
    """Exact scores of `chosen` neurons (flat indices; None = `candidates` by gradient). `to`: "zero" or "mean"."""
    anatomy, device = subject.loaded.anatomy, subject.loaded.device
    (part, inputs), *others = subject.sides
    with intervene(anatomy, [subject.steering]):
        first = _first_look(subject, part, inputs)
        rest = [_first_look(subject, side, more) for side, more in others]
    totals = torch.stack([layer.sum(0) for layer in first.scores])
    for other in rest:
        totals = totals - torch.stack([layer.sum(0) for layer in other.scores])
    picked = list(chosen) if chosen is not None else candidates(totals)
    mean = _means(subject) if to == "mean" else None
    steps = steps_of(subject)
    rows: list[Edits] = [NO_EDITS]
    for flat in picked:
        rows += [zeroed([flat], anatomy.d_mlp, device, where, later, mean) for _, where, later in steps]
    values = in_batches(subject, rows, batch, on_progress, cancelled)
    last = {kind: max(p for p, here in enumerate(subject.kinds) if here == kind) for kind, _, _ in steps}
    scores = torch.zeros(anatomy.n_layers, len(steps), anatomy.d_mlp, device=device)
    for k, flat in enumerate(picked):
        before = values[0]
        for step, value in enumerate(values[1 + k * len(steps) : 1 + (k + 1) * len(steps)]):
            scores[flat // anatomy.d_mlp, step, flat % anatomy.d_mlp] = before - value
            before = value
    words = (
        f"{len(picked)} of {totals.numel()}, set to {to}; the others stand at 0; parts stand at one position a modality"
    )
    at = [last[kind] for kind, _, _ in steps]
    checks = (Check(CANDIDATES, True, words),)
    return dataclasses.replace(first, scores=list(scores), value=values[0], at=at, checks=checks, cancels=False)


def _first_look(subject: Subject, part: Part, inputs: Inputs) -> Scored:
    """The scores that candidates are chosen by."""
    if subject.loaded.no_gradient:
        return direct(subject.loaded, inputs, subject.length, part.ids, part.target)
    return gradient(subject.loaded, inputs, part.ids, part.target)


@torch.no_grad()
def _means(subject: Subject) -> torch.Tensor:
    """(n_layers, d_mlp): each neuron's mean activation over the positions of the first side."""
    with intervene(subject.loaded.anatomy, [subject.steering]), capture(subject.loaded.anatomy) as captured:
        forward(subject.loaded, subject.sides[0][1], 1)
    return torch.stack([layer[0].float().mean(0).to(subject.loaded.device) for layer in captured.layers()])
