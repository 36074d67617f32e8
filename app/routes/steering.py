"""POST /runs/{id}/steer: the whole steering as it stands in the panel, in one form."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app import htmx, queries, runs, state, steerings
from app.routes.runs import loaded_state, rendered
from app.services import Services, Serving

router = APIRouter()
DROPPED = ("steer", "steered", "neurons", "picture", "answer")
"""The fragments that name the rows of the panel, or link to pages that do."""
PATIENCE = 0.4
"""Seconds to wait for the steered answer: most are there by then, and the panel needs no second round trip."""


async def fields(request: Request) -> list[tuple[str, str]]:
    """The form's text fields in order."""
    try:
        form = await request.form()
    except ClientDisconnect:  # a later value took its place while it was sent: nobody waits for what is said here
        raise HTTPException(400, "The request broke off.") from None
    return [(name, value) for name, value in form.multi_items() if isinstance(value, str)]


def panel_of(form: list[tuple[str, str]]) -> str:
    return next((value for name, value in form if name == "panel" and re.fullmatch(r"\w{1,40}", value)), "")


@router.post("/runs/{run_id}/steer")
def steer(
    request: Request, services: Serving, run_id: str, form: Annotated[list[tuple[str, str]], Depends(fields)]
) -> Response:
    """All values zero = back to the default answer; nothing is computed. `drop` names a row that leaves the panel."""
    drop = next((value for name, value in form if name == "drop"), "")
    form = [field for field in form if not drop or field[0] != drop]
    steering = steerings.from_form(form, steerings.ids_of(runs.attached(services)))
    panel = panel_of(form)
    shown = state.parse((name, value) for name, value in form if name in state.KNOWN)
    parent_id, child_id = runs.steer(services, run_id, steering, panel)
    if parent_id != run_id:  # steered further from a steered run's own page: go on beside the original
        return htmx.go(request, state.PageState(steer=child_id).url(parent_id))
    added = tuple(name for name in shown.add if name != drop.partition(":")[2])
    target = shown.but(steer=child_id, panel=panel, add=added)
    if not htmx.is_htmx(request):
        return htmx.see_other(target.url(run_id))
    if child_id:
        services.broker.wait(child_id, lambda: _answered(services, child_id), PATIENCE, panel)
    loaded = loaded_state(services, run_id, target, ranked=bool(drop))
    fragments = rendered(services, loaded, panel, DROPPED if drop else ("steered",))
    headers = {"HX-Push-Url" if drop else "HX-Replace-Url": target.url(run_id)}
    return htmx.html("\n".join(fragments.values()), headers=headers)


def _answered(services: Services, run_id: str) -> bool:
    with services.database.read() as session:
        run = queries.run(session, run_id)
        return run is None or run.answer is not None or not run.live
