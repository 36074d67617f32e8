"""Positions that stand apart, found for every attribution and left out of its sums only where the target says so.

*Special*: prompt positions whose token the tokenizer reserves (beginning of sequence, role marks), pictures excepted.
*High-norm*: positions whose residual stream, entering the middle layer, is more than HIGH_NORM times as long as that of
the median position of their sort (image, or text: their lengths differ in many models). Such are attention sinks (Sun
et al. 2024) and register-like image patches that hold no local content (Darcet et al. 2024). One can be both kinds.

The share of a kind is its part of Σ|s| over neurons, positions and layers, measured before anything is left out.
"""

import dataclasses
from collections.abc import Sequence

import torch

from engine.attribution.result import Scored
from engine.contract import Apart, Check
from engine.loading import Loaded
from engine.measures import HIGH_NORM
from engine.prompts import Prompt

LEFT_OUT = "positions left out of all sums"


def special_positions(loaded: Loaded, prompt: Prompt) -> tuple[int, ...]:
    """Prompt positions of reserved tokens that are no picture's."""
    tokenizer = loaded.processor.tokenizer
    reserved = {*tokenizer.all_special_ids, *tokenizer.added_tokens_encoder.values()}
    ids = enumerate(prompt.ids.tolist())
    return tuple(p for p, token in ids if token in reserved and prompt.modality[p] != "image")


def high_norm_positions(norms: torch.Tensor | None, modality: Sequence[str]) -> tuple[int, ...]:
    """Positions of `norms` (pos,) above HIGH_NORM times the median of the image or the text positions that they are
    among; none where they were not measured. `modality` of each position."""
    if norms is None:
        return ()
    image = torch.tensor([kind == "image" for kind in modality[: len(norms)]], device=norms.device)
    high = torch.zeros_like(image)
    for sort in (image, ~image):
        if sort.any():
            high |= sort & (norms[: len(image)] > HIGH_NORM * norms[: len(image)][sort].median())
    return tuple(torch.nonzero(high)[:, 0].tolist())


def set_apart(
    scored: Scored, where: dict[str, tuple[int, ...]], leave_out: Sequence[str]
) -> tuple[Scored, tuple[Apart, ...]]:
    """The scores with the kinds of `leave_out` set to zero, and what stands where. Leaving out adds a check's line."""
    length = scored.scores[0].shape[0]
    at = scored.at if scored.at is not None else list(range(length))
    weight = torch.stack([layer.abs().sum(-1) for layer in scored.scores]).sum(0)
    whole = float(weight.sum())
    found = []
    for kind, positions in where.items():
        here = [k for k, position in enumerate(at) if position in positions]
        share = float(weight[here].sum()) / whole if whole else 0.0
        found.append(Apart(kind, positions, share, kind in leave_out))
    gone = {position for entry in found if entry.left_out for position in entry.positions}
    if not leave_out:
        return scored, tuple(found)
    keep = torch.tensor([position not in gone for position in at], device=weight.device)
    scores = [layer * keep[:, None] for layer in scored.scores]
    lost = 1 - float((weight * keep).sum()) / whole if whole else 0.0
    words = f"{' and '.join(leave_out)}: {len(gone)} positions, which held {lost:.1%} of Σ|score|"
    checks = (*scored.checks, Check(LEFT_OUT, True, words))
    return dataclasses.replace(scored, scores=scores, checks=checks), tuple(found)
