"""GET /saes: the sparse autoencoders (SAEs) on the model. POST /saes/attach and /saes/detach change them; GET
/saes/plan says what a training would take before POST /saes/train starts it, and GET /saes/train/{id}(.json, /events)
is one as it runs."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from app import attaching, errors, htmx, longjobs, queries, saejobs, saeplans
from app.contexts import AttachForm, TrainingView
from app.database import Reader
from app.saeplans import Draft
from app.services import Services, Serving
from app.state import address
from app.tables import JobRow
from app.views import latentconcepts, saes, training
from app.views.shell import shell
from engine.contract import RequestError

router = APIRouter()
PATIENCE = 2.0
"""Seconds to wait for what is quick: a small SAE stands by then, and the page need not ask again."""
Typed = Annotated[str, Form()]


def listing(services: Services, form: AttachForm | None = None, fresh: str = "", status: int = 200) -> Response:
    """`fresh` = the job that attached one just now."""
    info = services.worker.info
    revision = info.revision if info is not None else ""
    with services.database.read() as session:
        around = shell(services.worker, queries.queue_length(session), "Sparse autoencoders", "model")
        job = session.get(JobRow, fresh) if fresh else None
        new = job.result["sae"]["id"] if job is not None and job.result and "sae" in job.result else ""
        made = saes.page(
            around, services, saeplans.attached(session, revision), saeplans.tried(session, revision),
            saeplans.attempts(session, revision), saeplans.trainings(session), fresh=new, form=form,
        )  # fmt: skip
        memberships = latentconcepts.of_saes(session, services.worker)
        return htmx.html(services.renderer.page(dataclasses.replace(made, memberships=memberships)), status)


@router.get("/saes")
def index(services: Serving, attached: str = "") -> Response:
    return listing(services, fresh=attached)


@router.post("/saes/attach")
def attach(services: Serving, path: Typed = "", layer: Typed = "", site: Typed = "") -> Response:
    try:
        job_id = attaching.attach(services, path, layer, site)
    except RequestError as error:
        form = saes.attach_form(services, path, layer, site, str(error))
        return listing(services, form, status=errors.tell(error).status)
    attaching.wait(services, job_id, PATIENCE)
    with services.database.read() as session:
        job = session.get(JobRow, job_id)
        failed = job is not None and job.state == "failed"
        message = job.error if job is not None else ""
    if failed:  # what was typed stays, and the attempt is told of in the form
        attaching.forget(services, job_id)
        return listing(services, saes.attach_form(services, path, layer, site, message), status=422)
    return htmx.see_other(address(saes.HOME, [("attached", job_id)]))


@router.post("/saes/detach")
def detach(services: Serving, id: Typed = "") -> Response:  # noqa: A002
    attaching.wait(services, attaching.detach(services, id), PATIENCE)
    return htmx.see_other(saes.HOME)


@router.post("/saes/attempts/{job_id}/again")
def try_again(services: Serving, job_id: str) -> Response:
    again = attaching.try_again(services, job_id)
    attaching.wait(services, again, PATIENCE)
    return htmx.see_other(address(saes.HOME, [("attached", again)]))


@router.post("/saes/attempts/{job_id}/forget")
def forget(services: Serving, job_id: str) -> Response:
    attaching.forget(services, job_id)
    return htmx.see_other(saes.HOME)


def planned(services: Services, draft: Draft, error: str = "", status: int = 200) -> Response:
    found = None
    if not error:
        try:
            found = attaching.plan(services, draft)
        except RequestError as refused:
            error, status = str(refused), errors.tell(refused).status
    with services.database.read() as session:
        around = shell(services.worker, queries.queue_length(session), "Train an SAE", "model")
    form = saes.train_form(services, draft)
    return htmx.html(services.renderer.page(training.plan(around, form, draft, found, error)), status)


@router.get("/saes/plan")
def plan(
    services: Serving, layer: str = "", site: str = "", architecture: str = "", n_latents: str = "", k: str = "",
    steps: str = "", batch: str = "", seed: str = "", name: str = "", source: str = "", folder: str = "",
) -> Response:  # fmt: skip
    return planned(services, Draft(layer, site, architecture, n_latents, k, steps, batch, seed, name, source, folder))


@router.post("/saes/train")
def start(
    services: Serving, layer: Typed = "", site: Typed = "", architecture: Typed = "", n_latents: Typed = "",
    k: Typed = "", steps: Typed = "", batch: Typed = "", seed: Typed = "", name: Typed = "", source: Typed = "",
    folder: Typed = "",
) -> Response:  # fmt: skip
    draft = Draft(layer, site, architecture, n_latents, k, steps, batch, seed, name, source, folder)
    try:
        job_id = attaching.start(services, draft)
    except RequestError as error:
        return planned(services, draft, str(error), errors.tell(error).status)
    return htmx.see_other(f"/saes/train/{job_id}")


def _state(services: Services, session: Session, job_id: str) -> dict[str, Any]:
    """What the views of a training are made from."""
    job = attaching.training(session, job_id)
    points, gathered, since = saejobs.started(session, job)
    return {
        "job": job, "points": points, "gathered": gathered, "since": since, "place": longjobs.place(session, job),
        "model": services.settings.model, "kept": attaching.resumable(services, job.params),
    }  # fmt: skip


@router.get("/saes/train/{job_id}.json")
def as_json(services: Serving, session: Reader, job_id: str) -> Response:
    """The SAE's card and how it reads a sample, with the curve; while there is none, how far it is (202)."""
    found = _state(services, session, job_id)
    job: JobRow = found["job"]
    told = {"id": job.id, "state": job.state, "done": job.done, "total": job.total, "error": job.error}
    told |= {"recipe": job.params["recipe"], "folder": job.params["folder"]}
    told |= {"points": found["points"]} | (job.result or {})
    return JSONResponse(told, 202 if job.live else 200, headers={"Cache-Control": "no-cache"})


@router.get("/saes/train/{job_id}")
def show(services: Serving, session: Reader, job_id: str) -> Response:
    around = shell(services.worker, queries.queue_length(session), "Training of an SAE", "model")
    return htmx.html(services.renderer.page(training.page(around, **_state(services, session, job_id))))


def view_of(services: Services, job_id: str) -> TrainingView:
    with services.database.read() as session:
        return training.view(**_state(services, session, job_id))


def there(services: Serving, job_id: str) -> str:
    """An unknown id is refused before a stream begins."""
    view_of(services, job_id)
    return job_id


@router.get("/saes/train/{job_id}/events", response_class=EventSourceResponse)
async def events(services: Serving, job_id: Annotated[str, Depends(there)]) -> AsyncIterator[ServerSentEvent]:
    """The training whenever it has changed, and `end` when nothing more will come."""
    sent = ""
    async for _ in services.broker.changes(f"job:{job_id}"):
        view = await run_in_threadpool(view_of, services, job_id)
        fragment = services.renderer.fragment("training", view)
        if fragment != sent:
            sent = fragment
            yield ServerSentEvent(raw_data=fragment, event="training")
        if not view.live:
            yield ServerSentEvent(raw_data="", event="end")
            return


@router.post("/saes/train/{job_id}/cancel")
def cancel(services: Serving, job_id: str) -> Response:
    attaching.cancel(services, job_id)
    return htmx.see_other(f"/saes/train/{job_id}")


@router.post("/saes/train/{job_id}/again")
def again(services: Serving, job_id: str) -> Response:
    return htmx.see_other(f"/saes/train/{attaching.again(services, job_id)}")


@router.post("/saes/train/{job_id}/anew")
def anew(services: Serving, job_id: str) -> Response:
    """From the first step: its checkpoint is dropped."""
    return htmx.see_other(f"/saes/train/{attaching.again(services, job_id, anew=True)}")
