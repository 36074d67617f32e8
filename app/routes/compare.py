"""GET /compare: two states of runs' pages side by side; without two of them, the choice of what is missing."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from app import errors, htmx, queries, runs
from app.contexts import AddressField, Choice
from app.routes.runs import loaded_state
from app.services import Services, Serving
from app.tables import Run
from app.views import choose, compare, comparison, shell, sides
from app.views.comparison import Comparison
from app.views.load import Loaded
from app.views.sides import Pair
from engine.contract import RequestError, UnknownName

router = APIRouter()
RECENT = 12
SUGGESTED = 8
LABELS = {"a": "A: address of a run’s page", "b": "B: address of the other run’s page"}


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What an address gave: the state under it, or why there is none. `heat`: what its page shows."""

    text: str
    side: sides.Side | None = None
    heat: str = ""
    loaded: Loaded | None = None
    error: str = ""
    status: int = 200


@router.get("/compare")
def show(
    services: Serving,
    a: str = "",
    b: str = "",
    heat: str = "",
    top: str = "",
    scale: str = "",
    run: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """`run`: addresses ticked in the list of runs, which take the places of `a` and `b`."""
    if run and len(run) <= 2:
        return htmx.see_other(sides.url(run[0], run[1] if len(run) == 2 else ""))
    if run:
        error = f"{len(run)} runs are ticked, and a comparison has two. Choose the other one for the first of them."
        return _choice(services, _given(services, run[0]), Given(""), error=error)
    one, other = _given(services, a), _given(services, b)
    try:
        wanted = sides.heat(heat) if heat else one.heat or other.heat
        shown, own = sides.top(top), sides.own(scale)
    except UnknownName as error:
        return _otherwise(services, one, other, error)
    if one.side is None or other.side is None or one.loaded is None or other.loaded is None:
        return _choice(services, one, other, wanted)
    asked = Pair(one.side, other.side, wanted, shown, own)
    if (a, b) != (asked.a.address, asked.b.address):
        return htmx.see_other(asked.url)  # one spelling for one comparison
    try:
        pair = comparison.compare(one.loaded, other.loaded, asked.heat, asked.top, own=asked.own)
    except UnknownName as error:
        return _otherwise(services, one, other, error)
    around = shell.shell(services.worker, one.loaded.queue, "Compare", "runs")
    return htmx.html(services.renderer.page(compare.page(around, asked, pair)))


def _otherwise(services: Services, a: Given, b: Given, error: UnknownName) -> Response:
    """Both sides as they open, and what is unknown of the way in which they were asked for."""
    if a.side is None or b.side is None or a.loaded is None or b.loaded is None:
        return _choice(services, a, b, error=str(error))
    asked = Pair(a.side, b.side)
    pair = comparison.compare(a.loaded, b.loaded, asked.heat, asked.top)
    around = shell.shell(services.worker, a.loaded.queue, "Compare", "runs")
    page = compare.page(around, asked, pair, error=f"{error} Both sides are shown as a comparison opens.")
    return htmx.html(services.renderer.page(page), errors.tell(error).status)


@router.get("/compare.json")
def as_json(services: Serving, a: str = "", b: str = "", heat: str = "", top: str = "") -> Response:
    """The page's figures; 202 while a side is still being computed."""
    if not a or not b:
        raise RequestError(f"A comparison needs two addresses, a and b, for example a={sides.EXAMPLE}")
    (one, heat_a), (other, heat_b) = sides.read(a), sides.read(b)
    first, second = (loaded_state(services, side.run_id, side.state) for side in (one, other))
    wanted = sides.heat(heat) if heat else heat_a or heat_b
    pair: Comparison = comparison.compare(first, second, wanted, sides.top(top))
    status = 202 if pair.waiting else 200
    return JSONResponse(comparison.as_json(pair), status, headers={"Cache-Control": "no-cache"})


def _given(services: Services, text: str) -> Given:
    if not text.strip():
        return Given("")
    try:
        side, heat = sides.read(text)
        return Given(text, side, heat, loaded_state(services, side.run_id, side.state))
    except (RequestError, runs.NoSuchRun, runs.QueueFull, runs.NoModel) as error:
        return Given(text, error=str(error), status=errors.tell(error).status)


def _choice(services: Services, a: Given, b: Given, heat: str = "", *, error: str = "") -> Response:
    """The page that asks for what is missing, and keeps what is there."""
    known = a.loaded or b.loaded
    with services.database.read() as session:
        around = shell.shell(services.worker, queries.queue_length(session), "Compare", "runs")
        offered: tuple[Choice, ...] = ()
        recent: list[Run] = []
        if known is not None:
            recent = queries.nearest(session, known.run, RECENT)
            rows = queries.attributions(session, known.run.id, SUGGESTED)
            steered = queries.steered(session, known.run.id, SUGGESTED)
            offered = choose.suggestions(known, rows, steered, "b" if a.loaded else "a", heat)
        else:
            recent = queries.runs(session, limit=RECENT)
    fields = [
        AddressField(name, LABELS[name], given.text, given.error)
        for name, given in (("a", a), ("b", b))
        if given.loaded is None
    ]
    page = choose.page(around, fields, (a.loaded, b.loaded), offered, recent, heat, error)
    status = max(a.status, b.status, 422 if error else 200)
    return htmx.html(services.renderer.page(page), status)
