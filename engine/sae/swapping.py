"""One item answered with another item's latents, as turns (METHODS.md §4, "Steering test"). Torch-free."""

from collections.abc import Iterable

from engine.errors import RequestError
from engine.turns import LatentTurn

Ranked = tuple[int, float, float]
"""A latent of a ranking: index, influence, and the value that it brings with it when it is swapped in."""


def swapped(sae: str, mine: Iterable[Ranked], other: Iterable[Ranked], k: int) -> tuple[LatentTurn, ...]:
    """Turns of the SAE of this name or id: the at most `k` latents of largest influence above 0 of `mine` are set to 0,
    those of `other` to their values; latents of both get the other's. By index. Raises RequestError for k below 1."""
    if k < 1:
        raise RequestError(f"At least 1 latent is swapped; {k} were asked for.")
    return exchanged(sae, [index for index, *_ in _first(mine, k)], [one[::2] for one in _first(other, k)])


def exchanged(sae: str, gone: Iterable[int], brought: Iterable[tuple[int, float]]) -> tuple[LatentTurn, ...]:
    """The latents `gone` set to 0, and those `brought` (index, value) to their values, which count for both; by
    index."""
    values = dict.fromkeys(gone, 0.0) | dict(brought)
    return tuple(LatentTurn(sae, index, "set", value) for index, value in sorted(values.items()))


def _first(ranked: Iterable[Ranked], k: int) -> list[Ranked]:
    """The at most `k` of largest influence above 0, ties by index."""
    return sorted((one for one in ranked if one[1] > 0), key=lambda one: (-one[1], one[0]))[:k]
