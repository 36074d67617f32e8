"""What a person does with neurons: looks at one, writes a label, has all of them surveyed, searches."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import formats, longjobs, neuronqueries, runs, surveying
from app.neuronqueries import Gathered, Place
from app.services import Services
from app.tables import JobRow, NeuronNote, Run, now
from engine.contract import RequestError

LABEL, NOTE = 80, 4000
"""Characters of a label and of a note at most."""
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
    info = services.worker.info
    done = neuronqueries.newest(session, "survey", place.revision, "done")
    result = done.result if done is not None else None
    record, sizes = None, {}
    if result is not None:
        shape = shape or tuple(result["shape"])
        if place.layer < shape[0] and place.index < shape[1]:
            path = surveying.path_of(services.store, result["file"])
            record = surveying.record(path, place.layer * shape[1] + place.index)
    if result is not None and record is not None:
        seen = [result["cases"][case][0] for case in record["case"][0].tolist() if case >= 0]
        sizes = neuronqueries.sizes(session, [picture for picture in seen if picture])
    job = neuronqueries.job(session, "neuron", look_params(place, result))
    looked = job.result if job is not None and job.state == "done" else None
    names = [name for name, _ in looked["alike"]] if looked else []
    pace = None
    if done is not None and done.started and done.finished and done.total:
        pace = (done.finished - done.started).total_seconds() / done.total
    builtin = info is not None and info.revision == place.revision and info.builtin
    return Gathered(
        model=model,
        shape=shape,
        memberships=neuronqueries.memberships(session, place.revision, place.layer, place.index),
        n_concepts=neuronqueries.n_concepts(session, place.revision),
        note=neuronqueries.note(session, place.revision, place.layer, place.index),
        runs=neuronqueries.ranked_in(session, place.revision, place.layer, place.index),
        job=job,
        looked=looked,
        maps=job.arrays if looked is not None and job is not None else None,
        labels=neuronqueries.labels(session, place.revision, names),
        survey=result if record is not None else None,
        survey_total=done.params["scenes"] + done.params["runs"] if done is not None else 0,
        record=record,
        sizes=sizes,
        work=neuronqueries.newest(session, "survey", place.revision),
        params=survey_params(session, place.revision, builtin=builtin),
        pace=pace,
        waiting=waiting,
    )


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


def survey(services: Services, revision: str) -> None:
    """Have all neurons of the loaded model surveyed."""
    info = services.worker.info
    if info is None or info.revision != revision:
        raise RequestError(OTHER_MODEL)
    with services.database.read() as session:
        params = survey_params(session, revision, builtin=info.builtin)
        if not params["scenes"] and not params["runs"]:
            raise RequestError("There is nothing to survey yet: no question was answered. Ask some first.")
        live = neuronqueries.newest(session, "survey", revision, "queued", "running")
    if live is None:
        request(services, "survey", params)


def cancel(services: Services, job_id: str) -> None:
    """Stop a job about neurons."""
    with services.database.write() as session:
        row = longjobs.cancel(session, job_id)
        if row is None or row.kind not in surveying.RUNNERS:
            raise RequestError("There is no such job any more.")
        running = row.stop_requested
    if running:
        services.worker.stop(job_id)
    services.broker.publish(f"job:{job_id}")


def write(services: Services, place: Place, label: str, text: str) -> None:
    """Keep a label and a note; both empty: forget them. Raises RequestError for longer ones."""
    label = formats.one_line(label) if any(map(str.isprintable, label)) else ""
    text = "".join(letter for letter in text.replace("\r\n", "\n") if letter == "\n" or ord(letter) >= 32).strip()
    for what, written, limit in (("label", label, LABEL), ("note", text, NOTE)):
        if len(written) > limit:
            raise RequestError(f"The {what} has {len(written)} characters; at most {limit} are kept. Shorten it.")
    with services.database.write() as session:
        row = neuronqueries.note(session, place.revision, place.layer, place.index)
        if row is None:
            row = NeuronNote(model_revision=place.revision, layer=place.layer, index=place.index)
            session.add(row)
        row.label, row.note, row.changed = label, text, now()
        if not label and not text:
            session.flush()
            session.delete(row)
