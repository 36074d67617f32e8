"""The use cases of a concept's validation and collaboration: have one measured, stop it. Same identity, same row."""

from typing import Any

from sqlalchemy.orm import Session

from app import collaborating, longjobs, queries, runs, steerings, validating, validations
from app.errors import Missing
from app.services import Services
from app.tables import ConceptRow
from engine.contract import UnknownName


def find(session: Session, model_revision: str, name: str) -> ConceptRow:
    """A concept of this model. Raises Missing, naming near misses."""
    row = queries.concept(session, model_revision, name)
    if row is None:
        raise Missing(str(steerings.unknown_concept(name, queries.concept_facts(session, model_revision))))
    return row


def revision(services: Services) -> str:
    return services.worker.info.revision if services.worker.info else ""


def request(services: Services, kind: str, name: str, alpha: float, top: int) -> str:
    """Queue a validation or collaboration of a concept unless it is there already; the job's id."""
    if kind not in validations.KINDS:
        raise UnknownName(f"There is no measurement “{kind[:40]}” of a concept. Choose validate or collaborate.")

    def room() -> None:
        runs.check_model(services)
        runs.check_room(session, services)

    with services.database.write() as session:
        row = find(session, revision(services), name)
        params: dict[str, Any] = (
            validating.params_of(row) if kind == "validate" else collaborating.params_of(row, alpha, top)
        )
        job = longjobs.request(session, kind, None, params, room)
        job_id = job.id
    services.worker.stop(job_id, wanted=False)
    services.worker.wake()
    services.broker.publish(f"job:{job_id}")
    return job_id


def cancel(services: Services, job_id: str) -> str:
    """Stop a live one; the name of its concept."""
    with services.database.write() as session:
        row = longjobs.cancel(session, job_id)
        if row is None or row.kind not in validations.KINDS:
            raise Missing(f"There is no measurement “{job_id[:40]}”.")
        name, asked = str(row.params["concept"]), row.stop_requested
    if asked:
        services.worker.stop(job_id)
    services.broker.publish(f"job:{job_id}")
    return name
