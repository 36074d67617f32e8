"""The use cases of experiments with latents: have the work estimated, start it, find it again. Same set, SAE, settings
and model: same row, so that an experiment that was stopped goes on when it is asked for again."""

from sqlalchemy.orm import Session

from app import experimenting, experiments, latents, longjobs, runs, standing
from app.experiments import Draft, Known, Plan
from app.services import Services


def plan(services: Services, draft: Draft) -> Plan:
    """What the draft would do. Raises RequestError."""
    info = standing.loaded(services, experimenting.KIND)
    params = experiments.params_of(info, latents.chosen(services, draft.sae), draft)
    with services.database.read() as session:
        return experiments.plan(session, params)


def request(services: Services, draft: Draft) -> str:
    """Queue an experiment, or go on with one that was stopped or failed; its id. One that is done stays done."""
    params = plan(services, draft).params
    with services.database.write() as session:
        job = longjobs.request(session, experimenting.KIND, None, params, lambda: runs.check_room(session, services))
        job_id = job.id
    return standing.told(services, job_id)


def known(session: Session, job_id: str) -> Known:
    """Raises Missing."""
    return experiments.known(session, standing.found(session, experimenting.KIND, job_id, "under Experiments"))
