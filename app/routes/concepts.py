"""GET /concepts, /concepts/similar and /concepts/{name}; the first and the last also as JSON."""

import dataclasses

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm import Session

from app import conceptqueries, errors, htmx, library, own, queries, steerings, validations
from app.conceptqueries import Alike
from app.contexts import Shell
from app.database import Reader
from app.services import Services, Serving
from app.tables import ConceptRow, OwnConcept
from app.views import concepts, latentconcepts, sets, similar, validation
from app.views.shell import shell
from engine.contract import Floats, UnknownName
from engine.contract import concepts as known

router = APIRouter()
EXAMPLES = 6
DRAWN = 2**21
"""Memberships that are drawn for bootstrap intervals while someone waits: fewer draws for a large model."""


@router.get("/concepts")
def index(services: Serving, session: Reader, q: str = "", kind: str = "", sort: str = "") -> Response:
    query = q.strip()
    rows = conceptqueries.heads(session, revision(services), query, kind, _one_of("order", sort, conceptqueries.SORTS))
    kinds = queries.concept_kinds(session, revision(services))
    page = concepts.index(around(services, session, "Concepts"), services.worker, rows, kinds, query, kind, sort)
    return htmx.html(services.renderer.page(page))


@router.get("/concepts.json")
def index_as_json(services: Serving, session: Reader, q: str = "", kind: str = "") -> Response:
    rows = conceptqueries.heads(session, revision(services), q.strip(), kind)
    return JSONResponse([concepts.head_as_json(row) for row in rows], headers={"Cache-Control": "no-cache"})


@router.get("/concepts/similar")
def similarity(services: Serving, session: Reader, kind: str = "", of: str = "similarity") -> Response:
    _one_of("measure", of, similar.OF)
    beside = conceptqueries.alike(session, revision(services))
    kept = {row.name for row in conceptqueries.heads(session, revision(services), kind=kind)}
    kinds = queries.concept_kinds(session, revision(services))
    page = similar.view(around(services, session, "Similar concepts"), beside, kinds, kept, kind, of)
    return htmx.html(services.renderer.page(page))


@router.get("/concepts/{name:path}.json")
def show_as_json(services: Serving, session: Reader, name: str, alpha: str = "") -> Response:
    found = _found(services, session, name)
    told = concepts.as_json(found.row, found.memberships, sets.alpha_of(alpha), found.beside, found.own)
    return JSONResponse(told, headers={"Cache-Control": "no-cache"})


@router.get("/concepts/{name:path}")
def show(services: Serving, session: Reader, name: str, alpha: str = "") -> Response:
    """`alpha`: of the α-cut whose members are listed."""
    chosen = sets.alpha_of(alpha)
    found = _found(services, session, name)
    members = [member[:2] for member in sets.cut_members(found.memberships, chosen)]
    facts = queries.concept_facts(session, revision(services))
    others = queries.memberships(session, facts, members)
    weak = {fact.name for fact in facts.values() if fact.weak}
    intervals, sampled = _intervals(session, found, members)
    page = concepts.show(
        around(services, session, name),
        found.row,
        found.memberships,
        concepts.cut_view(found.row, found.memberships, chosen, others, weak, intervals, sampled),
        found.beside,
        conceptqueries.examples(session, revision(services), name, EXAMPLES),
        found.own,
        conceptqueries.probes(session, found.own.id, concepts.SHOWN_PROBES) if found.own else ([], 0),
        validation.view(validations.known(session, found.row)),
        latentconcepts.of_concept(session, services.worker, found.row, found.own),
    )
    return htmx.html(services.renderer.page(page))


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A concept with what its page and its JSON are made of; `own`: its row where a person made it."""

    row: ConceptRow
    memberships: Floats
    own: OwnConcept | None
    beside: Alike | None


def _found(services: Services, session: Session, name: str) -> _Found:
    model = revision(services)
    row = conceptqueries.concept(session, model, name)
    if row is None:
        raise errors.Missing(str(steerings.unknown_concept(name, conceptqueries.names(session, model))))
    beside = conceptqueries.alike(session, model)
    return _Found(row, library.exact(row.exact), conceptqueries.own(session, model, name), beside)


def _intervals(
    session: Session, found: _Found, members: list[tuple[int, int]]
) -> tuple[known.evidence.Intervals | None, tuple[int, int]]:
    """Bootstrap intervals of these neurons' memberships, where the concept is an own one with probes; how many of these
    there are, and draws."""
    row, (layers, width) = found.own, found.memberships.shape
    if row is None or row.expression or not members:
        return None, (0, 0)
    evidence = own.evidence(session, row.id, (layers, width))
    if not evidence.n_probes:
        return None, (0, 0)
    mode: known.evidence.Mode = "specific" if row.mode == "specific" else "raw"
    contrast = own.contrast_of(session, row, (layers, width))
    neurons = [layer * width + index for layer, index in members]
    draws = min(known.evidence.DRAWS, max(40, DRAWN // found.memberships.size))
    return evidence.intervals(row.map, row.quantile, mode, contrast, neurons, draws), (evidence.n_probes, draws)


def revision(services: Services) -> str:
    """Of the loaded model; '' while there is none."""
    return services.worker.info.revision if services.worker.info else ""


def around(services: Services, session: Session, title: str) -> Shell:
    return shell(services.worker, queries.queue_length(session), title, "concepts")


def _one_of(what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UnknownName(f"There is no {what} “{value[:40]}”. Choose one of {', '.join(filter(None, known))}.")
    return value
