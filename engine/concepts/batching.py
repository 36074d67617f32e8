"""Many probes in one forward and one backward pass.

1. A row is a side of a probe's target: prompt + answer, teacher-forced. Rows of nearly one length are padded on the
   right: a decoder is causal, so no real position sees the padding, and the padding's scores are zero because S does
   not depend on it.
2. S of the batch = Σ over rows of the row's own S; rows do not mix, so one backward pass gives every row's gradient.
3. s(n) of a row = Σ over its positions of activation × gradient, as `attribution.gradient` for one row.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from engine.attribution.gradient import gradients_of, require_gradient
from engine.features import KEPT, Inputs, forward
from engine.hooks import capture, require_finite
from engine.loading import Loaded
from engine.targets import Part, scalar

BATCH = 8
BUDGET = 2**28
"""At most this many activations (rows × positions × neurons) are kept for one backward pass."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One side of a probe: `inputs` one row, prompt + answer; `part` = its answer ids and what of them is explained;
    `length` = positions of the prompt."""

    inputs: Inputs
    part: Part
    length: int

    @property
    def size(self) -> int:
        return int(self.inputs.ids.shape[1])

    @property
    def sort(self) -> tuple[Any, ...]:
        """Rows of one sort can share a batch."""
        given = self.inputs
        return (given.pictures is None, given.embeddings is None, tuple(sorted(given.extra)))


@dataclasses.dataclass(frozen=True)
class Scores:
    """Of one row: `totals` (n_layers, d_mlp) scores summed over positions, S, and the answer that greedy decoding
    would prefer at each place of the given one and after it."""

    totals: torch.Tensor
    value: float
    preferred: tuple[int, ...]


def rows_at_once(loaded: Loaded, size: int, batch: int = BATCH) -> int:
    """How many rows of `size` positions go into one batch."""
    each = size * loaded.anatomy.n_layers * loaded.anatomy.d_mlp
    return max(1, min(batch, BUDGET // max(each, 1)))


def _padded(tensor: torch.Tensor, size: int, value: float) -> torch.Tensor:
    """(1, pos, …) lengthened along its positions."""
    missing = size - tensor.shape[1]
    if missing == 0:
        return tensor
    fill = torch.full((1, missing, *tensor.shape[2:]), value, dtype=tensor.dtype, device=tensor.device)
    return torch.cat([tensor, fill], 1)


def _joined(values: Sequence[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.cat(list(values))
    return tuple(one for several in values for one in several)


def stack(rows: Sequence[Inputs], pad: int) -> Inputs:
    """Rows of one sort as one batch, padded on the right with the token `pad`."""
    size = max(int(row.ids.shape[1]) for row in rows)
    first = rows[0]
    ids = torch.cat([_padded(row.ids, size, pad) for row in rows])
    embeddings = None
    if first.embeddings is not None:
        embeddings = torch.cat([_padded(row.embeddings, size, 0) for row in rows if row.embeddings is not None])
    pictures = first.pictures
    if pictures is not None:
        kept = {name: pictures[name] for name in KEPT if name in pictures}
        joined: dict[str, Any] = {
            "pooler_output": _joined([row.pictures["pooler_output"] for row in rows if row.pictures])
        }
        if "deepstack_features" in kept:
            layers = zip(*(row.pictures["deepstack_features"] for row in rows if row.pictures), strict=True)
            joined["deepstack_features"] = [_joined(layer) for layer in layers]
        pictures = type(pictures)(**joined)
    extra = {}
    for name, value in first.extra.items():
        per_token = value.ndim == 2 and value.shape == first.ids.shape
        values = [row.extra[name] for row in rows]
        extra[name] = torch.cat([_padded(v, size, float(v[0, -1])) for v in values]) if per_token else _joined(values)
    return Inputs(ids, embeddings, pictures, extra, first.d_model)


def side_values(logits: torch.Tensor, rows: Sequence[Row], first: int) -> torch.Tensor:
    """(rows,): S of each row, of logits (rows, positions, d_vocab) from position `first` on."""
    values = []
    for k, row in enumerate(rows):
        at = row.length - 1 - first
        start, end = row.part.target.start, row.part.target.end
        assert end is not None
        values.append(scalar(logits[k, at + start : at + end], row.part.explained, row.part.target.quantity))
    return torch.stack(values)


def score_rows(loaded: Loaded, rows: Sequence[Row]) -> list[Scores]:
    """Scores of every row, in one forward and one backward pass. Raises NonFinite; RequestError where the
    model has no gradients."""
    require_gradient(loaded)
    pad = loaded.processor.tokenizer.pad_token_id
    size = max(row.size for row in rows)
    first = min(row.length for row in rows) - 1
    with torch.enable_grad(), capture(loaded.anatomy, gradients=True) as captured:
        inputs = stack([row.inputs for row in rows], 0 if pad is None else int(pad))
        logits = forward(loaded, inputs, size - first)
        value = side_values(logits, rows, first)
        require_finite(value.detach(), "a probe's target value")
        activations = captured.layers()
        gradients = gradients_of(value.sum(), logits, activations)
    totals = torch.stack(
        [
            (a.detach().float() * g.float()).sum(1).to(loaded.device)
            for a, g in zip(activations, gradients, strict=True)
        ],
        1,
    )
    require_finite(totals, "a probe's scores")
    result = []
    for k, row in enumerate(rows):
        at = row.length - 1 - first
        preferred = logits[k, at : at + len(row.part.ids) + 1].detach().argmax(-1)
        result.append(Scores(totals[k], float(value[k].detach()), tuple(preferred.tolist())))
    return result
