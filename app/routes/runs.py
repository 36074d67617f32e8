"""GET /runs (the list), GET /runs/{id} (one state of a run's page, or fragments of it), cancel and ask again."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app import htmx, jobs, longjobs, queries, runs, state
from app.contexts import RunPage
from app.database import Reader
from app.pictures import sample_hashes
from app.services import Services, Serving
from app.state import PageState
from app.targets import TargetChoice
from app.views import load, page, shell
from app.views.load import Loaded
from engine.contract import BadTarget

router = APIRouter()


@router.get("/runs")
def index(services: Serving, session: Reader, before: str = "") -> Response:
    listed = queries.runs(session, before, queries.PER_PAGE + 1)
    around = shell.shell(services.worker, queries.queue_length(session), "Runs", "runs")
    return htmx.html(services.renderer.page(shell.runs_page(around, listed, per_page=queries.PER_PAGE, before=before)))


@router.get("/runs/{run_id}")
def show(request: Request, services: Serving, run_id: str) -> Response:
    asked = state.parse(request.query_params.multi_items())
    loaded = loaded_state(services, run_id, asked)
    panel = asked.panel or page.new_panel()
    names = htmx.wanted_fragments(request, page.FRAGMENTS)
    headers = {}
    if htmx.is_htmx(request) and "panel" in request.query_params:
        headers["HX-Push-Url"] = loaded.url  # an address that is shared must not share the panel
    if names:
        return htmx.html("\n".join(rendered(services, loaded, panel, names).values()), headers=headers)
    return htmx.html(services.renderer.page(context(services, loaded, panel)), headers=headers)


@router.post("/runs/{run_id}/cancel")
def cancel(services: Serving, run_id: str) -> Response:
    runs.cancel(services, run_id)
    return htmx.see_other(f"/runs/{run_id}")


@router.post("/runs/{run_id}/again")
def again(services: Serving, run_id: str) -> Response:
    runs.again(services, run_id)
    return htmx.see_other(f"/runs/{run_id}")


def chosen(services: Services, run_id: str, asked: PageState) -> tuple[PageState, TargetChoice]:
    """A state with the run's own method where it names none, and its target. Raises NoSuchRun, BadTarget."""
    with services.database.read() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        choice = load.target(run, asked)
        if choice is None:
            raise BadTarget("This run has no answer to explain yet. Wait for the answer.")
        return asked.own(run.method), choice


def loaded_state(services: Services, run_id: str, asked: PageState, *, ranked: bool = True) -> Loaded:
    """The state of a run's page; `ranked` as in `load.load`. An attribution that it shows and that was never computed,
    or is outdated, is queued: the result depends on nothing but the URL, so that a GET may fill this cache. Raises
    NoSuchRun, RequestError."""
    _fill(services, run_id, asked)
    with services.database.read() as session:
        loaded = load.load(session, run_id, asked, ranked=ranked)
    if loaded is None:
        raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
    return loaded


def _fill(services: Services, run_id: str, asked: PageState) -> None:
    """The attribution of the whole answer is part of the run's own job: it comes with it, or was cancelled with it."""
    with services.database.read() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        asked = asked.own(run.method)
        choice = load.target(run, asked)
        whole = f"0-{len(run.answer['tokens'])}" if run.answer else ""
        if choice is None or (choice.key == whole and asked.method == run.method and run.state != "done"):
            return
        row = queries.attribution(session, run_id, choice.key, asked.method, arrays=False)
        there = row is not None and not jobs.outdated(session, run, row, services.worker.info, services.worker.saes)
        seen = asked.heat != "input" or longjobs.of_run(session, run_id, ("input",), choice, asked.method)
    try:
        if not there:
            runs.retarget(services, run_id, choice, asked.method)
        if not seen:
            runs.measure(services, run_id, "input", choice, asked.method)
    except runs.QueueFull:
        if row is None:
            raise  # else what is outdated is shown as long as there is no room


def context(services: Services, loaded: Loaded, panel: str) -> RunPage:
    around = shell.shell(services.worker, loaded.queue, loaded.run.question)
    sample = loaded.run.picture_hash in sample_hashes(services.limits) if loaded.run.picture_hash else False
    return page.run_page(loaded, services.worker, around, panel=panel, sample=sample)


def rendered(services: Services, loaded: Loaded, panel: str, names: tuple[str, ...]) -> dict[str, str]:
    """Fragments of the page by name, each whole."""
    views = {name: page.VIEWS[name](loaded, services.worker, panel) for name in names}
    return {name: services.renderer.fragment(name, view) for name, view in views.items()}
