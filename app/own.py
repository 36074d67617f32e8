"""A person's own concepts: their rows become the engine's concepts, and join its library.

Memberships are not stored: they follow from the probes' evidence shares, the map and the mode, or from the expression.
"""

import dataclasses
import logging
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from app.tables import LIVE, JobRow, OwnConcept, ProbeRow
from engine.contract import Concept, Engine, Floats, ModelInfo, RequestError, concepts

log = logging.getLogger("sfumato.own")
Evidence = concepts.evidence.Evidence
MAP, QUANTILE, MODE = "linear", 0.98, "raw"
"""How memberships are made where a person has chosen nothing."""
RECENT = 20
KIND = "own"
MAX_PROBES = 500
MAX_DRAWN = 200
"""Probes that a concept may have, and that may be drawn at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A concept as it was typed: `forms` one a line. `source` of its probes: 'file', 'world' or 'none' (yet); of the
    built-in world, `n` of the concept `world`."""

    name: str = ""
    kind: str = KIND
    forms: str = ""
    source: str = "file"
    world: str = ""
    n: str = "24"


def rows(session: Session, model_revision: str) -> list[OwnConcept]:
    """Those made for this model, in the order in which they were made (a derived one after those it names)."""
    mine = select(OwnConcept).where(OwnConcept.model_revision == model_revision)
    return list(session.scalars(mine.order_by(OwnConcept.created, OwnConcept.id)))


def probes(session: Session, concept_id: str) -> list[ProbeRow]:
    """A concept's probes without their shares, in their order; also lines of files that could not be taken."""
    chosen = select(ProbeRow).where(ProbeRow.concept_id == concept_id).options(defer(ProbeRow.shares))
    return list(session.scalars(chosen.order_by(ProbeRow.id)))


def built(session: Session, concept_id: str) -> set[int]:
    """Ids of the probes that have evidence."""
    chosen = select(ProbeRow.id).where(ProbeRow.concept_id == concept_id, ProbeRow.shares.is_not(None))
    return set(session.scalars(chosen))


def builds(session: Session, concept_id: str) -> list[JobRow]:
    """The jobs that built this concept, newest first."""
    mine = (JobRow.kind == "build") & (JobRow.params["concept"].as_string() == concept_id)
    return list(session.scalars(select(JobRow).where(mine).order_by(JobRow.queued.desc(), JobRow.id)))


def adopting(session: Session, concept_id: str) -> list[JobRow]:
    """Live jobs by which a change of this concept reaches the library."""
    mine = (JobRow.kind == "adopt") & (JobRow.params["concept"].as_string() == concept_id)
    return list(session.scalars(select(JobRow).where(mine, JobRow.state.in_(LIVE))))


def pace(session: Session, model_revision: str) -> float | None:
    """Seconds a probe of the newest finished build with this model; None if there is none."""
    of_model = JobRow.params["model_revision"].as_string() == model_revision
    chosen = select(JobRow.result).where(JobRow.kind == "build", of_model, JobRow.finished.is_not(None))
    for result in session.scalars(chosen.order_by(JobRow.finished.desc()).limit(RECENT)):
        if result and result.get("seconds_per_probe"):
            return float(result["seconds_per_probe"])
    return None


def naming(session: Session, row: OwnConcept) -> list[str]:
    """The derived concepts whose expression mentions this one."""
    found = []
    for other in rows(session, row.model_revision):
        if other.expression and other.id != row.id:
            try:
                names = concepts.algebra.names_in(concepts.algebra.parse(other.expression))
            except RequestError:
                continue
            found += [other.name] if row.name in names else []
    return found


def evidence(session: Session, concept_id: str, shape: tuple[int, int]) -> Evidence:
    """What is known of a concept's probes so far, in their order."""
    chosen = select(ProbeRow.shares).where(ProbeRow.concept_id == concept_id, ProbeRow.shares.is_not(None))
    stored = session.scalars(chosen.order_by(ProbeRow.id))
    shares = [concepts.evidence.Shares.from_bytes(blob) for blob in stored if blob is not None]
    return Evidence(shape).add(shares)


def contrast_of(session: Session, row: OwnConcept, shape: tuple[int, int]) -> Floats | None:
    """E_¬c: the mean evidence of the own concepts that this one is contrasted with; None where none is built."""
    if row.mode != "specific" or not row.contrast:
        return None
    named = select(OwnConcept.id).where(
        OwnConcept.model_revision == row.model_revision, OwnConcept.name.in_(row.contrast), OwnConcept.id != row.id
    )
    found = [evidence(session, concept_id, shape) for concept_id in session.scalars(named.order_by(OwnConcept.name))]
    return concepts.evidence.contrast_of([each.mean() for each in found if each.n_probes])


def concept_of(
    session: Session, row: OwnConcept, shape: tuple[int, int], known: Mapping[str, Floats]
) -> Concept | None:
    """The engine's concept; None while nothing of it is built. `known`: memberships by name, for an expression. Raises
    RequestError for an expression that names what is not there any more."""
    if row.expression:
        expression = concepts.algebra.parse(row.expression)
        return Concept(row.name, row.kind, 0, concepts.algebra.evaluate(expression, known, row.family))
    found = evidence(session, row.id, shape)
    if not found.n_probes:
        return None
    mode: concepts.evidence.Mode = "specific" if row.mode == "specific" else "raw"
    memberships = found.memberships(row.map, row.quantile, mode, contrast_of(session, row, shape))
    return Concept(row.name, row.kind, found.n_probes, memberships)


def adopt(session: Session, info: ModelInfo, engine: Engine) -> list[str]:
    """Give the engine all own concepts of its model; the names of those that could not be made."""
    engine.adopt([])
    known = {concept.name: concept.memberships for concept in engine.library().concepts}
    made: list[Concept] = []
    lost: list[str] = []
    for row in rows(session, info.revision):
        try:
            concept = concept_of(session, row, (info.n_layers, info.d_mlp), known)
        except RequestError as error:
            log.warning("the concept %s cannot be made: %s", row.name, error)
            lost.append(row.name)
            continue
        if concept is not None and concept.name not in known:
            made.append(concept)
            known[concept.name] = concept.memberships
    engine.adopt(made)
    return lost
