"""Fuzzy sets of neurons, torch-free (METHODS.md §2.3–2.4).

A fuzzy set is an array of memberships μ ∈ [0, 1] over all neurons (n_layers, d_mlp). Evidence becomes membership
through a monotone map φ; zero or negative evidence is always membership 0. Union, intersection and complement come in
three families (t-norms and their dual t-conorms): one for each idea of what "and" means by degree.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Memberships = npt.NDArray[np.float32]
Evidence = npt.NDArray[np.floating]
Crisp = npt.NDArray[np.bool_]


def evidence_share(scores: Evidence) -> Memberships:
    """ŝ = max(s, 0) / Σ max(s, 0) of one probe: probes of different confidence become comparable. All zero → zeros."""
    positive = np.maximum(scores, 0.0)
    whole = float(positive.sum())
    return np.asarray(positive / whole if whole > 0 else positive, dtype=np.float32)


# Maps φ: x = min(E / E_q, 1), then a curve


def _same(x: Memberships) -> Memberships:
    return x


def _s_curve(x: Memberships) -> Memberships:
    wide = x.astype(np.float64)
    return np.asarray(np.where(wide < 0.5, 2 * wide**2, 1 - 2 * (1 - wide) ** 2), dtype=np.float32)


def _logistic_curve(x: Memberships, steepness: float = 10.0) -> Memberships:
    low, high = 1 / (1 + np.exp(steepness / 2)), 1 / (1 + np.exp(-steepness / 2))
    curve = 1 / (1 + np.exp(-steepness * (x.astype(np.float64) - 0.5)))
    return np.asarray(np.clip((curve - low) / (high - low), 0.0, 1.0), dtype=np.float32)


CURVES: dict[str, Callable[[Memberships], Memberships]] = {
    "linear": _same,
    "s_function": _s_curve,
    "logistic": _logistic_curve,
}
"""What each map makes of the linear membership x: monotone from [0, 1] onto [0, 1]."""


def linear_rows(evidence: Evidence, quantile: float) -> Memberships:
    """x = min(E / E_q, 1) for each row of (rows, neurons); E_q = the `quantile` of that row over *all* neurons. A row
    whose E_q is not positive is crisp: 1 where there is evidence."""
    top = np.quantile(evidence, quantile, axis=-1, keepdims=True)
    divided = np.clip(evidence, 0.0, None) / np.where(top > 0, top, 1.0)
    return np.asarray(np.where(top > 0, np.minimum(divided, 1.0), evidence > 0), dtype=np.float32)


def linear(evidence: Evidence, quantile: float) -> Memberships:
    """μ = min(E / E_q, 1), E_q = the `quantile` of the evidence over *all* neurons: 1 − quantile of them reach 1."""
    return linear_rows(evidence.reshape(1, -1), quantile).reshape(evidence.shape)


def s_function(evidence: Evidence, quantile: float) -> Memberships:
    """Zadeh's S-function of the linear membership x: 2x² below one half, 1 − 2(1 − x)² above."""
    return _s_curve(linear(evidence, quantile))


def logistic(evidence: Evidence, quantile: float) -> Memberships:
    """A logistic curve through the linear membership x, rescaled so that x = 0 gives 0 and x = 1 gives 1."""
    return _logistic_curve(linear(evidence, quantile))


MAPS: dict[str, Callable[[Evidence, float], Memberships]] = {
    "linear": linear,
    "s_function": s_function,
    "logistic": logistic,
}
"""The membership maps φ by name."""


# Crisp sets of a fuzzy set, and its size in numbers


def alpha_cut(memberships: Memberships, alpha: float) -> Crisp:
    """The crisp set {n : μ(n) ≥ α}; for α = 0 the support {n : μ(n) > 0}."""
    return memberships >= alpha if alpha > 0 else memberships > 0


def strong_alpha_cut(memberships: Memberships, alpha: float) -> Crisp:
    """The crisp set {n : μ(n) > α}."""
    return memberships > alpha


def support(memberships: Memberships) -> Crisp:
    """{n : μ(n) > 0}."""
    return memberships > 0


def core(memberships: Memberships) -> Crisp:
    """{n : μ(n) = 1}."""
    return memberships >= 1


def height(memberships: Memberships) -> float:
    """The largest membership; 0 of no neurons."""
    return float(memberships.max(initial=0.0))


def cardinality(memberships: Memberships) -> float:
    """Σ μ: how many neurons the set holds, counting by degree."""
    return float(memberships.sum(dtype=np.float64))


def fuzziness(memberships: Memberships) -> float:
    """De Luca and Termini's entropy −Σ [μ ln μ + (1 − μ) ln(1 − μ)] / (n ln 2) ∈ [0, 1]: 0 for a crisp set, 1 where
    every membership is ½."""
    mu = memberships.astype(np.float64).ravel()
    mu = mu[(mu > 0) & (mu < 1)]
    entropy = -(mu * np.log(mu) + (1 - mu) * np.log1p(-mu)).sum()
    return float(entropy / (memberships.size * np.log(2))) if mu.size else 0.0


# Algebra


@dataclasses.dataclass(frozen=True)
class Family:
    """A t-norm, its dual t-conorm and the complement, each over arrays of one shape; `words` say what "and" means."""

    intersection: Callable[[Memberships, Memberships], Memberships]
    union: Callable[[Memberships, Memberships], Memberships]
    words: str

    @staticmethod
    def complement(a: Memberships) -> Memberships:
        """1 − μ, in all three families."""
        return np.asarray(1.0 - a, dtype=np.float32)


FAMILIES: dict[str, Family] = {
    "min-max": Family(np.minimum, np.maximum, "the weaker of two memberships: and with itself changes nothing"),
    "product": Family(
        lambda a, b: a * b,
        lambda a, b: np.minimum(a + b - a * b, np.float32(1)),
        "memberships multiply, as independent chances would",
    ),
    "lukasiewicz": Family(
        lambda a, b: np.maximum(a + b - np.float32(1), np.float32(0)),
        lambda a, b: np.minimum(a + b, np.float32(1)),
        "a + b − 1: weak members of both drop out",
    ),
}
"""The families of union, intersection and complement by name."""


def similarities(concepts: Memberships, one: Memberships) -> Memberships:
    """(concepts,) Jaccard similarity Σ min(μ, ν) / Σ max(μ, ν) ∈ [0, 1] of each row of (concepts, neurons) to ν
    (neurons,); 0 between empty sets."""
    both = np.minimum(concepts, one).sum(-1, dtype=np.float64)
    either = concepts.sum(-1, dtype=np.float64) + one.sum(dtype=np.float64) - both  # min + max = the two together
    return np.asarray(np.divide(both, either, out=np.zeros_like(both), where=either > 0), dtype=np.float32)


def similarity(one: Memberships, other: Memberships) -> float:
    """Σ min(μ, ν) / Σ max(μ, ν) ∈ [0, 1] of two sets of one shape; 0 between empty sets."""
    return float(similarities(one.reshape(1, -1), other.ravel())[0])


def inclusion(one: Memberships, other: Memberships) -> float:
    """Σ min(μ, ν) / Σ μ ∈ [0, 1]: how far the first set lies in the second; 1 of an empty first, as for crisp sets."""
    whole = cardinality(one)
    return float(np.minimum(one, other).sum(dtype=np.float64)) / whole if whole > 0 else 1.0


def shared(concepts: Memberships) -> npt.NDArray[np.float64]:
    """(concepts, concepts): Σ min(μ_i, μ_j) of all rows of (concepts, neurons); the diagonal is each one's Σ μ.
    Similarities and inclusions of a whole library follow from it."""
    n = len(concepts)
    both = np.empty((n, n), np.float64)
    for k in range(n):
        both[k, k:] = both[k:, k] = np.minimum(concepts[k:], concepts[k]).sum(-1, dtype=np.float64)
    return both


def similarity_matrix(both: npt.NDArray[np.float64]) -> Memberships:
    """(concepts, concepts) Jaccard similarities from `shared`."""
    sizes = np.diag(both)
    either = sizes[:, None] + sizes[None, :] - both
    return np.asarray(np.divide(both, either, out=np.zeros_like(both), where=either > 0), dtype=np.float32)


def inclusion_matrix(both: npt.NDArray[np.float64]) -> Memberships:
    """(concepts, concepts) from `shared`: entry (i, j) = how far concept i lies in concept j."""
    sizes = np.broadcast_to(np.diag(both)[:, None], both.shape)
    return np.asarray(np.divide(both, sizes, out=np.ones_like(both), where=sizes > 0), dtype=np.float32)


def clustered(similar: Memberships) -> list[int]:
    """An order of concepts in which similar ones are neighbours: average linkage from a similarity matrix (concepts,
    concepts); clusters merge the more similar pair first, ties by the earlier concepts. Deterministic."""
    order = [[k] for k in range(len(similar))]
    near = similar.astype(np.float64).copy()
    np.fill_diagonal(near, -np.inf)
    sizes = np.ones(len(similar))
    for _ in range(len(similar) - 1):
        a, b = sorted(divmod(int(near.argmax()), len(near)))
        near[a] = near[:, a] = (sizes[a] * near[a] + sizes[b] * near[b]) / (sizes[a] + sizes[b])
        near[a, a] = near[b, :] = near[:, b] = -np.inf
        sizes[a] += sizes[b]
        order[a] += order[b]
    return order[0] if order else []
