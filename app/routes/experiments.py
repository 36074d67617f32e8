"""Experiments with latents: GET /experiments lists them, /experiments/plan says what one would do before
POST /experiments starts it, GET /experiments/{id}(.json, .csv, /events) is one as it runs and as a report;
POST /experiments/sets brings a file of questions."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app import errors, experimenting, experiments, htmx, investigating, latentjobs, queries, questionsets, standing
from app.contexts import ExperimentView
from app.database import Reader
from app.experiments import Draft, Plan
from app.routes.evaluations import brought
from app.routes.own_make import Upload
from app.routes.steering import fields
from app.services import Services, Serving
from app.views import experiment as views
from app.views.shell import shell
from engine.contract import RequestError, saes

router = APIRouter()
Form = Annotated[list[tuple[str, str]], Depends(fields)]
TITLE = "Which latents matter?"


def listing(services: Services, draft: Draft, plan: Plan | None = None, error: str = "", status: int = 200) -> Response:
    with services.database.read() as session:
        around = shell(services.worker, queries.queue_length(session), TITLE, "evaluate")
        jobs, sets = experiments.listed(session), questionsets.listed(session)
        page = views.index(around, services, draft, jobs, sets, plan, error)
    return htmx.html(services.renderer.page(page), status)


def draft_of(given: list[tuple[str, str]]) -> Draft:
    """Of a form's fields, those that are known."""
    said = dict(given)
    own = {name: said[name] for name in ("set", "sae", "limit", "seed") if said.get(name)}
    variant = {name: said[name] for part in latentjobs.FIELDS if (name := latentjobs.field_of(part)) in said}
    return Draft(**own, variant=variant)


@router.get("/experiments")
def index(services: Serving) -> Response:
    return listing(services, Draft())


@router.get("/experiments/plan")
def plan(request: Request, services: Serving) -> Response:
    draft = draft_of(request.query_params.multi_items())
    try:
        return listing(services, draft, investigating.plan(services, draft))
    except RequestError as error:
        return listing(services, draft, None, str(error), errors.tell(error).status)


@router.post("/experiments/sets")
def bring(services: Serving, questions: Upload = None, annotations: Upload = None, pictures: Upload = None) -> Response:
    """Keep the files and go to the plan of what they ask."""
    try:
        set_hash = brought(services, questions, annotations, pictures)
    except RequestError as error:
        return listing(services, Draft(), None, str(error), errors.tell(error).status)
    return htmx.see_other(views.of_set(set_hash))


@router.post("/experiments")
def start(services: Serving, form: Form) -> Response:
    draft = draft_of(form)
    try:
        job_id = investigating.request(services, draft)
    except RequestError as error:
        return listing(services, draft, None, str(error), errors.tell(error).status)
    return htmx.see_other(f"/experiments/{job_id}")


@router.get("/experiments/{job_id}.json")
def as_json(session: Reader, job_id: str) -> Response:
    """The report with what it says; while there is none, how far it is (202)."""
    job = investigating.known(session, job_id).job
    told = {"id": job.id, "state": job.state, "done": job.done, "total": job.total, "error": job.error}
    if job.state == "done" and job.result:
        report = saes.experiment_from_json(job.result["report"])
        told |= {**job.result["report"], "conclusions": list(saes.conclusions(report)), "params": job.params}
    return JSONResponse(told, 202 if job.live else 200, headers={"Cache-Control": "no-cache"})


@router.get("/experiments/{job_id}.csv")
def as_csv(session: Reader, job_id: str) -> Response:
    job = investigating.known(session, job_id).job
    if job.state != "done" or not job.result:
        raise errors.Missing("This experiment has no result yet. Wait for its end; its page shows how far it is.")
    text = saes.experiment_csv(saes.experiment_from_json(job.result["report"]))
    headers = {"Cache-Control": "no-cache", "Content-Disposition": 'attachment; filename="experiment.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/experiments/{job_id}")
def show(services: Serving, session: Reader, job_id: str) -> Response:
    found = investigating.known(session, job_id)
    around = shell(services.worker, queries.queue_length(session), "Experiment", "evaluate")
    return htmx.html(services.renderer.page(views.page(around, found, services.settings.model)))


def view_of(services: Services, job_id: str) -> ExperimentView:
    with services.database.read() as session:
        return views.view(investigating.known(session, job_id), services.settings.model)


def there(services: Serving, job_id: str) -> str:
    """An unknown id is refused before a stream begins."""
    view_of(services, job_id)
    return job_id


@router.get("/experiments/{job_id}/events", response_class=EventSourceResponse)
async def events(services: Serving, job_id: Annotated[str, Depends(there)]) -> AsyncIterator[ServerSentEvent]:
    """The experiment whenever it has changed, and `end` when nothing more will come."""
    sent = ""
    async for _ in services.broker.changes(f"job:{job_id}"):
        view = await run_in_threadpool(view_of, services, job_id)
        fragment = services.renderer.fragment("experiment", view)
        if fragment != sent:
            sent = fragment
            yield ServerSentEvent(raw_data=fragment, event="experiment")
        if not view.live:
            yield ServerSentEvent(raw_data="", event="end")
            return


@router.post("/experiments/{job_id}/cancel")
def cancel(services: Serving, session: Reader, job_id: str) -> Response:
    standing.found(session, experimenting.KIND, job_id, "under Experiments")
    standing.cancel(services, job_id)
    return htmx.see_other(f"/experiments/{job_id}")


@router.post("/experiments/{job_id}/again")
def again(services: Serving, session: Reader, job_id: str) -> Response:
    standing.found(session, experimenting.KIND, job_id, "under Experiments")
    return htmx.see_other(f"/experiments/{standing.again(services, job_id)}")
