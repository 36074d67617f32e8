"""What people do with long jobs that have a page of their own (evaluations, experiments): find one, go on with it, stop
it."""

from sqlalchemy.orm import Session

from app import longjobs, runs
from app.errors import Missing
from app.services import Services
from app.tables import JobRow
from engine.contract import ModelInfo, RequestError


def loaded(services: Services, what: str) -> ModelInfo:
    """The loaded model. Raises NoModel, or RequestError while it loads; `what`, with its article, is of one model."""
    runs.check_model(services)
    if services.worker.info is None:
        raise RequestError(f"The model is loading, and {what} is of one model. Try again in a moment.")
    return services.worker.info


def found(session: Session, kind: str, job_id: str, where: str) -> JobRow:
    """Raises Missing, which says `where` all are listed."""
    job = session.get(JobRow, job_id)
    if job is None or job.kind != kind:
        raise Missing(f"There is no {kind} “{job_id[:40]}”. All are listed {where}.")
    return job


def again(services: Services, job_id: str) -> str:
    """Go on with a job that was stopped or failed; its id."""
    with services.database.write() as session:
        job = session.get_one(JobRow, job_id)
        loaded(services, job.kind)
        longjobs.request(session, job.kind, None, job.params, lambda: runs.check_room(session, services))
    return told(services, job_id)


def cancel(services: Services, job_id: str) -> None:
    with services.database.write() as session:
        job = longjobs.cancel(session, job_id)
        asked = job is not None and job.stop_requested
    if asked:
        services.worker.stop(job_id)
    services.broker.publish(f"job:{job_id}")


def told(services: Services, job_id: str) -> str:
    """Tell of a job that was queued; its id."""
    services.worker.stop(job_id, wanted=False)
    services.worker.wake()
    services.broker.publish(f"job:{job_id}")
    return job_id
