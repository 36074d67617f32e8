"""A concept's validation and collaboration: POST /validation asks for one, POST /validation/{job}/cancel stops it, GET
/validation/events follows both; GET /concepts/report(.csv, .json): the figures of all concepts."""

import csv
import io
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Form
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app import collaborating, examining, exports, htmx, queries, validations
from app.database import Reader
from app.services import Services, Serving
from app.views import validation
from app.views.shell import shell

router = APIRouter()


def page_of(name: str) -> str:
    """The part of a concept's page that shows this."""
    return f"/concepts/{exports.quoted(name)}#validation"


@router.post("/validation")
def request(
    services: Serving,
    concept: Annotated[str, Form()],
    kind: Annotated[str, Form()] = "validate",
    alpha: Annotated[float, Form()] = collaborating.ALPHA,
    top: Annotated[int, Form()] = collaborating.TOP,
) -> Response:
    examining.request(services, kind, concept, alpha, top)
    return htmx.see_other(page_of(concept))


@router.post("/validation/{job_id}/cancel")
def cancel(services: Serving, job_id: str) -> Response:
    return htmx.see_other(page_of(examining.cancel(services, job_id)))


def known(services: Services, name: str) -> validations.Known:
    with services.database.read() as session:
        return validations.known(session, examining.find(session, examining.revision(services), name))


def wanted(services: Serving, concept: str) -> str:
    """An unknown concept is refused before the stream begins."""
    known(services, concept)
    return concept


@router.get("/validation/events", response_class=EventSourceResponse)
async def events(services: Serving, name: Annotated[str, Depends(wanted)]) -> AsyncIterator[ServerSentEvent]:
    """The card as it is now, and after each change of what runs, until nothing does."""
    found, sent, again = await run_in_threadpool(known, services, name), "", True
    while again:
        topic, again = topic_of(found), False
        async for _ in services.broker.changes(topic):
            found = await run_in_threadpool(known, services, name)
            fragment = services.renderer.fragment("validation", validation.view(found))
            if fragment != sent:
                sent = fragment
                yield ServerSentEvent(raw_data=fragment, event="validation")
            if validation.settled(found):
                yield ServerSentEvent(raw_data="", event="end")
                return
            if topic_of(found) != topic:
                again = True  # that job is over, and the next one is followed
                break


def topic_of(found: validations.Known) -> str:
    """Of the job that runs, or else is the next to."""
    live = [job for job in found.jobs.values() if job.live]
    first = min(live, key=lambda job: (job.state != "running", job.queued), default=None)
    return f"job:{first.id}" if first is not None else ""


@router.get("/concepts/report")
def report(services: Serving, session: Reader, sort: str = "") -> Response:
    around = shell(services.worker, queries.queue_length(session), "Validation of the concepts", "concepts")
    lines = validations.lines(session, examining.revision(services))
    return htmx.html(services.renderer.page(validation.report(around, lines, sort)))


@router.get("/concepts/report.json")
def as_json(services: Serving, session: Reader) -> Response:
    lines = validations.lines(session, examining.revision(services))
    told = {"model_revision": examining.revision(services), **validations.as_json(lines)}
    return JSONResponse(told, headers={"Cache-Control": "no-cache"})


@router.get("/concepts/report.csv")
def as_csv(services: Serving, session: Reader) -> Response:
    """One line a concept; a name that a spreadsheet would compute is quoted as text."""
    lines = validations.lines(session, examining.revision(services))
    buffer = io.StringIO()
    table = csv.writer(buffer)
    names = list(dict.fromkeys(name for line in lines for name in line.figures if name != "passes"))
    table.writerow(["concept", "kind", *validations.COLUMNS, *(f"figure: {name}" for name in names)])
    for line in lines:
        own = [line.value(column) for column in validations.COLUMNS]
        told = [f"'{text}" if text[:1] in ("=", "+", "-", "@") else text for text in (line.name, line.kind)]
        table.writerow([*told, *own, *(line.figures.get(name) for name in names)])
    headers = {"Cache-Control": "no-cache", "Content-Disposition": 'attachment; filename="validation.csv"'}
    return Response(buffer.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)
