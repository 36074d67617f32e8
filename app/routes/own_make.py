"""New own concepts: GET and POST /concepts/new, and /concepts/own/add/{run}, by which a run becomes a probe."""

from typing import Annotated

from fastapi import APIRouter, File, Form, UploadFile
from fastapi.responses import Response

from app import conceptqueries, errors, htmx, own, owning, queries, runs
from app.importing import Files
from app.own import Draft
from app.routes.runs import chosen
from app.services import Services, Serving
from app.state import PageState
from app.views import own as views
from app.views.shell import shell
from engine.contract import RequestError

router = APIRouter()
Upload = Annotated[UploadFile | None, File()]
Typed = Annotated[str, Form()]


def new_form(services: Services, draft: Draft, error: str = "", status: int = 200) -> Response:
    with services.database.read() as session:
        around = shell(services.worker, queries.queue_length(session), "New concept", "concepts")
        info = services.worker.info
        worlds = owning.worlds(session, info) if info else {}
        mine = own.rows(session, info.revision) if info else []
        known = conceptqueries.names(session, info.revision) if info else []
    page = views.new_page(around, services, draft, worlds, mine, known, error)
    return htmx.html(services.renderer.page(page), status)


@router.get("/concepts/new")
def new(services: Serving, world: str = "") -> Response:
    """`world`: a concept of the built-in world whose probes are to be drawn."""
    builtin = services.worker.info is not None and services.worker.info.builtin
    name = f"my {world}" if world else ""
    return new_form(services, Draft(name=name, source="world" if builtin else "file", world=world))


@router.post("/concepts/new")
def create(
    services: Serving, name: Typed = "", kind: Typed = "", forms: Typed = "", source: Typed = "file",
    world: Typed = "", n: Typed = "", table: Upload = None, annotations: Upload = None, pictures: Upload = None,
) -> Response:  # fmt: skip
    draft = Draft(name, kind, forms, source, world, n.strip())
    try:
        made = owning.create(services, draft, files_of(services, table, annotations, pictures))
    except RequestError as error:
        return new_form(services, draft, str(error), errors.tell(error).status)
    return htmx.see_other(f"/concepts/own/{made}")


def files_of(services: Services, table: Upload, annotations: Upload, pictures: Upload) -> Files | None:
    if table is None or not (table.filename or table.size):
        return None

    def data(upload: UploadFile | None) -> bytes:
        return upload.file.read(services.settings.max_upload + 1) if upload is not None else b""

    return Files(table.filename or "", data(table), data(annotations), data(pictures))


@router.get("/concepts/own/add/{run_id}")
def add_form(services: Serving, run_id: str, span: str = "") -> Response:
    """`span` of the answer's tokens, as in a run's address, is proposed as the part that says the concept."""
    return _add(services, run_id, says=_said(services, run_id, span))


def _add(services: Services, run_id: str, says: str, status: int = 200, **typed: str) -> Response:
    with services.database.read() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        around = shell(services.worker, queries.queue_length(session), "Add a run to a concept", "concepts")
        mine = own.rows(session, run.model_revision)
    return htmx.html(services.renderer.page(views.add_page(around, run, says, mine, **typed)), status)


def _said(services: Services, run_id: str, span: str) -> str:
    start, _, end = span.partition("-")
    numbers = all(part.isdecimal() and len(part) < 10 for part in (start, end))
    inside = (int(start), int(end)) if numbers else None
    _, choice = chosen(services, run_id, PageState(span=inside))
    with services.database.read() as session:
        run = queries.run(session, run_id)
        tokens = run.answer["tokens"] if run is not None and run.answer else []
    first, last = choice.span
    return "".join(token["text"] for token in tokens[first:last]).strip()


@router.post("/concepts/own/add/{run_id}")
def add(services: Serving, run_id: str, says: Typed = "", concept: Typed = "", name: Typed = "") -> Response:
    try:
        made = owning.add_run(services, run_id, says, concept, name)
    except RequestError as error:
        status = errors.tell(error).status
        return _add(services, run_id, says, status, chosen=concept, name=name, error=str(error))
    return htmx.see_other(f"/concepts/own/{made}")
