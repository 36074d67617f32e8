"""What a person does with concepts in latents: has memberships made, and stops that."""

from sqlalchemy import select

from app import latentbuilding, latents, longjobs, runs
from app.services import Services
from app.tables import JobRow
from engine.contract import RequestError


def make(services: Services, sae: str, concept: str = "", probes: str = "") -> None:
    """Queue the memberships of this SAE's latents in one concept, or in all that lack them. Raises NoModel, QueueFull,
    UnknownName, RequestError where there is nothing to make."""
    runs.check_model(services)
    info = services.worker.info
    if info is None:
        raise RequestError("The model is loading, and memberships belong to one model. Try again in a moment.")
    chosen, n = latents.chosen(services, sae), latentbuilding.probes_of(probes)
    with services.database.write() as session:
        if any(job.live for job in latentbuilding.newest(session, [chosen.id]).values()):
            raise RequestError("Memberships of this SAE are being made. Wait for their end, or cancel them first.")
        found = latentbuilding.plan(session, info, chosen.id, n, concept)
        if not found.targets:
            raise RequestError(
                "There is nothing to make: every concept with probes has its memberships of this SAE’s latents."
            )
        params = latentbuilding.params_of(info, chosen.id, chosen.name, concept, n, found)
        before = longjobs.identity(latentbuilding.KIND, None, params)
        done = select(JobRow).where(JobRow.identity == before, JobRow.state == "done")
        for row in session.scalars(done):
            row.state = "cancelled"  # what it made is out of date, or gone
        session.flush()
        row = longjobs.request(
            session, latentbuilding.KIND, None, params, lambda: runs.check_room(session, services)
        )  # fmt: skip
        session.flush()
        job_id = row.id
    services.worker.stop(job_id, wanted=False)
    services.worker.wake()
    services.broker.publish(f"job:{job_id}")


def cancel(services: Services, job_id: str) -> JobRow:
    """Stop such a job; the evidence that it has is kept for the next. Raises RequestError where there is none."""
    with services.database.write() as session:
        row = longjobs.cancel(session, job_id)
        if row is None or row.kind != latentbuilding.KIND:
            raise RequestError("There is no such job any more.")
        running = row.stop_requested
        session.flush()
        session.expunge(row)
    if running:
        services.worker.stop(job_id)
    services.broker.publish(f"job:{job_id}")
    return row
