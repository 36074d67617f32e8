"""The job `latentconcepts`: memberships of an SAE's latents in concepts, made as those of neurons are (METHODS.md §2).

`params`: model_revision, sae (its id), name, concept (one concept's name, '' = all that lack memberships or whose
memberships are out of date), probes (of each concept of the built-in world), of (hashes which concepts these were).
Evidence is stored concept by concept, under the job's identity: whatever stops the job loses one concept.
"""

import base64
import dataclasses
import hashlib
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app import latentconcepts, longjobs, own
from app.conceptjobs import Done, Opened, Room
from app.tables import ConceptRow, EvaluationPart, JobRow, OwnConcept, ProbeRow
from engine.contract import Floats, IsCancelled, ModelInfo, OnProgress, RequestError, concepts, saes

KIND = "latentconcepts"
PROBES, MOST = 24, 200
"""Probes of a concept of the built-in world: unless said otherwise, and at most."""
RECENT = 20
Evidence = concepts.evidence.Evidence
Shares = concepts.evidence.Shares


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A concept and how its memberships are made of evidence. `own`: its id, '' of the built-in world's; `contrast` =
    the concepts whose evidence is taken away (itself is none of them). `probes`: how many."""

    name: str
    fingerprint: str
    own: str
    probes: int
    map: str
    mode: str
    contrast: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.name} {self.fingerprint}"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a job would do: `targets` get memberships, for which evidence of `sources` is taken; `seconds` = how long
    that takes, None where nothing is known of it."""

    targets: tuple[Source, ...]
    sources: tuple[Source, ...]
    seconds: float | None

    @property
    def probes(self) -> int:
        return sum(source.probes for source in self.sources)


def plan(session: Session, info: ModelInfo, sae_id: str, probes: int = PROBES, concept: str = "") -> Plan:
    """For one concept ('' = all). Derived concepts have no probes, so that none is made for them."""
    known = {source.name: source for source in _sources(session, info, probes)}
    there = latentconcepts.made(session, sae_id)
    stale = [source for source in known.values() if there.get(source.name) != source.fingerprint]
    targets = [source for source in stale if concept in ("", source.name)]
    needed = {source.name for source in targets}.union(*(source.contrast for source in targets))
    sources = [known[name] for name in sorted(needed) if name in known]
    pace = _pace(session, info.revision)
    seconds = None if pace is None else pace * sum(source.probes for source in sources)
    return Plan(tuple(targets), tuple(sources), seconds)


def _sources(session: Session, info: ModelInfo, probes: int) -> list[Source]:
    chosen = select(ConceptRow.name, ConceptRow.kind, ConceptRow.fingerprint, ConceptRow.recipe)
    rows = session.execute(chosen.where(ConceptRow.model_revision == info.revision).order_by(ConceptRow.name)).all()
    mine = {row.name: row for row in own.rows(session, info.revision)}
    asked = select(ProbeRow.concept_id, func.count()).where(ProbeRow.question != "", ProbeRow.refused == "")
    counts: dict[str, int] = {row[0]: row[1] for row in session.execute(asked.group_by(ProbeRow.concept_id))}
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row.name not in mine:
            kinds.setdefault(row.kind, []).append(row.name)
    contrasts = {kind: tuple(names) for kind, names in kinds.items()}
    found = []
    for row in rows:
        person = mine.get(row.name)
        if person is not None:
            count = counts.get(person.id, 0)
            if count and not person.expression:
                found.append(_own(person, row.fingerprint, count))
        elif info.builtin:
            phi = row.recipe.get("map", own.MAP)
            found.append(Source(row.name, row.fingerprint, "", probes, phi, "specific", contrasts[row.kind]))
    return found


def _own(row: OwnConcept, fingerprint: str, count: int) -> Source:
    contrast = tuple(row.contrast) if row.mode == "specific" else ()
    return Source(row.name, fingerprint, row.id, count, row.map, row.mode, contrast)


def _pace(session: Session, model_revision: str) -> float | None:
    """Seconds a probe, of the newest such job with this model; where there is none, of a concept's building, whose
    passes cost about as much."""
    mine = select(JobRow).where(JobRow.kind == KIND, JobRow.state == "done")
    for row in session.scalars(mine.order_by(JobRow.finished.desc()).limit(RECENT)):
        if row.params["model_revision"] == model_revision and row.result and row.result["seconds_per_probe"]:
            return float(row.result["seconds_per_probe"])
    return own.pace(session, model_revision)


def params_of(info: ModelInfo, sae_id: str, name: str, concept: str, probes: int, found: Plan) -> dict[str, Any]:
    spelled = repr([(source.key, source.probes) for source in found.targets])
    return {
        "model_revision": info.revision, "sae": sae_id, "name": name, "concept": concept, "probes": probes,
        "of": hashlib.sha256(spelled.encode()).hexdigest()[:16],
    }  # fmt: skip


def newest(session: Session, sae_ids: Sequence[str]) -> dict[str, JobRow]:
    """The newest such job of each of these SAEs."""
    rows = session.scalars(select(JobRow).where(JobRow.kind == KIND).order_by(JobRow.queued, JobRow.id))
    return {row.params["sae"]: row for row in rows if row.params["sae"] in sae_ids}


def build(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """Evidence of every concept that is needed, and the memberships that follow, stored at once."""
    identity, sae_id = longjobs.identity(KIND, None, params), params["sae"]
    with room.database.read() as session:
        found = plan(session, room.info, sae_id, params["probes"], params["concept"])
        parts = _parts(session, identity)
    done, ran, began, total = 0, 0, time.monotonic(), found.probes
    evidence: dict[str, Evidence] = {}
    for source in found.sources:
        if source.key not in parts:

            def told(k: int, _all: int, before: int = done) -> None:
                on_progress(before + k, total)

            made = room.engine.latent_evidence(sae_id, _probes(room, source), told, cancelled)
            ran += source.probes
            parts[source.key] = _keep(room, identity, source, made)
        done += source.probes
        on_progress(done, total)
        evidence[source.name] = _evidence(parts[source.key])
    stored = [
        (target, _memberships(target, evidence)) for target in found.targets if evidence[target.name].n_probes
    ]  # fmt: skip
    with room.database.write() as session:
        for target, memberships in stored:
            recipe = {
                "map": target.map, "quantile": saes.LATENT_QUANTILE, "mode": target.mode, "probes": target.probes
            }  # fmt: skip
            latentconcepts.store(session, sae_id, target.name, target.fingerprint, recipe, memberships)
        session.execute(delete(EvaluationPart).where(EvaluationPart.evaluation == identity))
    return {
        "concepts": len(stored), "probes": total, "seconds_per_probe": (time.monotonic() - began) / ran if ran else None
    }, None  # fmt: skip


def _probes(room: Room, source: Source) -> Sequence[Any]:
    if not source.own:
        return room.engine.world_probes(source.name, source.probes)
    asked = select(ProbeRow).where(ProbeRow.concept_id == source.own, ProbeRow.question != "", ProbeRow.refused == "")
    with room.database.read() as session:
        return Opened(list(session.scalars(asked.order_by(ProbeRow.id))), room.store)


def _parts(session: Session, identity: str) -> dict[str, Any]:
    mine = select(EvaluationPart).where(EvaluationPart.evaluation == identity)
    return {part.key: part.value for part in session.scalars(mine)}


def _keep(room: Room, identity: str, source: Source, made: Evidence) -> dict[str, Any]:
    """The mean evidence share, to the bit: memberships need no more of it."""
    mean = concepts.evidence.pack(made.mean())
    value = {"probes": made.n_probes, "mean": base64.b64encode(mean.to_bytes()).decode()}
    with room.database.write() as session:
        count = select(func.count()).select_from(EvaluationPart).where(EvaluationPart.evaluation == identity)
        session.add(
            EvaluationPart(evaluation=identity, key=source.key, place=session.scalar(count) or 0, value=value)
        )  # fmt: skip
    return value


def _evidence(part: dict[str, Any]) -> Evidence:
    """Of one row, the mean of all; of none where no probe could be taken."""
    mean = Shares.from_bytes(base64.b64decode(part["mean"]))
    return Evidence(mean.shape, (mean,) if part["probes"] else ())


def _memberships(target: Source, evidence: dict[str, Evidence]) -> Floats:
    names = [name for name in target.contrast if name != target.name and name in evidence]
    others = [evidence[name].mean() for name in names if evidence[name].n_probes]
    mode: concepts.evidence.Mode = "specific" if target.mode == "specific" else "raw"
    contrast = concepts.evidence.contrast_of(others)
    return evidence[target.name].memberships(target.map, saes.LATENT_QUANTILE, mode, contrast)


def probes_of(typed: str) -> int:
    """A number of probes as it was typed, '' = PROBES. Raises RequestError."""
    text = typed.strip() or str(PROBES)
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST:
        raise RequestError(f"The number of probes is “{text[:20]}”; it must be between 1 and {MOST}.")
    return int(text)


RUNNERS = {KIND: build}
