"""GET /concepts and GET /concepts/{name}."""

from fastapi import APIRouter
from fastapi.responses import Response

from app import errors, htmx, queries, steerings
from app.database import Reader
from app.services import Serving
from app.views import concepts
from app.views.shell import shell

router = APIRouter()
MEMBERS = 100


@router.get("/concepts")
def index(services: Serving, session: Reader, q: str = "", kind: str = "") -> Response:
    revision = services.worker.info.revision if services.worker.info else ""
    around = shell(services.worker, queries.queue_length(session), "Concepts", "concepts")
    rows = queries.concepts(session, revision, q.strip(), kind)
    kinds = queries.concept_kinds(session, revision)
    return htmx.html(services.renderer.page(concepts.index(around, services.worker, rows, kinds, q.strip(), kind)))


@router.get("/concepts/{name:path}")
def show(services: Serving, session: Reader, name: str) -> Response:
    revision = services.worker.info.revision if services.worker.info else ""
    row = queries.concept(session, revision, name)
    if row is None:
        raise errors.Missing(str(steerings.unknown_concept(name, queries.concept_facts(session, revision))))
    members = queries.members(session, row.id, MEMBERS)
    memberships = queries.memberships(
        session, queries.concept_facts(session, revision), [(layer, index) for layer, index, _ in members]
    )
    around = shell(services.worker, queries.queue_length(session), name, "concepts")
    return htmx.html(services.renderer.page(concepts.show(around, row, members, memberships)))
