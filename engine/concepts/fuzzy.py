"""Fuzzy sets of neurons, torch-free (METHODS.md §2).

A fuzzy set is an array of memberships μ ∈ [0, 1] over all neurons (n_layers, d_mlp). Evidence becomes membership
through a monotone map φ; zero or negative evidence is always membership 0.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Memberships = npt.NDArray[np.float32]
Evidence = npt.NDArray[np.floating]


def evidence_share(scores: Evidence) -> Memberships:
    """ŝ = max(s, 0) / Σ max(s, 0) of one probe: probes of different confidence become comparable. All zero → zeros."""
    positive = np.maximum(scores, 0.0)
    whole = float(positive.sum())
    return np.asarray(positive / whole if whole > 0 else positive, dtype=np.float32)


def linear(evidence: Evidence, quantile: float) -> Memberships:
    """μ = min(E / E_q, 1), E_q = the `quantile` of the evidence over *all* neurons: 1 − quantile of them reach 1."""
    top = float(np.quantile(evidence, quantile))
    if top <= 0:
        return np.asarray(evidence > 0, dtype=np.float32)
    return np.asarray(np.clip(evidence, 0.0, top) / top, dtype=np.float32)


def s_function(evidence: Evidence, quantile: float) -> Memberships:
    """Zadeh's S-function of the linear membership x: 2x² below one half, 1 − 2(1 − x)² above."""
    x = linear(evidence, quantile).astype(np.float64)
    return np.asarray(np.where(x < 0.5, 2 * x**2, 1 - 2 * (1 - x) ** 2), dtype=np.float32)


def logistic(evidence: Evidence, quantile: float, steepness: float = 10.0) -> Memberships:
    """A logistic curve through the linear membership x, rescaled so that x = 0 gives 0 and x = 1 gives 1."""
    x = linear(evidence, quantile).astype(np.float64)
    low, high = 1 / (1 + np.exp(steepness / 2)), 1 / (1 + np.exp(-steepness / 2))
    curve = 1 / (1 + np.exp(-steepness * (x - 0.5)))
    return np.asarray(np.clip((curve - low) / (high - low), 0.0, 1.0), dtype=np.float32)


MAPS: dict[str, Callable[[Evidence, float], Memberships]] = {
    "linear": linear,
    "s_function": s_function,
    "logistic": logistic,
}
"""The membership maps φ by name."""


def alpha_cut(memberships: Memberships, alpha: float) -> npt.NDArray[np.bool_]:
    """The crisp set {n : μ(n) ≥ α}; for α = 0 the support {n : μ(n) > 0}."""
    return memberships >= alpha if alpha > 0 else memberships > 0


def similarities(concepts: Memberships, one: Memberships) -> Memberships:
    """(concepts,) Jaccard similarity Σ min(μ, ν) / Σ max(μ, ν) ∈ [0, 1] of each row of (concepts, neurons) to ν
    (neurons,); 0 between empty sets."""
    both = np.minimum(concepts, one).sum(-1, dtype=np.float64)
    either = concepts.sum(-1, dtype=np.float64) + one.sum(dtype=np.float64) - both  # min + max = the two together
    return np.asarray(np.divide(both, either, out=np.zeros_like(both), where=either > 0), dtype=np.float32)


def cardinality(memberships: Memberships) -> float:
    """Σ μ: how many neurons the set holds, counting by degree."""
    return float(memberships.sum(dtype=np.float64))
