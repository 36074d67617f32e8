"""What a person does with neurons: looks at one, writes a label, has all of them surveyed, searches."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import latentqueries, latentsurveys, longjobs, neuronqueries, notes, runs, surveying
from app.neuronqueries import Gathered, Place, Seen
from app.services import Services
from app.tables import JobRow, NeuronNote, Run, now
from engine.contract import RequestError

OTHER_MODEL = "That takes the model to which the neuron belongs. Start the server with it, or look at the loaded one's."


def request(services: Services, kind: str, params: dict[str, Any]) -> JobRow:
    """Queue a job about neurons of the loaded model, unless it is there already. Raises RequestError for another model,
    NoModel, QueueFull."""
    runs.check_model(services)
    info = services.worker.info
    if info is not None and info.revision != params["model_revision"]:
        raise RequestError(OTHER_MODEL)
    with services.database.write() as session:
        row = longjobs.request(session, kind, None, params, lambda: runs.check_room(session, services))
        session.flush()
        session.expunge(row)
    services.worker.stop(row.id, wanted=False)
    services.worker.wake()
    services.broker.publish(f"job:{row.id}")
    return row


def look(services: Services, kind: str, params: dict[str, Any], patience: float) -> str:
    """Have a quick job done if its model is loaded and nobody asked before; wait a moment for it. '' or why it is not
    done."""
    info = services.worker.info
    if info is None or info.revision != params["model_revision"]:
        return ""
    with services.database.read() as session:
        row = neuronqueries.job(session, kind, params)
    if row is None:
        try:
            row = request(services, kind, params)
        except (runs.QueueFull, runs.NoModel) as error:
            return str(error)
    if row.live:
        job_id = row.id
        services.broker.wait(f"job:{job_id}", lambda: _ended(services, job_id), patience)
    return ""


def _ended(services: Services, job_id: str) -> bool:
    with services.database.read() as session:
        row = session.get(JobRow, job_id)
        return row is None or not row.live


def gather(
    session: Session, services: Services, place: Place, model: str, shape: tuple[int, int] | None, waiting: str
) -> Gathered:
    """Everything that is stored of a neuron. `model` = its model's name, `shape` of the loaded one if it is its own."""

    def in_survey(result: dict[str, Any]) -> int | None:
        nonlocal shape
        shape = shape or (result["shape"][0], result["shape"][1])
        inside = place.layer < shape[0] and place.index < shape[1]
        return place.layer * shape[1] + place.index if inside else None

    def looked(survey: dict[str, Any] | None) -> dict[str, Any]:
        return look_params(place, survey)

    seen = gather_seen(session, services, ("survey", "neuron"), place.revision, in_survey, looked)
    names = [name for name, _ in seen.looked["alike"]] if seen.looked else []
    asked = readers_params(services, place)
    readers = neuronqueries.job(session, "readers", asked) if asked is not None else None
    found = readers.result["saes"] if readers is not None and readers.result else []
    return Gathered(
        model=model,
        shape=shape,
        memberships=neuronqueries.memberships(session, place.revision, place.layer, place.index),
        n_concepts=neuronqueries.n_concepts(session, place.revision),
        note=neuronqueries.note(session, place.revision, place.layer, place.index),
        runs=neuronqueries.ranked_in(session, place.revision, place.layer, place.index),
        seen=seen,
        labels=neuronqueries.labels(session, place.revision, names),
        readers=readers,
        reading=latentqueries.labels(session, {index for sae in found for index, _ in sae["latents"]}),
        waiting=waiting,
    )


def gather_seen(
    session: Session,
    services: Services,
    kinds: tuple[str, str],
    revision: str,
    in_survey: Callable[[dict[str, Any]], int | None],
    looked: Callable[[dict[str, Any] | None], dict[str, Any]],
    **of: str,
) -> Seen:
    """What is stored of when a neuron or latent is active. `kinds` = that of surveys, and of what is looked up of one;
    `in_survey` gives its place in a survey's file, `looked` the parameters of what is looked up. `of`: what the
    survey's parameters name beside the model (`sae` = an SAE's id, and its `name`)."""
    info, sae = services.worker.info, of.get("sae", "")
    done = neuronqueries.newest(session, kinds[0], revision, "done", sae=sae)
    result = done.result if done is not None else None
    record, sizes, pace = None, {}, None
    if result is not None and (at := in_survey(result)) is not None:
        record = surveying.record(surveying.path_of(services.store, result["file"]), at)
    if result is not None and record is not None:
        seen = [result["cases"][case][0] for case in record["case"][0].tolist() if case >= 0]
        sizes = neuronqueries.sizes(session, [picture for picture in seen if picture])
    if done is not None and done.started and done.finished and done.total:
        pace = (done.finished - done.started).total_seconds() / done.total
    builtin = info is not None and info.revision == revision and info.builtin
    return Seen(
        survey=result if record is not None else None,
        record=record,
        total=done.params["scenes"] + done.params["runs"] if done is not None else 0,
        sizes=sizes,
        work=neuronqueries.newest(session, kinds[0], revision, sae=sae),
        params={**survey_params(session, revision, builtin=builtin), **of},
        pace=pace,
        job=neuronqueries.job(session, kinds[1], looked(result)),
    )


def readers_params(services: Services, place: Place) -> dict[str, Any] | None:
    """What is asked for which latents read a neuron; None where no SAE of its model is there to ask."""
    info, ids = services.worker.info, [sae.id for sae in services.worker.saes if not sae.fits]
    if info is None or info.revision != place.revision or not ids:
        return None
    return {"model_revision": place.revision, "layer": place.layer, "index": place.index, "saes": ids}


def look_params(place: Place, survey: dict[str, Any] | None) -> dict[str, Any]:
    """What is looked up of a neuron, and in which survey."""
    return {
        "model_revision": place.revision, "layer": place.layer, "index": place.index,
        "survey": survey["file"] if survey is not None else "",
    }  # fmt: skip


def surveyed(session: Session, revision: str) -> dict[str, Any] | None:
    """The result of the newest survey of a model."""
    row = neuronqueries.newest(session, "survey", revision, "done")
    return row.result if row is not None else None


def survey_params(session: Session, revision: str, *, builtin: bool) -> dict[str, Any]:
    """What a survey that is asked for at this moment depends on."""
    mine = select(func.count()).select_from(Run).where(
        Run.model_revision == revision, Run.state == "done", Run.parent_id.is_(None)
    )  # fmt: skip
    return {
        "model_revision": revision,
        "scenes": surveying.SCENES if builtin else 0,
        "runs": min(int(session.execute(mine).scalar_one()), surveying.RUNS),
    }


def survey(services: Services, revision: str, kind: str = "survey", **of: str) -> None:
    """Have all neurons of the loaded model surveyed, or all latents of one of its SAEs: see gather_seen."""
    info = services.worker.info
    if info is None or info.revision != revision:
        raise RequestError(OTHER_MODEL)
    with services.database.read() as session:
        params = {**survey_params(session, revision, builtin=info.builtin), **of}
        if not params["scenes"] and not params["runs"]:
            raise RequestError("There is nothing to survey yet: no question was answered. Ask some first.")
        live = neuronqueries.newest(session, kind, revision, "queued", "running", sae=of.get("sae", ""))
    if live is None:
        request(services, kind, params)


def cancel(services: Services, job_id: str) -> None:
    """Stop a job about neurons or latents."""
    with services.database.write() as session:
        row = longjobs.cancel(session, job_id)
        if row is None or row.kind not in (*surveying.RUNNERS, *latentsurveys.RUNNERS):
            raise RequestError("There is no such job any more.")
        running = row.stop_requested
    if running:
        services.worker.stop(job_id)
    services.broker.publish(f"job:{job_id}")


def write(services: Services, place: Place, label: str, text: str) -> None:
    """Keep a label and a note; both empty: forget them. Raises RequestError for longer ones."""
    label, text = notes.cleaned(label, text)
    with services.database.write() as session:
        row = neuronqueries.note(session, place.revision, place.layer, place.index)
        if row is None:
            row = NeuronNote(model_revision=place.revision, layer=place.layer, index=place.index)
            session.add(row)
        row.label, row.note, row.changed = label, text, now()
        if not label and not text:
            session.flush()
            session.delete(row)
