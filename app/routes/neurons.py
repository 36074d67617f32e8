"""The neuron page, the search, and which neurons fire inside a box of a run's picture."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app import conceptqueries, errors, exports, htmx, latentlooks, neuronqueries, neurons, notes, queries, runs
from app.database import Reader
from app.neuronqueries import Place
from app.routes.steering import fields
from app.services import Services, Serving
from app.views import neuron, search
from app.views.shell import shell

router = APIRouter()
PATIENCE = 0.4
"""Seconds to wait for what is quick: most of it is there by then, and the page need not ask again."""
Form = Annotated[list[tuple[str, str]], Depends(fields)]


def _revision(services: Services) -> str:
    return services.worker.info.revision if services.worker.info else ""


def _place(services: Services, revision: str, name: str) -> tuple[Place, str]:
    """A neuron, and what its model is called. Raises Missing where there is none."""
    parsed, info = neuronqueries.parse(name), services.worker.info
    if parsed is None:
        raise errors.Missing(f"“{name[:40]}” is no neuron. One is written text.LAYER.INDEX, both counted from 0.")
    if info is not None and info.revision == revision:
        if parsed[0] >= info.n_layers or parsed[1] >= info.d_mlp:
            raise errors.Missing(
                f"There is no neuron {name}: layers go from 0 to {info.n_layers - 1}, indices to {info.d_mlp - 1}."
            )
        return Place(revision, *parsed), info.name
    with services.database.read() as session:
        model = neuronqueries.model_name(session, revision)
    if model is None:
        raise errors.Missing(f"No model of revision “{revision[:40]}” is known here.")
    return Place(revision, *parsed), model


@router.get("/neurons/{name}")
def of_the_loaded_model(services: Serving, name: str) -> Response:
    if not _revision(services):
        raise errors.Missing("No model is loaded yet, so this name says nothing. Try again in a moment.")
    place, _ = _place(services, _revision(services), name)
    return htmx.see_other(place.path)


@router.get("/neurons/{revision}/{name}")
def show(services: Serving, revision: str, name: str) -> Response:
    """What is quick to know of a neuron of the loaded model is looked up when it is first looked at."""
    place, model = _place(services, revision, name)
    if name != place.neuron:
        return htmx.see_other(place.path)  # one spelling for one neuron
    with services.database.read() as session:
        surveyed = neurons.surveyed(session, revision)
    waiting = neurons.look(services, "neuron", neurons.look_params(place, surveyed), PATIENCE)
    reading = neurons.readers_params(services, place)
    if reading is not None and not waiting:
        waiting = neurons.look(services, "readers", reading, PATIENCE)
    info = services.worker.info
    shape = (info.n_layers, info.d_mlp) if info is not None and info.revision == revision else None
    with services.database.read() as session:
        found = neurons.gather(session, services, place, model, shape, waiting)
        around = shell(services.worker, queries.queue_length(session), place.neuron, "concepts")
        limits = (notes.LABEL, notes.NOTE)
        return htmx.html(services.renderer.page(neuron.page(around, place, found, _revision(services), limits)))


@router.post("/neurons/{revision}/{name}/note")
def write(services: Serving, revision: str, name: str, form: Form) -> Response:
    """The fields are `label` and `note`; both empty: they are forgotten."""
    place, _ = _place(services, revision, name)
    given = dict(form)
    neurons.write(services, place, given.get("label", ""), given.get("note", ""))
    return htmx.see_other(place.path)


@router.post("/neurons/{revision}/{name}/look")
def look(services: Serving, revision: str, name: str) -> Response:
    """Look up again what failed."""
    place, _ = _place(services, revision, name)
    with services.database.read() as session:
        params = neurons.look_params(place, neurons.surveyed(session, revision))
    neurons.request(services, "neuron", params)
    return htmx.see_other(place.path)


@router.post("/neurons/{revision}/survey")
def survey(services: Serving, revision: str, form: Form) -> Response:
    """Survey all neurons; `neuron` names the page to go back to."""
    place, _ = _place(services, revision, dict(form).get("neuron", ""))
    neurons.survey(services, revision)
    return htmx.see_other(f"{place.path}#seen")


@router.post("/neurons/{revision}/promotions")
def promotions(services: Serving, revision: str, form: Form) -> Response:
    """Read all neurons' promoted tokens; `q` is what to search for then."""
    neurons.request(services, "promotions", {"model_revision": revision})
    return htmx.see_other(search.address_of(dict(form).get("q", "")))


@router.post("/neurons/jobs/{job_id}/cancel")
def cancel(services: Serving, job_id: str, form: Form) -> Response:
    """`neuron`, `name` (of a latent) or `q` says to which page to go back."""
    neurons.cancel(services, job_id)
    given = dict(form)
    if given.get("name"):
        return htmx.see_other(f"/latents/{exports.quoted(given['name'])}")
    place = neuronqueries.parse(given.get("neuron", ""))
    if place is None:
        return htmx.see_other(search.address_of(given.get("q", "")))
    return htmx.see_other(Place(given.get("revision", _revision(services)), *place).path)


@router.get("/search")
def find(services: Serving, session: Reader, q: str = "") -> Response:
    revision, query, info = _revision(services), q.strip(), services.worker.info
    around = shell(services.worker, queries.queue_length(session), "Search", "concepts")
    lenses = neuronqueries.job(session, "promotions", {"model_revision": revision})
    ready = query and lenses is not None and lenses.state == "done"
    promoted = neuronqueries.promoting(session, lenses, query) if ready and lenses is not None else []
    noted = neuronqueries.noted(session, revision, query) if query else []
    labels = neuronqueries.labels(session, revision, [query, *(one.neuron for one in promoted)])
    concepts = conceptqueries.heads(session, revision, query) if query else []
    place = neuronqueries.parse(query)
    exists = info is not None and place is not None and place[0] < info.n_layers and place[1] < info.d_mlp
    named, written = latentlooks.found(services, session, query)
    latents = search.of_latents(revision, named, written)
    found = search.page(around, revision, query, concepts, noted, promoted, lenses, labels, latents, exists=exists)
    return htmx.html(services.renderer.page(found))


@router.get("/runs/{run_id}/fires")
def fires(services: Serving, run_id: str, left: str = "", top: str = "", right: str = "", bottom: str = "") -> Response:
    """Which neurons fire inside a box (pixels) of the run's picture."""
    with services.database.read() as session:
        found = queries.run_with_picture(session, run_id)
        around = shell(services.worker, queries.queue_length(session), "Which neurons fire here?", "runs")
    if found is None:
        raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
    run, picture, _ = found
    if picture is None:
        raise errors.Missing("This run has no picture to draw a box on.")
    edges = (left, top, right, bottom)
    box, message = search.box_of(edges, picture.width, picture.height)
    row, labels = None, {}
    if box is not None:
        params = {
            "model_revision": run.model_revision, "picture": picture.hash, "question": run.question, "box": list(box)
        }  # fmt: skip
        if run.model_revision != _revision(services):
            message = neurons.OTHER_MODEL
        message = neurons.look(services, "fires", params, PATIENCE) or message
        with services.database.read() as session:
            row = neuronqueries.job(session, "fires", params)
            names = [name for name, *_ in row.result["neurons"]] if row is not None and row.result else []
            labels = neuronqueries.labels(session, run.model_revision, names)
    here = search.fires_address(run_id, edges)
    return htmx.html(services.renderer.page(search.fires(around, run, picture, box, row, labels, message, here)))
