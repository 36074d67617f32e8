"""What is measured of a concept, as data: collaboration and validation. Torch-free (METHODS.md §2.5 and after)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.concepts.evidence import Evidence
from engine.concepts.fuzzy import Memberships
from engine.concepts.probes import Probe

Z95 = 1.959964


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval; `n` = of how many probes (or trials)."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n = {self.n})"


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion."""
    if n == 0:
        return 0.0, 1.0
    p = hits / n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n)) / (1 + Z95**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def proportion(hits: Sequence[bool]) -> Interval:
    """How many of these hold, with Wilson's interval."""
    n, held = len(hits), sum(bool(hit) for hit in hits)
    return Interval(held / n if n else float("nan"), *wilson(held, n), n)


def mean_interval(values: Sequence[float] | npt.NDArray[np.floating], draws: int = 2000, seed: int = 0) -> Interval:
    """The mean with its percentile bootstrap interval over the entries; not a number without any."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    drawn = np.random.default_rng(seed).integers(0, len(array), (draws, len(array)))
    low, high = np.quantile(array[drawn].mean(1), (0.025, 0.975))
    return Interval(float(array.mean()), float(low), float(high), len(array))


@dataclasses.dataclass(frozen=True, eq=False)
class Collaboration:
    """What a set of neurons carries together (METHODS.md §2.5). Δ(A) = S − S(A set to zero everywhere), S = the
    log-probability of what says the concept, in nats; larger = more is lost.

    `members`: the α-cut, by falling membership. `joint` = Δ(A) and `apart` = ΣΔ({n}), means over `probes` probes;
    `synergy` = their difference probe by probe: below 0 the members stand in for one another, above 0 they need one
    another. `top`: the first members; `single` (k,) = their own Δ_i; `interactions` (k, k) = Δ_ij − Δ_i − Δ_j, its
    diagonal 0; `errors` (k, k) the standard error of each over the probes."""

    alpha: float
    members: tuple[str, ...]
    probes: int
    joint: Interval
    apart: Interval
    synergy: Interval
    top: tuple[str, ...]
    single: npt.NDArray[np.float32]
    interactions: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]


def collaboration_runs(members: int, top: int, probes: int) -> int:
    """How many forward passes (rows of batches) a collaboration takes: the estimate."""
    return probes * (2 + members + top * (top - 1) // 2)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """What is validated. `memberships` (n_layers, d_mlp); `evidence` of its build probes and `contrast` = E_¬c, for the
    split halves; `baseline` (n_layers, d_mlp) = the single-token baseline's evidence over the same build probes;
    `another` = another concept's memberships; `probes` = held-out ones of its own, `others` = held-out ones of other
    concepts; `between` = other concepts' (specific) evidence, for the overlap that is chance of the kind."""

    name: str
    kind: str
    memberships: Memberships
    evidence: Evidence
    contrast: Memberships | None
    baseline: Memberships
    another: Memberships
    probes: Sequence[Probe]
    others: Sequence[Probe]
    between: Sequence[Memberships] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of a concept that works: whether it holds, and the figures in words. A concept passes when all
    `needed` ones hold; the others compare methods and do not make a concept weak."""

    name: str
    holds: bool
    needed: bool
    detail: str


@dataclasses.dataclass(frozen=True, eq=False)
class ConceptValidation:
    """Does a concept work, on held-out probes (METHODS.md §2)? All accuracies are shares of answers exactly right.

    `size` neurons (the α-cut) are set to zero: `own`, against nothing (`plain`), as many random neurons of the same
    layers (`random`), the single-token baseline's set of the same size (`baseline`) and another concept's (`other`), on
    the concept's own probes; `others_plain`, `others_own`: other concepts' probes without and with the concept's set
    at zero. `tokens`: of what says the concept (1: the baseline sees all of it). `split_half`: overlap of the 20 first
    neurons of two halves of the build probes, `split_half_correlation` Spearman's over all of them; `between`: the
    same overlap with other concepts (chance of the kind). `shuffled`: overlap of the 20 first when the picture's
    features change places. `pointing`: how often the concept's heat map (by name: and other maps, and chance) has its
    maximum in the thing's box; empty where no box is known. `answers` (probes, 5) and `others_answers` (probes, 2):
    which were right, under nothing, own, random, baseline, another set; under nothing and own."""

    name: str
    kind: str
    tokens: int
    size: int
    alpha: float
    plain: Interval
    own: Interval
    random: Interval
    baseline: Interval
    other: Interval
    others_plain: Interval
    others_own: Interval
    split_half: float
    split_half_correlation: float
    between: float
    shuffled: float
    pointing: dict[str, Interval]
    criteria: tuple[Criterion, ...]
    answers: tuple[tuple[bool, ...], ...] = ()
    others_answers: tuple[tuple[bool, ...], ...] = ()

    @property
    def passes(self) -> bool:
        return all(criterion.holds for criterion in self.criteria if criterion.needed)

    @property
    def reason(self) -> str:
        """Why it passes or does not, in a sentence."""
        failed = [criterion for criterion in self.criteria if criterion.needed and not criterion.holds]
        if not failed:
            return "Every condition holds on held-out probes."
        return "Weak: " + "; ".join(f"{criterion.name} ({criterion.detail})" for criterion in failed) + "."


def criteria(
    mine: npt.NDArray[np.float64],
    theirs: npt.NDArray[np.float64],
    halves: float,
    shuffled: float,
    between: float,
    pointing: dict[str, Interval],
) -> tuple[Criterion, ...]:
    """The conditions, from right answers: `mine` (probes, 5) under nothing, own, random, baseline, another set;
    `theirs` (probes, 2) under nothing and own."""

    def more(name: str, column: int, needed: bool) -> Criterion:
        gap = mean_interval(mine[:, column] - mine[:, 1])
        return Criterion(f"takes more of its own answers than {name}", gap.low > 0, needed, f"difference {gap}")

    own, others = mean_interval(mine[:, 0] - mine[:, 1]), mean_interval(theirs[:, 0] - theirs[:, 1])
    found = [
        more("as many random neurons", 2, True),
        more("another concept's set", 4, True),
        more("the single-token baseline's set", 3, False),
        Criterion("leaves others' answers", own.low > others.high, True, f"own drop {own}, others' {others}"),
        Criterion(
            "two halves of its probes name the same neurons", halves > between, True,
            f"overlap {halves:.2f}, with other concepts at most {between:.2f}",
        ),
    ]  # fmt: skip
    if not np.isnan(shuffled):
        words = f"overlap {shuffled:.2f}, with other concepts at most {between:.2f}"
        found.append(Criterion("names the same neurons wherever things are", shuffled > between, False, words))
    if pointing:
        here, by_chance, attention = pointing["concept"], pointing["chance"], pointing["attention"]
        words = f"{here}, chance {by_chance.value:.3f}"
        found.append(Criterion("points at the thing more often than chance", here.low > by_chance.value, True, words))
        words = f"{here}, attention {attention}"
        found.append(Criterion("points more often than attention", here.low > attention.value, False, words))
    return tuple(found)


def pooled(folds: Sequence[ConceptValidation]) -> ConceptValidation:
    """One validation of several folds of a concept's probes, each tested with memberships made without it: answers are
    counted together, and stability is the mean of the folds'."""
    first = folds[0]
    answers = tuple(row for fold in folds for row in fold.answers)
    others = tuple(row for fold in folds for row in fold.others_answers)
    mine, theirs = np.array(answers, float).reshape(-1, 5), np.array(others, float).reshape(-1, 2)
    mean = {
        field: float(np.mean([getattr(fold, field) for fold in folds]))
        for field in ("split_half", "split_half_correlation", "between", "shuffled")
    }
    pointing: dict[str, Interval] = {}
    known = [fold.pointing for fold in folds if fold.pointing]
    for name in known[0] if known else ():
        n = sum(found[name].n for found in known)
        value, low, high = (sum(getattr(f[name], at) * f[name].n for f in known) / n for at in ("value", "low", "high"))
        drawn = Interval(value, low, high, n)
        pointing[name] = drawn if name == "chance" else Interval(value, *wilson(round(value * n), n), n)
    plain, own, random, baseline, other = (proportion([row[k] for row in answers]) for k in range(5))
    return dataclasses.replace(
        dataclasses.replace(first, **mean),  # type: ignore[arg-type] # all four are floats
        tokens=max(fold.tokens for fold in folds),
        size=round(float(np.mean([fold.size for fold in folds]))),
        plain=plain, own=own, random=random, baseline=baseline, other=other,
        others_plain=proportion([row[0] for row in others]), others_own=proportion([row[1] for row in others]),
        pointing=pointing, answers=answers, others_answers=others,
        criteria=criteria(mine, theirs, mean["split_half"], mean["shuffled"], mean["between"], pointing),
    )  # fmt: skip


FIGURES = {
    "plain": "plain", "own": "own", "random": "random", "baseline": "baseline", "other": "other",
    "others_plain": "others plain", "others_own": "others own",
}  # fmt: skip
"""Fields of a ConceptValidation that are intervals, and the names of their values among a concept's figures."""


def figures_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """A validation's figures as a concept carries them (`Concept.figures`), from its JSON: the fields of
    ConceptValidation and `passes`. Those that are not known (pointing without boxes) are left out."""
    found: dict[str, float] = {"passes": float(entry["passes"])}
    found |= {name: entry[field]["value"] for field, name in FIGURES.items()}
    if entry["pointing"]:
        found["pointing"] = entry["pointing"]["concept"]["value"]
    found |= {"split half": entry["split_half"], "tokens": float(entry["tokens"])}
    found["held-out probes"] = float(entry["own"]["n"])
    return {name: round(value, 4) for name, value in found.items() if math.isfinite(value)}
