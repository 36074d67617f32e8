"""Use cases of derived concepts: save what an expression gives under a name. (They are deleted like all own ones.)"""

from app import conceptqueries, formats, longjobs, own, runs
from app.services import Services
from app.tables import JobRow, OwnConcept
from engine.contract import RequestError, concepts

NAME_LENGTH = 80


def save(services: Services, name: str, text: str, family: str) -> tuple[OwnConcept, str]:
    """(its row, id of the job that takes it into the library). Raises RequestError for a name that is empty, too long
    or taken, and for an expression that cannot be evaluated."""
    runs.check_model(services)
    info = services.worker.info
    if info is None:
        raise RequestError("The model is still loading. Save the concept when it is there.")
    name = formats.one_line(name)
    _check_name(name)
    expression = concepts.algebra.parse(text)
    concepts.algebra.family_of(family)
    with services.database.write() as session:
        known = conceptqueries.names(session, info.revision)
        concepts.algebra.check_names(expression, known)
        own.check_free(session, info.revision, name)
        row = OwnConcept(
            id=runs.new_id(), model_revision=info.revision, name=name, kind="derived", forms=[], contrast=[],
            map="linear", quantile=0.99, mode="raw", expression=str(expression), family=family,
        )  # fmt: skip
        session.add(row)
        session.flush()
        params = {"model_revision": info.revision, "concept": row.id}
        job = longjobs.request(session, "adopt", None, params, lambda: runs.check_room(session, services))
        job_id = job.id
    services.worker.wake()
    return row, job_id


def wait(services: Services, job_id: str, seconds: float) -> bool:
    """Whether the library follows already."""

    def done() -> bool:
        with services.database.read() as session:
            job = session.get(JobRow, job_id)
            return job is None or not job.live

    return services.broker.wait(f"job:{job_id}", done, seconds)


def _check_name(name: str) -> None:
    if not name:
        raise RequestError("The name is empty. Type what the concept should be called.")
    if len(name) > NAME_LENGTH:
        raise RequestError(f"The name has {len(name)} characters; at most {NAME_LENGTH} are taken. Shorten it.")
    own.check_name(name)
