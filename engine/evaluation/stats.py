"""Intervals and tests of an evaluation. Torch-free, without scipy.

Mean scores carry Wilson's interval where scores are 0 or 1, a bootstrap's else. Differences are paired: question by
question, with a percentile bootstrap over questions (seeded) and McNemar's exact test on the questions of which one arm
is right and the other wrong.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.concepts.results import wilson
from engine.evaluation.contract import ArmResult, Difference

DRAWS = 2000
RIGHT = 0.5
"""A score of at least this counts as right in McNemar's test (the VQA metric has scores between 0 and 1)."""
_CHUNK = 2_000_000
Scores = npt.NDArray[np.float64]


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p of McNemar's test: discordant pairs against a fair coin."""
    n, term, tail = gained + lost, 1, 1
    for k in range(min(gained, lost)):  # term = n over k + 1
        term = term * (n - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def bootstrap_mean(values: Scores, seed: int, draws: int = DRAWS) -> tuple[float, float]:
    """95 % percentile interval of the mean over resampled entries; (nan, nan) of none."""
    if not len(values):
        return math.nan, math.nan
    rng, means, step = np.random.default_rng(seed), [], max(1, _CHUNK // len(values))
    for start in range(0, draws, step):
        drawn = rng.integers(0, len(values), (min(step, draws - start), len(values)))
        means.append(values[drawn].mean(1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def arm(scores: Sequence[float], seed: int) -> ArmResult:
    """Mean of one arm's scores with its interval."""
    values = np.asarray(scores, np.float64)
    if not len(values):
        return ArmResult(math.nan, math.nan, math.nan, 0)
    whole = bool(np.isin(values, (0.0, 1.0)).all())
    low, high = wilson(int(values.sum()), len(values)) if whole else bootstrap_mean(values, seed)
    return ArmResult(float(values.mean()), low, high, len(values))


def difference(after: Sequence[float], before: Sequence[float], seed: int) -> Difference:
    """after − before, question by question."""
    later, earlier = np.asarray(after, np.float64), np.asarray(before, np.float64)
    gap = later - earlier
    if not len(gap):
        return Difference(math.nan, math.nan, math.nan, 1.0, 0, 0)
    low, high = bootstrap_mean(gap, seed)
    gained = int(((later >= RIGHT) & (earlier < RIGHT)).sum())
    lost = int(((later < RIGHT) & (earlier >= RIGHT)).sum())
    return Difference(float(gap.mean()), low, high, mcnemar(gained, lost), gained, lost)


def gain(after: Sequence[float] | Scores, before: Sequence[float] | Scores) -> tuple[float, float]:
    """Mean paired difference and its standard error (0 of fewer than two)."""
    gap = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if len(gap) < 2:
        return float(gap.mean()) if len(gap) else 0.0, 0.0
    return float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap)))
