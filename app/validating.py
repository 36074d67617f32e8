"""The job `validate`: does a concept work, on probes that it was not made of (engine.concepts.results)?

1. A concept of the library is tested on probes that the model's world draws for it in the split `test`; what it was
   built from, and what it is compared with, is drawn in the split `build`. Of the others of its kind a fixed sample.
2. A person's own concept has no other probes than its own, so it is cross-fitted: memberships made of one half of the
   probes are tested on the other half (BUILD of it at most), both ways, and the answers are counted together. So is its
   contrast.
3. `params`: concept (its name), stamp (validated.stamp: which memberships), alpha, model_revision.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sqlalchemy import select

from app import own, validated
from app.conceptjobs import Done, Opened, Probe, Room
from app.tables import ConceptRow, OwnConcept, ProbeRow
from engine.contract import Concept, Floats, IsCancelled, OnProgress, RequestError, concepts

ALPHA = 0.5
BUILD, HELD_OUT = 24, 12
"""Probes of a library's concept that its evidence is made of again, and that it is tested on."""
OTHERS, EACH = 6, 4
"""Other concepts that it is compared with, and probes of each."""
FEWEST = 4
"""Probes of an own concept, of which half is held out."""
Evidence = concepts.evidence.Evidence
results = concepts.results


@dataclasses.dataclass(frozen=True, eq=False)
class Other:
    """A concept to compare with: its evidence, the probes that it is made of, and those that are held out."""

    name: str
    evidence: Evidence
    probes: Sequence[Probe]
    held_out: Sequence[Probe]


class Steps:
    """Progress of a job in parts: `part(size)` = what the next part reports to, which counts as `size` steps."""

    def __init__(self, told: OnProgress, total: int) -> None:
        self.told, self.total, self.done = told, total, 0

    def part(self, size: int) -> Callable[[int, int], None]:
        before = self.done
        self.done = min(self.done + size, self.total)
        return lambda done, total: self.told(min(before + size * done // max(total, 1), self.total), self.total)


def steps(own_probes: int, *, specific: bool = False, drawn: bool = True) -> int:
    """Steps of the whole job (`own_probes` = 0: a concept of the library): the estimate. Of an own one, `specific`: it
    is contrasted with others; `drawn`: what it is compared with is drawn from the world."""
    if not own_probes:
        return 2 * (BUILD + OTHERS * EACH) + 2 * HELD_OUT
    half = min(own_probes // 2, BUILD)
    return drawn * OTHERS * EACH + 2 * (half + specific * OTHERS * EACH + half + HELD_OUT)


def validate(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """The JSON of a ConceptValidation with `passes`, `reason`, `figures`, `how` (on which probes) and `compared`."""
    name = params["concept"]
    known = {concept.name: concept for concept in room.engine.library().concepts}
    if name not in known:
        raise RequestError(f"The concept “{name}” is not in the library any more.")
    with room.database.read() as session:
        mine = OwnConcept.model_revision == room.info.revision
        row = session.scalars(select(OwnConcept).where(mine, OwnConcept.name == name)).first()
    if row is not None:
        found, how, compared = _cross_fitted(room, row, known, params["alpha"], on_progress, cancelled)
    else:
        found, how, compared = _of_library(room, known, known[name], params["alpha"], on_progress, cancelled)
    told = _finite({**dataclasses.asdict(found), "passes": found.passes, "reason": found.reason})
    told |= {"figures": results.figures_of(told), "how": how, "compared": compared}
    with room.database.write() as session:
        validated.figure(session, room.info.revision, room.engine.library(), {(name, params["stamp"]): told["figures"]})
    return told, None


def _of_library(
    room: Room, known: dict[str, Concept], concept: Concept, alpha: float, told: OnProgress, cancelled: IsCancelled
) -> tuple[results.ConceptValidation, str, list[str]]:
    kinds = dict(room.engine.world_concepts())
    if concept.name not in kinds:
        raise RequestError(
            f"No held-out probes of “{concept.name}” are known: a concept is validated on probes that it was not made "
            "of. Make a concept of your own from probes; that one can be validated."
        )
    at = Steps(told, steps(0))
    build = room.engine.world_probes(concept.name, BUILD, "build")
    evidence = _evidence(room, build, at.part(BUILD), cancelled)
    near = [name for name, kind in kinds.items() if kind == concept.kind and name in known and name != concept.name]
    others = _from_world(room, near or [name for name in known if name in kinds], concept.name, at, cancelled)
    candidate = _candidate(
        room, concept, evidence, build, room.engine.world_probes(concept.name, HELD_OUT, "test"), others, known,
        at, cancelled, specific=True,
    )  # fmt: skip
    found = room.engine.validate_concept(candidate, alpha, at.part(2 * HELD_OUT), cancelled)
    how = f"On {HELD_OUT} probes drawn anew for it, of which none was used to build it, and {HELD_OUT} of others."
    return found, how, [other.name for other in others]


def _cross_fitted(
    room: Room, row: OwnConcept, known: dict[str, Concept], alpha: float, told: OnProgress, cancelled: IsCancelled
) -> tuple[results.ConceptValidation, str, list[str]]:
    shape = (room.info.n_layers, room.info.d_mlp)
    if row.expression:
        raise RequestError(
            f"“{row.name}” is derived from other concepts and has no probes of its own. Validate those that it names."
        )
    rows, evidence = _built(room, row, shape)
    if len(rows) < FEWEST:
        raise RequestError(
            f"“{row.name}” has {len(rows)} probes that the model took; validation holds half of them out and needs "
            f"at least {FEWEST}. Add probes, and build it."
        )

    def opened(some: Sequence[ProbeRow], fold: int, most: int = BUILD) -> Opened:
        return Opened(some[fold::2][:most], room.store)

    folds = []
    theirs = _own_others(room, row, shape)
    specific = row.mode == "specific" and any(name in row.contrast for name, *_ in theirs)
    at = Steps(told, steps(len(rows), specific=specific, drawn=not theirs))
    kinds = dict(room.engine.world_concepts())
    drawn = [] if theirs else _from_world(room, [n for n in kinds if n in known], row.name, at, cancelled)
    if not theirs and not drawn:
        raise RequestError(
            f"There is nothing to compare “{row.name}” with: build a second concept from probes, of something else."
        )
    for fold in (0, 1):
        half = Evidence(shape, evidence.rows[fold::2])
        others = drawn or [
            Other(
                name, Evidence(shape, whole.rows[fold::2]), opened(some, fold, 2 * EACH), opened(some, 1 - fold, EACH)
            )
            for name, some, whole in theirs
        ]
        contrasted = [other.evidence.mean() for other in others if other.name in row.contrast]
        against = concepts.evidence.contrast_of(contrasted) if row.mode == "specific" else None
        mode: concepts.evidence.Mode = "specific" if row.mode == "specific" else "raw"
        memberships = half.memberships(row.map, row.quantile, mode, against)
        concept = Concept(row.name, row.kind, half.n_probes, memberships)
        candidate = _candidate(
            room, concept, half, opened(rows, fold), opened(rows, 1 - fold), others, known, at, cancelled,
            specific=against is not None,
        )  # fmt: skip
        candidate = dataclasses.replace(candidate, evidence=evidence)
        size = len(candidate.probes) + len(candidate.others)
        folds.append(room.engine.validate_concept(candidate, alpha, at.part(size), cancelled))
    how = (
        f"Cross-fitted: memberships made of one half of its {len(rows)} probes were tested on the other half, both "
        "ways. The memberships that the pages show are made of all of them."
    )
    return results.pooled(folds), how, [other.name for other in others]


def _candidate(
    room: Room,
    concept: Concept,
    evidence: Evidence,
    build: Sequence[Probe],
    held_out: Sequence[Probe],
    others: Sequence[Other],
    known: dict[str, Concept],
    at: Steps,
    cancelled: IsCancelled,
    *,
    specific: bool,
) -> results.Candidate:
    """`specific`: memberships are of what exceeds the others' evidence, and so is the baseline's."""
    means = [other.evidence.mean() for other in others]
    contrast = concepts.evidence.contrast_of(means) if specific else None
    baseline = _baseline(room, build, at.part(len(build)), cancelled)
    if specific:
        theirs = [probe for other in others for probe in other.probes]
        baseline = np.maximum(baseline - _baseline(room, theirs, at.part(len(theirs)), cancelled), np.float32(0))
    between = means
    if contrast is not None:
        whole = (contrast * len(means) + evidence.mean()) / (len(means) + 1)
        between = [np.maximum(mean - whole, np.float32(0)) for mean in means]
    return results.Candidate(
        name=concept.name,
        kind=concept.kind,
        memberships=concept.memberships,
        evidence=evidence,
        contrast=contrast,
        baseline=baseline,
        another=_another(others, known),
        probes=held_out,
        others=[
            probe for some in itertools.zip_longest(*(other.held_out for other in others)) for probe in some if probe
        ][:HELD_OUT],
        between=between,
    )


def _another(others: Sequence[Other], known: dict[str, Concept]) -> Floats:
    """Memberships of the first of the others that the library has."""
    named = [known[other.name].memberships for other in others if other.name in known]
    return named[0] if named else others[0].evidence.mean()


def _baseline(room: Room, probes: Sequence[Probe], told: OnProgress, cancelled: IsCancelled) -> Floats:
    """The single-token baseline's evidence, a few probes at a time."""
    total = np.zeros((room.info.n_layers, room.info.d_mlp), np.float64)
    for start in range(0, len(probes), EACH):
        some = [probes[k] for k in range(start, min(start + EACH, len(probes)))]
        total += room.engine.baseline_evidence(some, cancelled) * np.float64(len(some))
        told(start + len(some), len(probes))
    return np.asarray(total / max(len(probes), 1), np.float32)


def _evidence(room: Room, probes: Sequence[Probe], told: OnProgress, cancelled: IsCancelled) -> Evidence:
    found = room.engine.probe_evidence(probes, (), None, told, cancelled)
    return Evidence((room.info.n_layers, room.info.d_mlp)).add(result.shares for result in found.results)


def _from_world(room: Room, names: Sequence[str], but: str, at: Steps, cancelled: IsCancelled) -> list[Other]:
    """A fixed sample of these concepts, with probes that the model's world draws."""
    rest = [name for name in names if name != but]
    chosen = random.Random(f"validation {but}").sample(rest, min(OTHERS, len(rest)))  # noqa: S311 - a fixed draw
    made = []
    for name in chosen:
        build = room.engine.world_probes(name, EACH, "build")
        evidence = _evidence(room, build, at.part(EACH), cancelled)
        held_out = room.engine.world_probes(name, math.ceil(HELD_OUT / len(chosen)), "test")
        made.append(Other(name, evidence, build, held_out))
    return made


def _built(room: Room, row: OwnConcept, shape: tuple[int, int]) -> tuple[list[ProbeRow], Evidence]:
    """The probes of an own concept that the model took, and their evidence, in the same order."""
    with room.database.read() as session:
        chosen = select(ProbeRow).where(ProbeRow.concept_id == row.id, ProbeRow.shares.is_not(None))
        return list(session.scalars(chosen.order_by(ProbeRow.id))), own.evidence(session, row.id, shape)


def _own_others(room: Room, row: OwnConcept, shape: tuple[int, int]) -> list[tuple[str, list[ProbeRow], Evidence]]:
    """Other own concepts with at least two built probes, those that it is contrasted with (all of them) first: name,
    probes, their evidence."""
    with room.database.read() as session:
        rest = [other for other in own.rows(session, room.info.revision) if other.id != row.id and not other.expression]
    rest.sort(key=lambda other: other.name not in row.contrast)
    found: list[tuple[str, list[ProbeRow], Evidence]] = []
    for other in rest:
        if len(found) >= OTHERS and other.name not in row.contrast:
            break
        probes, evidence = _built(room, other, shape)
        if len(probes) >= 2:
            found.append((other.name, probes, evidence))
    return found


def held_out(room: Room, name: str, n: int) -> tuple[list[Probe], str]:
    """Up to `n` probes of a concept that it was not built from, and which they are, in words; of an own concept, which
    has no others, those that it was built from. Raises RequestError where there are none."""
    shape = (room.info.n_layers, room.info.d_mlp)
    with room.database.read() as session:
        mine = OwnConcept.model_revision == room.info.revision
        row = session.scalars(select(OwnConcept).where(mine, OwnConcept.name == name)).first()
    if row is not None:
        probes = list(Opened(_built(room, row, shape)[0][:n], room.store))
        if not probes:
            raise RequestError(f"“{name}” has no probes of its own that the model took. Add probes, and build it.")
        return probes, f"Over {len(probes)} of the probes that it was built from."
    if name not in dict(room.engine.world_concepts()):
        raise RequestError(f"No probes of “{name}” are known. Make a concept of your own from probes.")
    return list(room.engine.world_probes(name, n, "test")), f"Over {n} probes that it was not built from."


def params_of(row: ConceptRow, alpha: float = ALPHA) -> dict[str, Any]:
    """What a validation of this concept depends on, as a job's `params`."""
    return {
        "concept": row.name,
        "stamp": validated.stamp(row),
        "alpha": alpha,
        "model_revision": row.model_revision,
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not finite is null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
