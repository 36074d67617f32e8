"""A person's own concepts: their rows become the engine's concepts, and join its library.

Memberships are not stored: they follow from the probes' evidence shares, the map and the mode, or from the expression.
"""

import dataclasses
import logging
import unicodedata
from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from app import conceptqueries
from app.tables import LIVE, JobRow, OwnConcept, ProbeRow
from engine.contract import Concept, Engine, Floats, ModelInfo, RequestError, concepts

log = logging.getLogger("sfumato.own")
Evidence = concepts.evidence.Evidence
MAP, QUANTILE, MODE = "linear", 0.98, "raw"
"""How memberships are made where a person has chosen nothing."""
RECENT = 20
KIND = "own"
RESERVED = ("new", "own", "similar", "report", "report.csv")
"""Names whose page would be another one."""
TURNING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
"""Bidirectional classes of characters that turn the direction of the text around them."""
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


def check_name(name: str) -> None:
    """Raise RequestError for a name that no address leads to, or that nobody could read."""
    spelled = name.casefold()
    if spelled in RESERVED or spelled in (".", "..") or "/" in name or spelled.endswith(".json"):
        raise RequestError(f"“{name}” cannot be a concept's name: its page has no address. Choose another name.")
    seen = any(unicodedata.category(letter)[0] in "LNPS" for letter in name)
    if not seen or any(unicodedata.bidirectional(letter) in TURNING for letter in name):
        raise RequestError("The name has no visible letter, or one that turns the text's direction. Type another.")


def check_free(session: Session, model_revision: str, name: str) -> None:
    """Raise RequestError where a concept has this name already, in any case of its letters."""
    for row in rows(session, model_revision):
        if row.name.casefold() == name.casefold():
            raise RequestError(
                f"You have a concept “{row.name}” already, on the page /concepts/own/{row.id}. Choose another name, or "
                "delete that one first."
            )
    for known in conceptqueries.names(session, model_revision):
        if known.casefold() == name.casefold():
            raise RequestError(
                f"The library has a concept “{known}” already. Choose another name, such as “my {name}”."
            )


def _named_by(row: OwnConcept) -> tuple[str, ...]:
    try:
        return concepts.algebra.names_in(concepts.algebra.parse(row.expression)) if row.expression else ()
    except RequestError:
        return ()


def naming(session: Session, row: OwnConcept) -> list[str]:
    """The derived concepts that cannot be made without this one: their expression mentions it, or another of them."""
    found, others = [row.name], [(other.name, _named_by(other)) for other in rows(session, row.model_revision)]
    for name in found:  # grows meanwhile
        found += [other for other, names in others if name in names and other not in found]
    return found[1:]


def contrasting(session: Session, row: OwnConcept) -> list[str]:
    """The own concepts that are contrasted with this one."""
    return [other.name for other in rows(session, row.model_revision) if row.name in other.contrast]


def lacking(row: OwnConcept, known: Collection[str]) -> list[str]:
    """The names in a derived concept's expression that are not `known`: it cannot be made without them."""
    return [name for name in _named_by(row) if name not in known]


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
    waiting, lost = rows(session, info.revision), dict[str, str]()
    while waiting:
        lost, left = {}, []
        for row in waiting:
            try:
                concept = concept_of(session, row, (info.n_layers, info.d_mlp), known)
            except RequestError as error:
                lost[row.name] = str(error)
                left.append(row)
                continue
            if concept is not None and concept.name not in known:
                made.append(concept)
                known[concept.name] = concept.memberships
        if len(left) == len(waiting):  # what an expression names may be made after it, but not at all
            break
        waiting = left
    for name, why in lost.items():
        log.warning("the concept %s cannot be made: %s", name, why)
    engine.adopt(made)
    return list(lost)
