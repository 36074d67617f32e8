"""Presets: GET /presets (also as JSON), and what is done with them: saved, applied, renamed, deleted, imported."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm import Session

from app import errors, htmx, presets, queries, runs, state, steerings
from app.database import Reader
from app.routes.concepts import revision
from app.routes.runs import loaded_state, rendered
from app.routes.steering import fields, panel_of
from app.services import Services, Serving
from app.state import PageState
from app.views import presets as views
from app.views.shell import shell
from engine.contract import RequestError

router = APIRouter()
Fields = Annotated[list[tuple[str, str]], Depends(fields)]


def _page(
    services: Services, session: Session, run_id: str = "", note: str = "", error: RequestError | None = None
) -> Response:
    run = queries.run(session, run_id) if run_id else None
    if run_id and run is None:
        raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
    around = shell(services.worker, queries.queue_length(session), "Presets", "concepts")
    of = run.model_revision if run is not None else revision(services)
    reasons = error.reasons if isinstance(error, presets.BadFile) else ()
    page = views.page(
        around, queries.presets(session), of, run, note=note, error=str(error) if error else "", reasons=reasons
    )
    return htmx.html(services.renderer.page(page), errors.tell(error).status if error else 200)


@router.get("/presets")
def index(services: Serving, session: Reader, run: str = "", added: int = -1, known: int = 0) -> Response:
    """`run`: one that the presets can be applied to. `added`, `known`: what an import brought."""
    words = f"{added} imported." if added >= 0 else ""
    note = f"{words[:-1]}; {known} were there already." if known > 0 and words else words
    return _page(services, session, run, note)


@router.get("/presets.json")
def export_all(session: Reader) -> Response:
    return _download(presets.as_json(queries.presets(session)), "presets")


@router.get("/presets/{preset_id}.json")
def export(session: Reader, preset_id: str) -> Response:
    row = presets.find(session, preset_id)
    return _download(presets.as_json([row]), re.sub(r"[^\w-]+", "-", row.name, flags=re.ASCII).strip("-") or "preset")


def _download(value: object, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.json"', "Cache-Control": "no-cache"}
    return JSONResponse(value, headers=headers)


@router.post("/presets")
def save(request: Request, services: Serving, form: Fields, run: str = "") -> Response:
    """The panel's form with a name: its steering is kept. Without JavaScript the run is steered by it as well, so that
    nothing that the form holds is lost."""
    steering = steerings.from_form(form, steerings.ids_of(runs.attached(services)))
    name = next((value for field, value in form if field == "preset"), "")
    presets.save(services, run, name, steering)
    shown = state.parse((field, value) for field, value in form if field in state.KNOWN)
    if not htmx.is_htmx(request):
        parent_id, child_id = runs.steer(services, run, steering, panel_of(form))
        return htmx.see_other((PageState() if parent_id != run else shown).but(steer=child_id).url(parent_id))
    panel = panel_of(form)
    loaded = loaded_state(services, run, shown)
    return htmx.html(rendered(services, loaded, panel, ("steer",))["steer"])


@router.post("/presets/{preset_id}/apply")
def apply(request: Request, services: Serving, preset_id: str, form: Fields) -> Response:
    """Steer the run `run` by it; the rest of the form is the state of its page."""
    run_id = next((value for field, value in form if field == "run"), "")
    shown, panel = state.parse((field, value) for field, value in form if field in state.KNOWN), panel_of(form)
    parent_id, child_id = presets.apply(services, preset_id, run_id, panel)
    target = (PageState() if parent_id != run_id else shown).but(steer=child_id)
    asked = (("panel", panel),) if panel and htmx.is_htmx(request) else ()
    return htmx.see_other(state.address(f"/runs/{parent_id}", (*target.pairs(), *asked)))


@router.post("/presets/import")
def take(
    services: Serving, file: Annotated[UploadFile | None, File()] = None, run: Annotated[str, Form()] = ""
) -> Response:
    try:
        if file is None or not file.filename:
            raise RequestError("Choose a file of presets first.")
        added, known = presets.take(services, file.file.read(presets.MAX_FILE + 1))
    except RequestError as error:
        with services.database.read() as session:
            return _page(services, session, run, error=error)
    told = (("run", run), ("added", str(added)), ("known", str(known) if known else ""))
    return htmx.see_other(state.address("/presets", [pair for pair in told if pair[1]]))


@router.post("/presets/{preset_id}/rename")
def rename(
    services: Serving, preset_id: str, name: Annotated[str, Form()] = "", run: Annotated[str, Form()] = ""
) -> Response:
    presets.rename(services, preset_id, name)
    return htmx.see_other(f"/presets?run={run}" if run else "/presets")


@router.post("/presets/{preset_id}/delete")
def remove(services: Serving, preset_id: str, run: Annotated[str, Form()] = "") -> Response:
    presets.remove(services, preset_id)
    return htmx.see_other(f"/presets?run={run}" if run else "/presets")
