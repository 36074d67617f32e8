"""GET /runs/{id}/events: what changes on a run's page, as server-sent events.

Each event is named after the fragment it replaces and carries the whole fragment as it is now. Whoever connects gets
the present state first, so that late and reloaded pages are right; when nothing more will come, `end` is sent.
`?only=steered` follows the steered run that stands beside this one, `?only=trust` what is measured of the target,
`?only=sweep` the points of a sweep, `?only=latents` a ranking of latents; each sends that fragment alone.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app import state, sweeping
from app.routes.runs import loaded_state, rendered
from app.services import Services, Serving
from app.state import PageState
from app.views import latents, page, sweep, trust

router = APIRouter()


def asked(request: Request, services: Serving, run_id: str) -> PageState:
    """The state that the page shows; unknown runs and states are refused before the stream begins."""
    wanted = state.parse(request.query_params.multi_items())
    loaded_state(services, run_id, wanted, ranked=False)
    return wanted


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def events(
    services: Serving, run_id: str, wanted: Annotated[PageState, Depends(asked)], only: str = ""
) -> AsyncIterator[ServerSentEvent]:
    beside = only == "steered" and bool(wanted.steer)
    panel = wanted.panel or page.new_panel()
    sent: dict[str, str] = {}
    topic = sweeping.topic(wanted.sweep) if only == "sweep" else wanted.steer if beside else run_id
    async for _ in services.broker.changes(topic, panel):
        if only == "trust":
            fragments, settled = await run_in_threadpool(_trust, services, run_id, wanted, panel)
        elif only == "sweep":
            fragments, settled = await run_in_threadpool(_sweep, services, run_id, wanted, panel)
        elif only == "latents":
            fragments, settled = await run_in_threadpool(_latents, services, run_id, wanted, panel)
        else:
            fragments, settled = await run_in_threadpool(_now, services, run_id, wanted, panel, beside)
        for name, fragment in fragments.items():
            if sent.get(name) != fragment:
                sent[name] = fragment
                yield ServerSentEvent(raw_data=fragment, event=name)
        if settled:
            yield ServerSentEvent(raw_data="", event="end")
            return


def _now(services: Services, run_id: str, wanted: PageState, panel: str, beside: bool) -> tuple[dict[str, str], bool]:
    """The fragments as they are now, and whether they will stay so. While an answer streams, only it changes: all
    others wait for it, as they did when the page was sent."""
    loaded = loaded_state(services, run_id, wanted, ranked=not beside)
    if beside:
        settled = loaded.beside is None or not loaded.beside.live
        return rendered(services, loaded, panel, ("steered",)), settled
    own = loaded.parent is not None
    streaming = loaded.run.answer is None and loaded.run.live
    names = ("status", "answer", *(("steered",) if own else ())) if streaming else page.FRAGMENTS
    if not streaming:
        names = tuple(name for name in names if name != "sweep" and (own or name != "steered"))
    return rendered(services, loaded, panel, names), page.settled(loaded)


def _trust(services: Services, run_id: str, wanted: PageState, panel: str) -> tuple[dict[str, str], bool]:
    loaded = loaded_state(services, run_id, wanted, ranked=False)
    fragment = services.renderer.fragment("trust", trust.view(loaded, panel))
    return {"trust": fragment}, trust.settled(loaded)


def _sweep(services: Services, run_id: str, wanted: PageState, panel: str) -> tuple[dict[str, str], bool]:
    loaded = loaded_state(services, run_id, wanted, ranked=False)
    fragment = services.renderer.fragment("sweep", sweep.view(loaded, services.worker, panel))
    return {"sweep": fragment}, sweep.settled(loaded)


def _latents(services: Services, run_id: str, wanted: PageState, panel: str) -> tuple[dict[str, str], bool]:
    loaded = loaded_state(services, run_id, wanted)
    fragment = services.renderer.fragment("latents", latents.view(loaded, services.worker, panel))
    return {"latents": fragment}, latents.settled(loaded)
