"""A contrast's scores: those of one side less those of the other, position by absolute position.

S = S(one) − S(other) is linear in its sides, and so is every method but `ablation` (which measures S itself). The sides
share the prompt; behind it a position holds one side's token or the other's, and a side that has ended has no score.
"""

import dataclasses

import torch

from engine.attribution.result import Scored


def _positions(scored: Scored) -> list[int]:
    return scored.at if scored.at is not None else list(range(scored.scores[0].shape[0]))


def _onto(scored: Scored, layer: torch.Tensor, at: list[int]) -> torch.Tensor:
    """(pos, d_mlp) → (len(at), d_mlp), zero where the side has no score."""
    place = {position: k for k, position in enumerate(at)}
    result = torch.zeros(len(at), layer.shape[-1], device=layer.device)
    result[[place[position] for position in _positions(scored)]] = layer.float()
    return result


def difference(one: Scored, other: Scored) -> Scored:
    """The contrast of two sides. `peaks`: the larger of both; norms, where given, are the first side's."""
    at = sorted({*_positions(one), *_positions(other)})
    pairs = zip(one.scores, other.scores, strict=True)
    scores = [_onto(one, mine, at) - _onto(other, theirs, at) for mine, theirs in pairs]
    peaks = torch.where(one.peaks.abs() >= other.peaks.abs(), one.peaks, other.peaks)
    whole = one.at is None and other.at is None
    checks = tuple(dict.fromkeys((*one.checks, *other.checks)))
    return dataclasses.replace(
        one, scores=scores, peaks=peaks, value=one.value - other.value, at=None if whole else at, checks=checks
    )
