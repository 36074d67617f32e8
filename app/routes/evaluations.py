"""Evaluations: GET /evaluations lists them, /evaluations/plan says what one would do before POST /evaluations starts
it, GET /evaluations/{id}(.json, .csv, /events) is one as it runs and as a report; POST /evaluations/sets brings files.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app import appraising, errors, evaluations, htmx, queries, questionsets
from app.contexts import EvaluationView
from app.database import Reader
from app.evaluations import Draft
from app.questionsets import BUILTIN, Brought
from app.routes.own_make import Upload
from app.services import Services, Serving
from app.state import address
from app.tables import QuestionSet
from app.views import evaluated
from app.views import evaluation as views
from app.views.shell import shell
from engine.contract import RequestError, evaluation

router = APIRouter()
Several = Annotated[list[str] | None, Query()]
Ticked = Annotated[list[str] | None, Form()]
Typed = Annotated[str, Form()]


def listing(services: Services, error: str = "", status: int = 200) -> Response:
    with services.database.read() as session:
        around = shell(services.worker, queries.queue_length(session), "Does turning concepts help?", "evaluate")
        page = views.index(around, services, evaluations.listed(session), questionsets.listed(session), error)
    return htmx.html(services.renderer.page(page), status)


@router.get("/evaluations")
def index(services: Serving) -> Response:
    return listing(services)


def brought(services: Services, questions: Upload, annotations: Upload, pictures: Upload) -> str:
    """The hash of a set that was sent, kept. Raises RequestError."""
    most = services.settings.max_upload + 1
    named = [
        (upload.filename or "", upload.file.read(most)) if upload is not None and upload.filename else None
        for upload in (questions, annotations, pictures)
    ]
    if named[0] is None:
        raise RequestError("Choose a file of questions first.")
    return appraising.bring(services, Brought(named[0], named[1], named[2][1] if named[2] else b""))


@router.post("/evaluations/sets")
def bring(services: Serving, questions: Upload = None, annotations: Upload = None, pictures: Upload = None) -> Response:
    """Keep the files and go to the plan of what they ask."""
    try:
        set_hash = brought(services, questions, annotations, pictures)
    except RequestError as error:
        return listing(services, str(error), errors.tell(error).status)
    return htmx.see_other(address("/evaluations/plan", [("set", set_hash)]))


@router.get("/evaluations/plan")
def plan(
    services: Serving, set: str = BUILTIN, kind: Several = None, condition: Several = None,  # noqa: A002
    limit: str = "", dev: str = "", seed: str = "",
) -> Response:  # fmt: skip
    return planned(services, Draft(set, tuple(kind or ()), tuple(condition or ()), limit, dev, seed))


def planned(services: Services, draft: Draft, error: str = "", status: int = 200) -> Response:
    found = None
    if not error:
        try:
            found = appraising.plan(services, draft)
        except RequestError as problem:
            error, status = str(problem), errors.tell(problem).status
    with services.database.read() as session:
        row = session.get(QuestionSet, draft.set)
        around = shell(services.worker, queries.queue_length(session), views.set_name(row), "evaluate")
    known = draft if row is not None or draft.set == BUILTIN else Draft()
    return htmx.html(services.renderer.page(views.plan(around, known, row, found, error)), status)


@router.post("/evaluations")
def start(
    services: Serving, set: Typed = BUILTIN, kind: Ticked = None, condition: Ticked = None,  # noqa: A002
    limit: Typed = "", dev: Typed = "", seed: Typed = "",
) -> Response:  # fmt: skip
    draft = Draft(set, tuple(kind or ()), tuple(condition or ()), limit, dev, seed)
    try:
        job_id = appraising.request(services, draft)
    except RequestError as error:
        return planned(services, draft, str(error), errors.tell(error).status)
    return htmx.see_other(f"/evaluations/{job_id}")


@router.get("/evaluations/{job_id}.json")
def as_json(services: Serving, session: Reader, job_id: str) -> Response:
    """The result with how to get it again; while there is none, how far it is (202)."""
    found = appraising.known(session, job_id)
    job = found.job
    told = {"id": job.id, "state": job.state, "done": job.done, "total": job.total, "error": job.error}
    if job.state == "done" and job.result:
        told |= evaluated.as_json(evaluation.evaluation_from_json(job.result["evaluation"]))
        told["command"] = views.command(found.settings, job.params["set"], services.settings.model)
    return JSONResponse(told, 202 if job.live else 200, headers={"Cache-Control": "no-cache"})


@router.get("/evaluations/{job_id}.csv")
def as_csv(session: Reader, job_id: str) -> Response:
    job = appraising.found(session, job_id)
    if job.state != "done" or not job.result:
        raise errors.Missing("This evaluation has no result yet. Wait for its end; its page shows how far it is.")
    text = evaluation.to_csv(evaluation.evaluation_from_json(job.result["evaluation"]))
    headers = {"Cache-Control": "no-cache", "Content-Disposition": f'attachment; filename="evaluation-{job.id}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/evaluations/{job_id}")
def show(services: Serving, session: Reader, job_id: str) -> Response:
    found = appraising.known(session, job_id)
    around = shell(services.worker, queries.queue_length(session), "Evaluation", "evaluate")
    return htmx.html(services.renderer.page(views.page(around, found, services.settings.model)))


def view_of(services: Services, job_id: str) -> EvaluationView:
    with services.database.read() as session:
        return views.view(appraising.known(session, job_id), services.settings.model)


def there(services: Serving, job_id: str) -> str:
    """An unknown id is refused before a stream begins."""
    view_of(services, job_id)
    return job_id


@router.get("/evaluations/{job_id}/events", response_class=EventSourceResponse)
async def events(services: Serving, job_id: Annotated[str, Depends(there)]) -> AsyncIterator[ServerSentEvent]:
    """The evaluation whenever it has changed, and `end` when nothing more will come."""
    sent = ""
    async for _ in services.broker.changes(f"job:{job_id}"):
        view = await run_in_threadpool(view_of, services, job_id)
        fragment = services.renderer.fragment("evaluation", view)
        if fragment != sent:
            sent = fragment
            yield ServerSentEvent(raw_data=fragment, event="evaluation")
        if not view.live:
            yield ServerSentEvent(raw_data="", event="end")
            return


@router.post("/evaluations/{job_id}/cancel")
def cancel(services: Serving, job_id: str) -> Response:
    appraising.cancel(services, job_id)
    return htmx.see_other(f"/evaluations/{job_id}")


@router.post("/evaluations/{job_id}/again")
def again(services: Serving, job_id: str) -> Response:
    return htmx.see_other(f"/evaluations/{appraising.again(services, job_id)}")
