"""POST /runs/{id}/sweep: sweep one row of the steering panel; POST /sweeps/{job}/cancel; GET /sweeps/{job}.json."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from app import htmx, state, sweeping
from app.routes.runs import loaded_state, rendered
from app.routes.steering import fields, panel_of
from app.services import Serving

router = APIRouter()
Form = Annotated[list[tuple[str, str]], Depends(fields)]


@router.post("/runs/{run_id}/sweep")
def sweep(request: Request, services: Serving, run_id: str, form: Form) -> Response:
    """The fields are those of the steering panel, and `row`, which names the one that varies."""
    panel = panel_of(form)
    row = next((value for name, value in form if name == "row"), "")
    shown = state.parse((name, value) for name, value in form if name in state.KNOWN)
    parent_id, job_id = sweeping.sweep(services, run_id, form, row, panel)
    if parent_id != run_id:  # a steered run's own page: go on beside the original
        return htmx.go(request, state.PageState(steer=run_id, sweep=job_id).url(parent_id))
    target = shown.but(sweep=job_id, panel=panel)
    if not htmx.is_htmx(request):
        return htmx.see_other(target.url(run_id))
    fragment = rendered(services, loaded_state(services, run_id, target, ranked=False), panel, ("sweep",))["sweep"]
    return htmx.html(fragment, headers={"HX-Replace-Url": target.url(run_id)})


@router.post("/sweeps/{job_id}/cancel")
def cancel(services: Serving, job_id: str, form: Form) -> Response:
    """The fields are those of the address of the page that shows it."""
    asked = state.parse((name, value) for name, value in form if name in state.KNOWN)
    return htmx.see_other(asked.url(sweeping.cancel(services, job_id)))


@router.get("/sweeps/{job_id}.json")
def as_json(services: Serving, job_id: str) -> Response:
    """Its points. 202 while there are more to come."""
    data, whole = sweeping.exported(services, job_id)
    return JSONResponse(data, 200 if whole else 202, headers={"Cache-Control": "no-cache"})
