"""The use cases of a run: ask, steer, retarget, cancel, ask again. Each is one writing transaction, after which the
worker and whoever waits are told. Same identity, same row: asking twice computes once."""

import secrets
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app import formats, jobs, longjobs, pictures, queries, records, steerings
from app.services import Services
from app.tables import LIVE, AttributionRow, NeuronRow, Run, Watcher, now
from app.targets import TargetChoice, outside
from app.uploads import Normalised
from engine.contract import METHODS, BadTarget, RequestError, UnknownName

ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


class NoSuchRun(Exception):
    """There is no run of this id."""


class QueueFull(Exception):
    """Too many jobs wait already."""


class NoModel(Exception):
    """The model was refused or could not be loaded: nothing can be computed."""


def keep(services: Services, picture: Normalised | str | None) -> str:
    """Store a picture unless it is stored already; its hash ('' for none)."""
    if not isinstance(picture, Normalised):
        return picture or ""
    services.store.put(picture)
    with services.database.write() as session:
        pictures.remember(session, picture)
    return picture.hash


def ask(services: Services, question: str, picture_hash: str | None) -> str:
    """Queue a question about a stored picture, or about none; the run's id."""
    text = formats.one_line(question)
    limit = services.settings.max_question
    if not text:
        raise RequestError("The question is empty. Type a question about the picture.")
    if len(text) > limit:
        raise RequestError(f"The question has {len(text)} characters; at most {limit} are taken. Shorten it.")
    check_model(services)
    new, method = services.settings.max_new_tokens, jobs.own_method(services.worker.info)
    info = services.worker.info
    if info is not None:
        model = records.model_to_json(info)
        identity = jobs.identity(picture_hash, text, model, new, method, None)
    else:  # the model is loading: the worker gives the run its true identity when it takes it up
        model = None
        unknown = {"revision": "", "processor": services.settings.model}
        identity = f"loading:{jobs.identity(picture_hash, text, unknown, new, method, None)}"
    with services.database.write() as session:
        run = _queue(session, services, identity)
        if run is None:
            run = Run(
                id=new_id(), identity=identity, state="queued", question=text, picture_hash=picture_hash,
                max_new_tokens=new, method=method, model=model, model_revision=model["revision"] if model else "",
            )  # fmt: skip
            session.add(run)
        run_id = run.id
    services.worker.stop(run_id, wanted=False)
    services.worker.wake()
    return run_id


def steer(services: Services, run_id: str, steering: dict[str, Any], panel: str) -> tuple[str, str]:
    """(the original run, the steered run that answers it under `steering`; '' when the steering is empty). What this
    `panel` has asked for before and nobody else waits for is stopped."""
    check_model(services)
    with services.database.write() as session:
        parent = _get(session, run_id)
        if parent.parent_id:
            parent = _get(session, parent.parent_id)
        parent_id = parent.id
        if parent.answer is None or not parent.model:
            raise RequestError("This run has no answer to steer yet. Wait for the answer, then turn its concepts.")
        steering = steerings.in_model(steering, parent.model)
        verify(services, session, parent, steering)
        child_id = ""
        if not steerings.empty(steering):
            child_id = _steered(session, services, parent, steering).id
            _watch(session, child_id, panel)
        stopped = _superseded(session, services, parent_id, panel, child_id) if panel else []
    if child_id:
        services.worker.stop(child_id, wanted=False)
    for other in stopped:
        services.worker.stop(other)
    services.worker.wake()
    for changed in (*stopped, child_id):
        services.broker.publish(changed)
    return parent_id, child_id


def attached(services: Services) -> steerings.Attached:
    """The loaded model's SAEs; None while it is loading."""
    return services.worker.saes if services.worker.info is not None else None


def verify(services: Services, session: Session, run: Run, steering: dict[str, Any]) -> None:
    """Refuse what this run's model does not have. Raises RequestError."""
    assert run.model is not None, "a run that has an answer has a model"
    facts = queries.concept_facts(session, run.model_revision)
    steerings.verify(steering, facts, run.model, attached(services))


def _steered(session: Session, services: Services, parent: Run, steering: dict[str, Any]) -> Run:
    model = jobs.model_of_steered(session, parent, steering)
    identity = jobs.identity(
        parent.picture_hash, parent.question, model, parent.max_new_tokens, parent.method, steering
    )
    run = _queue(session, services, identity)
    if run is None:
        run = Run(
            id=new_id(), identity=identity, state="queued", question=parent.question,
            picture_hash=parent.picture_hash, max_new_tokens=parent.max_new_tokens, method=parent.method,
            model=model, model_revision=parent.model_revision, parent_id=parent.id, steering=steering,
        )  # fmt: skip
        session.add(run)
        session.flush()
    return run


def _watch(session: Session, run_id: str, panel: str) -> None:
    if session.get(Watcher, (run_id, panel)) is None:
        session.add(Watcher(run_id=run_id, panel=panel))
        session.flush()


def _superseded(session: Session, services: Services, parent_id: str, panel: str, child_id: str) -> list[str]:
    """This panel waits for `child_id` only: leave its other live runs; ids of running ones that nobody waits for,
    neither as a watcher (who asked for it) nor as a listener (who has it open)."""
    others = select(Run.id).where(Run.parent_id == parent_id, Run.id != child_id)
    session.execute(
        delete(Watcher)
        .where(Watcher.panel == panel, Watcher.run_id.in_(others))
        .execution_options(synchronize_session=False)
    )
    watched = select(Watcher.run_id).where(Watcher.run_id == Run.id).exists()
    left = select(Run).where(Run.parent_id == parent_id, Run.id != child_id, Run.state.in_(LIVE), ~watched)
    unheard = [run for run in session.scalars(left.with_for_update()) if not services.broker.heard(run.id, panel)]
    return [run.id for run in unheard if _stop(run)]


def retarget(services: Services, run_id: str, choice: TargetChoice, method: str, *, again: bool = False) -> bool:
    """Queue the attribution of a target unless it is there already; True if it was queued. One that is outdated (see
    jobs.outdated) counts as missing; `again` repeats any failed one."""
    if method not in METHODS:
        raise UnknownName(f"There is no method “{method}”. Choose one of {', '.join(METHODS)}.")
    with services.database.write() as session:
        run = _get(session, run_id)
        _inside(run, choice)
        if run.live and choice.key == f"0-{_length(run)}" and method == run.method:
            return False  # the run's own job brings it
        row = queries.attribution(session, run_id, choice.key, method, arrays=False)
        failed = row is not None and row.state == "failed"
        if row is not None and not (again and failed) and not _outdated(services, session, run, row):
            return False
        check_model(services)
        check_room(session, services)
        if row is None:
            row = jobs.row_of(run_id, choice, method)
            session.add(row)
        else:
            session.execute(delete(NeuronRow).where(NeuronRow.attribution_id == row.id))
        row.state, row.error, row.queued = "queued", "", now()
        row.summary = row.arrays = row.value = None
    services.worker.wake()
    return True


def _outdated(services: Services, session: Session, run: Run, row: AttributionRow) -> bool:
    return jobs.outdated(session, run, row, services.worker.info, services.worker.saes)


def measure(services: Services, run_id: str, kind: str, choice: TargetChoice, method: str) -> None:
    """Queue a measurement of a target unless it is there already."""
    if kind not in longjobs.KINDS:
        raise UnknownName(f"There is no measurement “{kind[:40]}”. Choose one of {', '.join(longjobs.KINDS)}.")
    if method not in METHODS:
        raise UnknownName(f"There is no method “{method}”. Choose one of {', '.join(METHODS)}.")

    def room() -> None:
        check_model(services)
        check_room(session, services)

    with services.database.write() as session:
        run = _get(session, run_id)
        _inside(run, choice)
        if kind == "noise" and run.steering:
            raise RequestError("The noise band is measured without steering. Measure it on the original run's page.")
        job_id = longjobs.request(session, kind, run_id, longjobs.params_of(kind, choice, method), room).id
    services.worker.stop(job_id, wanted=False)
    services.worker.wake()
    services.broker.publish(run_id)


def cancel_measurement(services: Services, job_id: str) -> str:
    """Stop a live measurement; the id of its run. Raises NoSuchRun."""
    with services.database.write() as session:
        row = longjobs.cancel(session, job_id)
        if row is None or row.run_id is None:
            raise NoSuchRun(f"There is no measurement “{job_id[:40]}”.")
        run_id, asked = row.run_id, row.stop_requested
    if asked:
        services.worker.stop(job_id)
    services.broker.publish(run_id)
    return run_id


def _length(run: Run) -> int:
    return len(run.answer["tokens"]) if run.answer else 0


def _inside(run: Run, choice: TargetChoice) -> None:
    """Refuse a span outside the answer. Raises BadTarget."""
    (start, end), count = choice.span, _length(run)
    if choice.target.text is None and not 0 <= start < end <= count:
        raise outside(start, end, count)
    if not 0 <= start <= count:
        raise BadTarget(f"A text cannot be put after {start} tokens of an answer that has {count}.")


def cancel(services: Services, run_id: str) -> None:
    """Stop a live run; a finished one stays as it is."""
    with services.database.write() as session:
        running = _stop(_get(session, run_id, lock=True))
    if running:
        services.worker.stop(run_id)
    services.broker.publish(run_id)


def again(services: Services, run_id: str) -> None:
    """Queue a failed or cancelled run again."""
    check_model(services)
    with services.database.write() as session:
        run = _get(session, run_id)
        if run.steering and run.steering.get("latents"):
            verify(services, session, run, run.steering)
        _queue(session, services, run.identity)
        parent_id = run.parent_id
        if parent_id:
            _watch(session, run_id, "")
    services.worker.stop(run_id, wanted=False)
    services.worker.wake()
    for changed in (run_id, parent_id or ""):
        services.broker.publish(changed)


def _queue(session: Session, services: Services, identity: str) -> Run | None:
    """The row of this identity, live or done; a failed or cancelled one is queued again. None if there is none (and
    there is room for it)."""
    run = session.scalars(select(Run).where(Run.identity == identity).with_for_update()).first()
    if run is None:
        check_room(session, services)
    elif run.state in ("failed", "cancelled"):
        check_room(session, services)
        run.state, run.error, run.remedy, run.queued = "queued", "", "", now()
        run.answer = run.pair = run.control = run.timing = run.finished = None
        session.execute(delete(AttributionRow).where(AttributionRow.run_id == run.id))
        session.execute(delete(Watcher).where(Watcher.run_id == run.id))
        run.stop_requested = False
    elif run.stop_requested:
        run.stop_requested = False
    return run


def _stop(run: Run) -> bool:
    """Cancel a queued run at once; ask a running one to stop (True)."""
    if run.state == "queued":
        run.state, run.finished = "cancelled", now()
    elif run.state == "running":
        run.stop_requested = True
        return True
    return False


def check_room(session: Session, services: Services) -> None:
    waiting, limit = queries.queue_length(session, running=False), services.settings.max_queue
    if waiting >= limit:
        raise QueueFull(f"{waiting} jobs wait already; at most {limit} may. Try again in a moment.")


def check_model(services: Services) -> None:
    if services.worker.state == "refused":
        raise NoModel(services.worker.message)


def _get(session: Session, run_id: str, *, lock: bool = False) -> Run:
    run = session.get(Run, run_id, with_for_update=lock)
    if run is None:
        raise NoSuchRun(f"There is no run “{run_id[:40]}”.")
    return run


def new_id() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(10))
