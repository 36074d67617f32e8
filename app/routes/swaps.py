"""POST /runs/{id}/swap: steer a run by another run's latents."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from app import htmx, state, swapping
from app.routes.steering import fields, panel_of
from app.services import Serving

router = APIRouter()


@router.post("/runs/{run_id}/swap")
def swap(
    request: Request, services: Serving, run_id: str, form: Annotated[list[tuple[str, str]], Depends(fields)]
) -> Response:
    """The fields are those of a run's address, and those of `swapping.swap`."""
    shown, panel = state.parse((name, value) for name, value in form if name in state.KNOWN), panel_of(form)
    parent_id, child_id = swapping.swap(services, run_id, dict(form), panel)
    target = (state.PageState() if parent_id != run_id else shown).but(steer=child_id)
    asked = (("panel", panel),) if panel and htmx.is_htmx(request) else ()
    return htmx.see_other(state.address(f"/runs/{parent_id}", (*target.pairs(), *asked)))
