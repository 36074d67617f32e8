"""Does a concept work? On probes that it was not made of (METHODS.md §2, "A concept works when …").

1. *Joint ablation*: the α-cut (at most MAX_SET neurons) is set to zero at every position. How many answers on the
   concept's own probes stay exactly right, against nothing, as many random neurons of the same layers (another set for
   each probe), the single-token baseline's first neurons (`pan`, the same number), and another concept's?
2. *Specificity*: the same set on other concepts' probes.
3. *Stability*: overlap of the 20 neurons of most (specific) evidence between two halves of the build probes, against
   the overlap with other concepts; and between held-out probes as they are and with the picture's features dealt to
   other image positions (does the set depend on where things are?).
4. *Pointing game*, where the thing's box is known: its heat map, the last layer's attention, chance.

Differences of accuracies are taken probe by probe; a criterion holds when the 95 % interval of the difference lies
above 0. Criteria that compare methods (baseline, attention) are reported, but a concept does not become weak by them.

    python -m engine.concepts.validation [NAME …] [--kind KIND] [--probes 20] [--work var/concepts]

validates the built-in library; each concept's figures are kept in `--work`, so a stopped run goes on where it was.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from engine.attribution.effects import zeroed
from engine.attribution.pan import pan
from engine.concepts.batching import Row, rows_at_once, score_rows
from engine.concepts.collaboration import cut
from engine.concepts.evidence import Evidence
from engine.concepts.fuzzy import Memberships, evidence_share
from engine.concepts.membership import Ready, prepare_one
from engine.concepts.pointing import chance, concept_map, last_layer_attention, points
from engine.concepts.probes import Probe
from engine.concepts.results import Candidate, ConceptValidation, Interval, criteria, mean_interval, proportion
from engine.contract import Cancelled, IsCancelled, OnProgress, RequestError, never
from engine.features import Seen
from engine.hooks import intervene
from engine.interventions import NO_EDITS, Edits, members
from engine.loading import Loaded
from engine.measures import spearman
from engine.running import embed, end_tokens, forward, with_answer

TOP = 20
ALPHA = 0.5
SHUFFLED = 8


def baseline_evidence(loaded: Loaded, probes: Sequence[Probe], cancelled: IsCancelled = never) -> Memberships:
    """(n_layers, d_mlp): mean evidence share of the published single-token baseline's scores, made as ours are."""
    total = np.zeros((loaded.anatomy.n_layers, loaded.anatomy.d_mlp), np.float64)
    for probe in probes:
        if cancelled():
            raise Cancelled("Stopped between two probes.")
        ready = prepare_one(loaded, probe)
        inputs = embed(loaded, with_answer(ready.prompt, ready.answer_ids), ready.features)
        scored = pan(loaded, inputs, ready.prompt.length, ready.answer_ids, ready.target)
        total += evidence_share(torch.stack([layer.sum(0) for layer in scored.scores]).cpu().numpy())
    return np.asarray(total / max(len(probes), 1), np.float32)


@torch.no_grad()
def right_under(loaded: Loaded, ready: Ready, rows: Sequence[Edits]) -> list[bool]:
    """Would greedy decoding give exactly the expected answer and end, under each row's edits? One forward pass."""
    inputs = embed(loaded, with_answer(ready.prompt, ready.answer_ids), ready.features)
    result: list[bool] = []
    step = rows_at_once(loaded, int(inputs.ids.shape[1]))
    ends = end_tokens(loaded)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        with intervene(loaded.anatomy, some):
            logits = forward(loaded, inputs.repeat(len(some), 1, 1), len(ready.answer_ids) + 1)
        preferred = logits.argmax(-1).tolist()
        result += [tuple(best[:-1]) == ready.answer_ids and best[-1] in ends for best in preferred]
    return result


def random_set(chosen: Sequence[int], d_mlp: int, seed: int) -> list[int]:
    """As many neurons of the same layers, none of them `chosen`. Raises RequestError where a layer has too few."""
    rng = np.random.default_rng(seed)
    dealt: list[int] = []
    for layer in sorted({flat // d_mlp for flat in chosen}):
        mine = [flat for flat in chosen if flat // d_mlp == layer]
        others = np.setdiff1d(np.arange(layer * d_mlp, (layer + 1) * d_mlp), mine)
        if len(others) < len(mine):
            raise RequestError(f"Layer {layer} has too few neurons for a random set of {len(mine)}. Raise α.")
        dealt += [int(flat) for flat in rng.choice(others, size=len(mine), replace=False)]
    return dealt


def overlap(one: Memberships, other: Memberships, top: int = TOP) -> float:
    """The share of the `top` neurons of highest positive value that two arrays have in common."""
    a, b = (set(members(np.asarray(values, np.float32), top).tolist()) for values in (one, other))
    return len(a & b) / max(len(a), len(b), 1)


def split_half(
    evidence: Evidence, contrast: Memberships | None
) -> tuple[float, float, tuple[Memberships, Memberships]]:
    """(overlap of the first 20, Spearman's correlation over all neurons, the halves' evidence): every other probe, what
    is specific where there is a contrast."""
    halves = []
    for first in (0, 1):
        mean = Evidence(evidence.shape, evidence.rows[first::2]).mean()
        halves.append(mean if contrast is None else np.maximum(mean - contrast, np.float32(0)))
    one, other = halves
    return overlap(one, other), spearman(one.ravel(), other.ravel()), (one, other)


def dealt_out(ready: Ready, seed: int) -> Ready | None:
    """The probe with its picture's features dealt to other image positions; None where they cannot be told apart."""
    seen = ready.features
    if seen is None:
        return None
    order = torch.as_tensor(np.random.default_rng(seed).permutation(len(seen.features)))
    output = seen.output
    if output is not None:
        given = output["pooler_output"]
        parts = list(given) if isinstance(given, list | tuple) else [given]
        if len(parts) != 1 or parts[0].reshape(-1, parts[0].shape[-1]).shape != seen.features.shape or len(output) > 1:
            return None
        mixed = parts[0].reshape(seen.features.shape)[order].reshape(parts[0].shape)
        output = type(output)(pooler_output=(mixed,) if isinstance(given, list | tuple) else mixed)
    mixed_features: Seen = dataclasses.replace(seen, features=seen.features[order], output=output)
    return dataclasses.replace(ready, features=mixed_features)


def mean_shares(loaded: Loaded, ready: Sequence[Ready]) -> Memberships:
    """(n_layers, d_mlp): mean evidence share of prepared probes, batched by probe (its sides together)."""
    total = np.zeros((loaded.anatomy.n_layers, loaded.anatomy.d_mlp), np.float64)
    for entry in ready:
        rows = [
            Row(embed(loaded, with_answer(entry.prompt, part.ids), entry.features), part, entry.prompt.length)
            for part in entry.parts
        ]
        sides = score_rows(loaded, rows)
        scores = sum(part.sign * side.totals for part, side in zip(entry.parts, sides, strict=True))
        assert isinstance(scores, torch.Tensor)
        total += evidence_share(scores.cpu().numpy())
    return np.asarray(total / max(len(ready), 1), np.float32)


def _pointing(loaded: Loaded, ready: Sequence[Ready], memberships: Memberships) -> dict[str, Interval]:
    hits: dict[str, list[bool]] = {"concept": [], "attention": []}
    by_chance: list[float] = []
    for entry in ready:
        heat = concept_map(loaded, entry, memberships) if entry.probe.box is not None else None
        if heat is None:
            continue
        hits["concept"].append(points(entry, heat))
        hits["attention"].append(points(entry, last_layer_attention(loaded, entry)))
        by_chance.append(chance(entry))
    if not by_chance:
        return {}
    return {**{name: proportion(found) for name, found in hits.items()}, "chance": mean_interval(by_chance)}


def validate(
    loaded: Loaded,
    candidate: Candidate,
    alpha: float = ALPHA,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> ConceptValidation:
    """Validate one concept. `on_progress(done, all)` counts probes. Raises Cancelled between probes, RequestError where
    the α-cut is empty or there are no held-out probes."""
    chosen, d_mlp = cut(candidate.memberships, alpha), candidate.memberships.shape[1]
    if not chosen or not candidate.probes or not candidate.others:
        raise RequestError(
            f"Validation of {candidate.name!r} takes held-out probes of its own ({len(candidate.probes)} given) and of "
            f"others ({len(candidate.others)}), and an α-cut with neurons ({len(chosen)} at α = {alpha:g})."
        )
    device, n_all = loaded.device, len(candidate.probes) + len(candidate.others)
    rival = zeroed(members(candidate.baseline, len(chosen)).tolist(), d_mlp, device)
    another = zeroed(members(candidate.another, len(chosen)).tolist(), d_mlp, device)
    own = zeroed(chosen, d_mlp, device)

    def each(probes: Sequence[Probe], before: int) -> list[Ready]:
        found = []
        for k, probe in enumerate(probes):
            if cancelled():
                raise Cancelled("Stopped between two probes of a validation.")
            found.append(prepare_one(loaded, probe))
            rows = [NO_EDITS, own]
            if probes is candidate.probes:
                rows += [zeroed(random_set(chosen, d_mlp, k), d_mlp, device), rival, another]
            table.append(right_under(loaded, found[-1], rows))
            if on_progress is not None:
                on_progress(before + k + 1, n_all)
        return found

    table: list[list[bool]] = []
    ready = each(candidate.probes, 0)
    mine = np.array(table)
    table = []
    each(candidate.others, len(ready))
    theirs = np.array(table)
    if cancelled():
        raise Cancelled("Stopped before the stability of a concept was measured.")
    halves, correlation, evidence = split_half(candidate.evidence, candidate.contrast)
    between = max((overlap(half, other) for half in evidence for other in candidate.between), default=0.0)
    pairs = [(entry, dealt) for k, entry in enumerate(ready[:SHUFFLED]) if (dealt := dealt_out(entry, k)) is not None]
    shuffled = float("nan")
    if pairs:
        as_is, mixed = (mean_shares(loaded, [pair[side] for pair in pairs]) for side in (0, 1))
        shuffled = overlap(as_is, mixed)
    pointing = _pointing(loaded, ready, candidate.memberships)
    return ConceptValidation(
        name=candidate.name,
        kind=candidate.kind,
        tokens=max((entry.target.end or 0) - entry.target.start for entry in ready),
        size=len(chosen),
        alpha=alpha,
        plain=proportion(mine[:, 0].tolist()),
        own=proportion(mine[:, 1].tolist()),
        random=proportion(mine[:, 2].tolist()),
        baseline=proportion(mine[:, 3].tolist()),
        other=proportion(mine[:, 4].tolist()),
        others_plain=proportion(theirs[:, 0].tolist()),
        others_own=proportion(theirs[:, 1].tolist()),
        split_half=halves,
        split_half_correlation=correlation,
        between=between,
        shuffled=shuffled,
        pointing=pointing,
        criteria=criteria(mine.astype(float), theirs.astype(float), halves, shuffled, between, pointing),
        answers=tuple(tuple(row) for row in mine.tolist()),
        others_answers=tuple(tuple(row) for row in theirs.tolist()),
    )


if __name__ == "__main__":
    from engine.concepts.report import main

    main()
