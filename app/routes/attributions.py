"""POST /runs/{id}/attributions: explain another span of the answer, or by another method."""

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import Response

from app import htmx, runs, state
from app.services import Serving

router = APIRouter()


@router.post("/runs/{run_id}/attributions")
def retarget(
    services: Serving,
    run_id: str,
    span: Annotated[str, Form()],
    method: Annotated[str, Form()] = "gradient",
) -> Response:
    """`span` = START-END. A failed attribution is tried again."""
    asked = state.parse((("span", span), ("method", method)))
    assert asked.span is not None, "the form field is required"
    runs.retarget(services, run_id, *asked.span, asked.method, again=True)
    return htmx.see_other(asked.url(run_id))
