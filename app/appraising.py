"""The use cases of evaluations: bring a set of questions, have the work estimated, start it, stop it, go on with it.
Same set, settings, model and concepts: same row, so that an evaluation that was stopped goes on when it is asked for
again."""

from pathlib import Path

from sqlalchemy.orm import Session

from app import evaluating, evaluations, longjobs, questionsets, runs, standing
from app.evaluations import Draft, Known, Plan
from app.questionsets import Brought
from app.services import Services
from app.tables import JobRow, QuestionSet, now


def sets_folder(services: Services) -> Path:
    return evaluating.folder(services.store.folder)


def bring(services: Services, brought: Brought) -> str:
    """Keep a set of questions; its hash. Raises RequestError."""
    folder = sets_folder(services)
    questionsets.format_of(brought)
    set_hash = questionsets.keep(folder, brought)
    with services.database.read() as session:
        if session.get(QuestionSet, set_hash) is not None:
            return set_hash
    try:
        row = questionsets.described(folder, set_hash, brought)
    except BaseException:
        questionsets.forget(folder, set_hash)
        raise
    with services.database.write() as session:
        questionsets.remember(session, row)
    return set_hash


def plan(services: Services, draft: Draft) -> Plan:
    """What the draft would do. Raises RequestError."""
    info = services.worker.info
    with services.database.read() as session:
        return evaluations.plan(session, sets_folder(services), draft, info.revision if info is not None else "")


def request(services: Services, draft: Draft, *, here: bool = False) -> str:
    """Queue an evaluation, or go on with one that was stopped or failed; its id. With `here` it is not queued: the
    caller does it. One that is done stays done."""
    info = standing.loaded(services, evaluating.KIND)

    def room() -> None:
        if not here:
            runs.check_room(session, services)

    with services.database.write() as session:
        row = evaluating.row_of(session, draft.set)
        settings = evaluations.settings_of(draft, row)
        params = evaluations.params_of(session, info, settings, row)
        job = longjobs.request(session, evaluating.KIND, None, params, room)
        if here and job.state != "done":
            job.state, job.started, job.stop_requested = "running", now(), False
        job_id = job.id
    return standing.told(services, job_id)


def again(services: Services, job_id: str) -> str:
    """Go on with an evaluation that was stopped or failed; its id."""
    with services.database.read() as session:
        found(session, job_id)
    return standing.again(services, job_id)


def cancel(services: Services, job_id: str) -> None:
    with services.database.read() as session:
        found(session, job_id)
    standing.cancel(services, job_id)


def found(session: Session, job_id: str) -> JobRow:
    """Raises Missing."""
    return standing.found(session, evaluating.KIND, job_id, "under Evaluate")


def known(session: Session, job_id: str) -> Known:
    """Raises Missing."""
    found(session, job_id)
    there = evaluations.known(session, job_id)
    assert there is not None, "it was found"
    return there
