"""POST /runs/{id}/measurements: measure a target's ranking; POST /measurements/{job}/cancel: stop that."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app import htmx, runs, state
from app.routes.runs import chosen
from app.routes.steering import fields
from app.services import Serving

router = APIRouter()
Form = Annotated[list[tuple[str, str]], Depends(fields)]


@router.post("/runs/{run_id}/measurements")
def measure(services: Serving, run_id: str, form: Form) -> Response:
    """The fields are `kind` and those of a run's address (see app.state). One measurement, one row: whoever asks again
    sees how far it is."""
    asked = state.parse((name, value) for name, value in form if name in state.KNOWN)
    asked, choice = chosen(services, run_id, asked)
    kind = next((value for name, value in form if name == "kind"), "")
    runs.measure(services, run_id, kind, choice, asked.method)
    return htmx.see_other(asked.url(run_id))


@router.post("/measurements/{job_id}/cancel")
def cancel(services: Serving, job_id: str, form: Form) -> Response:
    """The fields are those of the address of the page that shows it."""
    asked = state.parse((name, value) for name, value in form if name in state.KNOWN)
    return htmx.see_other(asked.url(runs.cancel_measurement(services, job_id)))
