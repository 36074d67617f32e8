"""An own concept: GET /concepts/own/{id}, its JSON and its events, and what can be done there."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Path
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from app import conceptqueries, htmx, longjobs, own, owning, queries
from app.contexts import BuildFragment, BuildView, ProbesFragment
from app.database import Reader
from app.routes.own_make import Typed, Upload, files_of
from app.services import Services, Serving
from app.tables import OwnConcept
from app.views import own as views
from app.views.shell import shell
from engine.contract import RequestError

router = APIRouter()


def _build(session: Session, row: OwnConcept, every: bool = False) -> tuple[BuildView, Any]:
    """How far it is, and its probes with those that are built."""
    probes, built = own.probes(session, row.id), own.built(session, row.id)
    job = next(iter(own.builds(session, row.id)), None)
    known = conceptqueries.names(session, row.model_revision)
    view = views.build_view(
        row, probes, built, job, adopting=bool(own.adopting(session, row.id)),
        place=longjobs.place(session, job) if job else 0, pace=own.pace(session, row.model_revision),
        known=row.name in known, lacking=own.lacking(row, known), every=every,
    )  # fmt: skip
    return view, (probes, built, job)


@router.get("/concepts/own/{concept_id}.json")
def as_json(session: Reader, concept_id: str) -> Response:
    row = owning.find(session, concept_id)
    view, (probes, built, job) = _build(session, row)
    status = 202 if view.live else 200
    return JSONResponse(views.as_json(row, probes, built, job), status, headers={"Cache-Control": "no-cache"})


@router.get("/concepts/own/{concept_id}")
def show(services: Serving, session: Reader, concept_id: str, rows: str = "") -> Response:
    row = owning.find(session, concept_id)
    every = rows == "all"
    build, (probes, built, _) = _build(session, row, every)
    around = shell(services.worker, queries.queue_length(session), row.name, "concepts")
    others = owning.contrasts(session, row)
    page = views.page(around, services, row, probes, built, build, others, every=every)
    return htmx.html(services.renderer.page(page))


def there(services: Serving, concept_id: str) -> OwnConcept:
    """Unknown ids are refused before a stream begins."""
    with services.database.read() as session:
        return owning.find(session, concept_id)


@router.get("/concepts/own/{concept_id}/events", response_class=EventSourceResponse)
async def events(
    services: Serving, row: Annotated[OwnConcept, Depends(there)], rows: str = ""
) -> AsyncIterator[ServerSentEvent]:
    """`build` and `probes` whenever they have changed, and `end` when nothing more will come."""
    sent: dict[str, str] = {}
    async for _ in services.broker.changes(await run_in_threadpool(_topic, services, row)):
        fragments, settled = await run_in_threadpool(_now, services, row, rows == "all")
        for name, fragment in fragments.items():
            if sent.get(name) != fragment:
                sent[name] = fragment
                yield ServerSentEvent(raw_data=fragment, event=name)
        if settled:
            yield ServerSentEvent(raw_data="", event="end")
            return


def _topic(services: Services, row: OwnConcept) -> str:
    with services.database.read() as session:
        live = [job for job in own.builds(session, row.id) if job.live] or own.adopting(session, row.id)
    return f"job:{live[0].id}" if live else ""


def _now(services: Services, row: OwnConcept, every: bool) -> tuple[dict[str, str], bool]:
    with services.database.read() as session:
        build, (probes, built, _) = _build(session, row, every)
    table, render = views.probes_view(row, probes, built, every=every), services.renderer.render
    fragments = {
        "build": render("own/_build.html", BuildFragment(build)),
        "probes": render("own/_probes.html", ProbesFragment(table)),
    }
    return fragments, not build.live


@router.post("/concepts/own/{concept_id}/build")
def build(services: Serving, concept_id: str) -> Response:
    owning.build(services, concept_id)
    return htmx.see_other(f"/concepts/own/{concept_id}")


@router.post("/concepts/own/{concept_id}/cancel")
def cancel(services: Serving, concept_id: str) -> Response:
    owning.cancel(services, concept_id)
    return htmx.see_other(f"/concepts/own/{concept_id}")


@router.post("/concepts/own/{concept_id}/probes")
def add_probes(
    services: Serving, concept_id: str, table: Upload = None, annotations: Upload = None, pictures: Upload = None
) -> Response:
    files = files_of(services, table, annotations, pictures)
    if files is None:
        raise RequestError("Choose a file of probes first.")
    owning.add_file(services, concept_id, files)
    return htmx.see_other(f"/concepts/own/{concept_id}")


@router.post("/concepts/own/{concept_id}/probes/{probe_id}/remove")
def remove_probe(services: Serving, concept_id: str, probe_id: Annotated[int, Path(lt=2**31)]) -> Response:
    owning.remove_probe(services, concept_id, probe_id)
    return htmx.see_other(f"/concepts/own/{concept_id}")


@router.post("/concepts/own/{concept_id}/forms")
def reword(services: Serving, concept_id: str, forms: Typed = "") -> Response:
    owning.reword(services, concept_id, forms)
    return htmx.see_other(f"/concepts/own/{concept_id}")


@router.post("/concepts/own/{concept_id}/map")
def choose(
    services: Serving, concept_id: str, map: Typed = "", quantile: Typed = "", mode: Typed = "",  # noqa: A002
    contrast: Annotated[list[str] | None, Form()] = None,
) -> Response:  # fmt: skip
    owning.choose(services, concept_id, map, quantile, mode, contrast or [])
    return htmx.see_other(f"/concepts/own/{concept_id}")


@router.get("/concepts/own/{concept_id}/delete")
def confirm(services: Serving, session: Reader, concept_id: str) -> Response:
    row = owning.find(session, concept_id)
    around = shell(services.worker, queries.queue_length(session), f"Delete {row.name}", "concepts")
    count = sum(bool(probe.question) for probe in own.probes(session, concept_id))
    page = views.delete_page(around, row, count, own.naming(session, row), own.contrasting(session, row))
    return htmx.html(services.renderer.page(page))


@router.post("/concepts/own/{concept_id}/delete")
def remove(services: Serving, concept_id: str) -> Response:
    owning.remove(services, concept_id)
    return htmx.see_other("/concepts")
