"""Several neurons, one concept: what they carry together against what each carries alone (METHODS.md §2.5).

1. On every probe, with its members set to zero at every position (`attribution.effects`): all of the α-cut, Δ(A); each
   member alone, Δ({n}); each pair of the `top` members, Δ_ij.
2. Synergy = Δ(A) − ΣΔ({n}). Below 0: the members do one job and stand in for one another, so single effects count the
   same loss several times, or the loss has a floor. Above 0: they need one another; no ranking of single neurons
   finds such a set.
3. I_ij = Δ_ij − Δ_i − Δ_j. Means over probes, intervals by bootstrap over probes.

Probes should be held out from those that the memberships were made of. Cancelled between batches.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from engine.attribution.effects import BATCH, Subject, in_batches, subject_of, zeroed
from engine.concepts.fuzzy import Memberships, alpha_cut
from engine.concepts.membership import prepare_one
from engine.concepts.probes import Probe
from engine.concepts.results import Collaboration, collaboration_runs, mean_interval
from engine.contract import MAX_SET, IsCancelled, OnProgress, RequestError, never
from engine.interventions import NO_EDITS, members
from engine.loading import Loaded

TOP = 12


def cut(memberships: Memberships, alpha: float, limit: int = MAX_SET) -> list[int]:
    """Flat indices of the α-cut by falling membership, ties by (layer, index); at most `limit`."""
    inside = np.where(alpha_cut(memberships, alpha), memberships, np.float32(0))
    return [int(flat) for flat in members(inside, limit)]


def effects_of(
    subject: Subject,
    sets: Sequence[Sequence[int]],
    d_mlp: int,
    batch: int,
    on_progress: OnProgress,
    cancelled: IsCancelled,
) -> list[float]:
    """Δ of each set of neurons: S − S(set at zero)."""
    rows = [NO_EDITS, *(zeroed(neurons, d_mlp, subject.loaded.device) for neurons in sets)]
    whole, *rest = in_batches(subject, rows, batch, on_progress, cancelled)
    return [whole - value for value in rest]


def collaboration(
    loaded: Loaded,
    memberships: Memberships,
    probes: Sequence[Probe],
    alpha: float = 0.5,
    top: int = TOP,
    quantity: str = "logprob",
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Collaboration:
    """Collaboration of the α-cut of `memberships` (n_layers, d_mlp) over `probes`; S sums `quantity` of the tokens that
    say the concept. `on_progress(done, all)` counts ablated runs. Raises RequestError for an α-cut of fewer than two
    neurons or no probes, Cancelled between batches."""
    chosen = cut(memberships, alpha)
    if len(chosen) < 2 or not probes:
        raise RequestError(
            f"The α-cut at {alpha:g} has {len(chosen)} neurons and there are {len(probes)} probes; "
            "collaboration takes at least 2 neurons and 1 probe. Lower α, or add probes."
        )
    d_mlp = memberships.shape[1]
    first = chosen[: min(top, len(chosen))]
    pairs = list(combinations(range(len(first)), 2))
    sets = [chosen, *([n] for n in chosen), *([first[i], first[j]] for i, j in pairs)]
    runs, done = collaboration_runs(len(chosen), len(first), len(probes)), 0
    found = np.empty((len(probes), len(sets)))

    def progress(now: int, _all: int) -> None:
        if on_progress is not None:
            on_progress(done + now, runs)

    for k, probe in enumerate(probes):
        ready = prepare_one(loaded, probe)
        parts = [replace(part, target=replace(part.target, quantity=quantity)) for part in ready.parts]
        subject = subject_of(loaded, ready.prompt, ready.features, parts)
        found[k] = effects_of(subject, sets, d_mlp, batch, progress, cancelled)
        done += len(sets) + 1
    joint, single = found[:, 0], found[:, 1 : 1 + len(chosen)]
    apart = single.sum(1)
    excess = found[:, 1 + len(chosen) :] - np.stack([single[:, i] + single[:, j] for i, j in pairs], 1)
    mean, error = np.zeros((2, len(first), len(first)), np.float32)
    for column, (i, j) in enumerate(pairs):
        mean[i, j] = mean[j, i] = excess[:, column].mean()
        spread = excess[:, column].std(ddof=1) if len(probes) > 1 else np.nan
        error[i, j] = error[j, i] = spread / np.sqrt(len(probes))
    return Collaboration(
        alpha=alpha,
        members=tuple(f"text.{n // d_mlp}.{n % d_mlp}" for n in chosen),
        probes=len(probes),
        joint=mean_interval(joint),
        apart=mean_interval(apart),
        synergy=mean_interval(joint - apart),
        top=tuple(f"text.{n // d_mlp}.{n % d_mlp}" for n in first),
        single=np.asarray(single[:, : len(first)].mean(0), np.float32),
        interactions=mean,
        errors=error,
    )
