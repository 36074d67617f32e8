"""Do a concept's latents carry it? On probes that the memberships were not made of (METHODS.md §2, for latents).

1. Concepts are taken in turn from every kind of the built-in world; of each the α-cut of its latents in the shipped
   library, and held-out probes (split "test").
2. *Joint ablation*: of each probe, would greedy decoding still give exactly the expected answer with these latents zero
   wherever the SAE stands (error kept), answer included: nothing; the α-cut; as many random latents that are active in
   this very probe, none of the α-cut (another set for each probe); another concept's first as many, of the same kind?
   And how much log-probability does the part lose that says the concept?
3. Differences probe by probe, with a bootstrap interval over probes and McNemar's exact test.

`python -m engine.sae.memberships validate` prints it.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.builtin.probes import Split
from engine.concepts.batching import side_values
from engine.concepts.build import world_concept_probes
from engine.concepts.building import rows_of
from engine.concepts.membership import Ready, prepare_one
from engine.concepts.results import Interval, mean_interval, proportion
from engine.contract import Concept, RequestError
from engine.evaluation.stats import difference
from engine.features import forward
from engine.hooks import replace_site
from engine.interventions import members
from engine.loading import Loaded
from engine.running import end_tokens
from engine.sae import loading
from engine.sae.activations import at_site
from engine.sae.contract import DEFAULT
from engine.sae.influence import standing, standing_from
from engine.sae.memberships import shipped
from engine.sae.sae import Sae

ARMS = ("nothing", "own", "random active", "another concept's")


@dataclasses.dataclass(frozen=True)
class Checked:
    """One concept: `size` of its α-cut, how many of it are active in a probe (mean), and for each probe, in the order
    of ARMS, whether the answer is right and the log-probability (nats) of the part that says the concept."""

    name: str
    kind: str
    size: int
    active: float
    right: tuple[tuple[bool, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]


def spread(known: Sequence[Concept], n: int) -> list[Concept]:
    """`n` concepts, taken in turn from every kind, evenly over the kind's list."""
    by_kind: dict[str, list[Concept]] = {}
    for concept in known:
        by_kind.setdefault(concept.kind, []).append(concept)
    quota = dict.fromkeys(by_kind, 0)
    while sum(quota.values()) < min(n, len(known)):
        for kind, mine in by_kind.items():
            if quota[kind] < len(mine) and sum(quota.values()) < n:
                quota[kind] += 1
    return [
        by_kind[kind][int(place)]
        for kind, count in quota.items()
        for place in np.linspace(0, len(by_kind[kind]) - 1, count).round()
    ]


def set_of(concept: Concept, alpha: float) -> list[int]:
    """The α-cut."""
    return [int(c) for c in np.flatnonzero(concept.memberships[0] >= alpha)]


@torch.no_grad()
def under(
    loaded: Loaded, sae: Sae, ready: Ready, sets: Sequence[Sequence[int]]
) -> tuple[tuple[bool, ...], tuple[float, ...]]:
    """(is the answer right?, log-probability of the part that says the concept) with each of `sets` zeroed, by one
    teacher-forced pass: greedy decoding gives the answer if and only if every argmax along it is right."""
    (row, *_), first = rows_of(loaded, ready), standing_from(loaded, ready.prompt, DEFAULT)
    change = standing(sae, DEFAULT, first, [torch.tensor(sorted(chosen), dtype=torch.long) for chosen in sets])
    begin, ids = row.length - 1, row.part.ids
    with replace_site(loaded.anatomy, sae.info.layer, sae.info.site, change):
        logits = forward(loaded, row.inputs.repeat(len(sets)), row.size - begin)
    best, ends = logits[:, : len(ids) + 1].argmax(-1).tolist(), end_tokens(loaded)
    right = tuple(tuple(one[:-1]) == ids and one[-1] in ends for one in best)
    return right, tuple(side_values(logits, [row] * len(sets), begin).tolist())


def check(
    loaded: Loaded, sae: Sae, concept: Concept, another: Concept, probes: int, alpha: float, split: Split = "test"
) -> Checked:
    """One concept on `probes` probes of `split`. Raises RequestError for an empty α-cut."""
    own = set_of(concept, alpha)
    if not own:
        raise RequestError(f"The α-cut of “{concept.name}” at α = {alpha:g} holds no latent. Lower α.")
    other = members(another.memberships, len(own)).tolist()
    rights, logprobs, shares = [], [], []
    for k, probe in enumerate(world_concept_probes(concept.name, probes, split)):
        ready = prepare_one(loaded, probe)
        first = standing_from(loaded, ready.prompt, DEFAULT)
        H = sae.encode(at_site(loaded, rows_of(loaded, ready)[0].inputs, sae.info.layer, sae.info.site)[0, first:])
        active = set(torch.nonzero((H > 0).any(0))[:, 0].tolist())
        pool = sorted(active - set(own))
        dealt = np.random.default_rng(k).choice(pool, min(len(own), len(pool)), replace=False).tolist()
        right, logprob = under(loaded, sae, ready, [[], own, dealt, other])
        rights.append(right)
        logprobs.append(logprob)
        shares.append(len(active & set(own)))
    return Checked(concept.name, concept.kind, len(own), float(np.mean(shares)), tuple(rights), tuple(logprobs))


def summary(checked: Sequence[Checked]) -> dict[str, Any]:
    """Over all probes: accuracy of each arm, what each loses of the log-probability, and `own` against the others."""
    right = np.array([row for one in checked for row in one.right])
    logprobs = np.array([row for one in checked for row in one.logprobs])
    accuracy: dict[str, Interval] = {arm: proportion(right[:, k].tolist()) for k, arm in enumerate(ARMS)}
    lost = {arm: mean_interval(logprobs[:, 0] - logprobs[:, k]) for k, arm in enumerate(ARMS) if k}
    gaps = {
        arm: difference(right[:, 1].astype(float).tolist(), right[:, k].astype(float).tolist(), 0)
        for k, arm in enumerate(ARMS)
        if k != 1
    }
    return {"accuracy": accuracy, "lost": lost, "gaps": gaps}


def table(checked: Sequence[Checked], alpha: float) -> str:
    """All of it as text."""
    lines = [f"{'concept':18} {'kind':10} {'latents':>7} {'active':>6}  " + "  ".join(f"{arm:>17}" for arm in ARMS)]
    for one in checked:
        shares = np.mean(one.right, axis=0)
        lines.append(
            f"{one.name:18} {one.kind:10} {one.size:7} {one.active:6.1f}  " + "  ".join(f"{x:17.2f}" for x in shares)
        )
    found = summary(checked)
    lines += ["", f"all {len(checked)} concepts, α = {alpha:g}; answers exactly right:"]
    lines += [f"  {arm:18} {interval}" for arm, interval in found["accuracy"].items()]
    lines += ["log-probability of the part that says the concept, lost (nats):"]
    lines += [f"  {arm:18} {interval}" for arm, interval in found["lost"].items()]
    lines += ["own − the others, probe by probe:"]
    lines += [
        f"  against {arm:18} {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}], McNemar p = {gap.p:.2g}"
        for arm, gap in found["gaps"].items()
    ]
    return "\n".join(lines)


def report(
    loaded: Loaded, folder: Path, concepts: int, probes: int, alpha: float, split: Split, *, as_json: bool
) -> str:
    """Check the library beside the SAE in `folder`. Raises RequestError where there is none."""
    sae = loading.read(str(folder)).to(loaded.device)
    known = shipped(folder, sae, loaded.revision).concepts
    if not known:
        raise RequestError(f"{folder} has no library of latents. Make it: python -m engine.sae.memberships build")
    checked = []
    for concept in spread(known, concepts):
        mine = [other for other in known if other.kind == concept.kind]
        another = mine[(mine.index(concept) + 1) % len(mine)]
        checked.append(check(loaded, sae, concept, another, probes, alpha, split))
    if as_json:
        found = {
            key: {arm: dataclasses.asdict(one) for arm, one in part.items()} for key, part in summary(checked).items()
        }
        return json.dumps({"alpha": alpha, "concepts": [dataclasses.asdict(one) for one in checked], **found}, indent=1)
    return table(checked, alpha)
