"""POST /runs/{id}/attributions: explain another target, or by another method; a failed attribution is tried again."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app import htmx, runs, state
from app.routes.runs import chosen
from app.routes.steering import fields
from app.services import Serving

router = APIRouter()


@router.post("/runs/{run_id}/attributions")
def retarget(services: Serving, run_id: str, form: Annotated[list[tuple[str, str]], Depends(fields)]) -> Response:
    """The fields are those of a run's address (see app.state)."""
    asked, choice = chosen(services, run_id, state.parse(form))
    runs.retarget(services, run_id, choice, asked.method, again=True)
    return htmx.see_other(asked.url(run_id))
