"""Long jobs: rows that carry their kind, what they depend on, how far they are, and their result.

They take the same states as runs (see jobs.py). The worker takes one up when nothing else waits, and lets whatever a
person waits for pass between two of its steps; QUICK kinds are as urgent as an attribution. A crash queues a job
again; same identity, same row.
"""

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from app import jobs, queries
from app.database import Database
from app.jobs import Job
from app.tables import LIVE, JobRow, Run, now
from app.targets import TargetChoice, from_json
from engine.contract import ModelInfo, saes

KINDS = ("faithfulness", "noise", "input")
SWEEP = "sweep"
"""A kind of a run that measures no target: its answers under some values of one turn (see swept.py)."""
LATENTS = "latents"
"""A kind of a run and its whole answer: which latents of a sparse autoencoder it depends on (see latentjobs.py)."""
EXACT = "latentablation"
"""A kind of a ranking of latents: what the answer loses without each of the first ones."""
CONCEPT_KINDS = (
    "build", "adopt", "validate", "collaborate", "survey", "neuron", "promotions", "fires", "evaluation",
    "experiment", "latent", "latentconcepts", "latentsurvey", "readers", "attach", "detach", "saetrain",
)  # fmt: skip
"""Kinds about concepts and neurons, of no run (see conceptjobs.py); `params` name the model's revision."""
QUICK = (SWEEP, LATENTS, "input", "adopt", "neuron", "fires", "latent", "readers", "attach", "detach")
RECENT = 20
NO_ANSWER = "This run has no answer to measure."


@dataclasses.dataclass(frozen=True, slots=True)
class LongJob:
    """A claimed row. `of` is what it measures: the run's question and answer, the target and the method; None for
    CONCEPT_KINDS, which `params` describe. `topic`: whom its changes are told to."""

    id: str
    kind: str
    of: Job | None
    params: dict[str, Any]

    @property
    def topic(self) -> str:
        return self.of.run_id if self.of is not None and self.kind != SWEEP else f"job:{self.id}"


def params_of(kind: str, choice: TargetChoice, method: str) -> dict[str, Any]:
    """What a measurement depends on beside its run. A method counts only where the measurement is of its ranking."""
    start, end = choice.span
    return {
        "start": start,
        "end": end,
        "target": choice.to_json(),
        "method": method if kind == "faithfulness" else "gradient",
    }


def identity(kind: str, run_id: str | None, params: dict[str, Any]) -> str:
    spelled = json.dumps([jobs.RESULTS, kind, run_id, params], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(spelled.encode()).hexdigest()


def request(
    session: Session, kind: str, run_id: str | None, params: dict[str, Any], room: Callable[[], None]
) -> JobRow:
    """The row of this job. One that is new, or had failed or been cancelled, is queued, after `room` has agreed to it
    (or raised)."""
    spelled = identity(kind, run_id, params)
    row = session.scalars(select(JobRow).where(JobRow.identity == spelled).with_for_update()).first()
    if row is not None and (row.live or row.state == "done"):
        row.stop_requested = False
        return row
    room()
    if row is None:
        row = JobRow(id=secrets.token_hex(6), identity=spelled, kind=kind, run_id=run_id, params=params)
        session.add(row)
    row.state, row.error, row.queued, row.finished = "queued", "", now(), None
    row.done = row.total = 0
    row.stop_requested = False
    return row


def of_run(session: Session, run_id: str, kinds: tuple[str, ...], choice: TargetChoice, method: str) -> list[JobRow]:
    """The measurements of a target that there are, of these kinds."""
    wanted = [identity(kind, run_id, params_of(kind, choice, method)) for kind in kinds]
    return list(session.scalars(select(JobRow).where(JobRow.identity.in_(wanted))))


def recover(database: Database) -> None:
    """Queue again what a crash cut off; drop what was asked to stop."""
    with database.write() as session:
        running = JobRow.state == "running"
        stopped = {"state": "cancelled", "stop_requested": False, "finished": now()}
        session.execute(update(JobRow).where(running, JobRow.stop_requested).values(stopped))
        session.execute(update(JobRow).where(running).values(state="queued"))


def _waiting(*, urgent: bool) -> Select[JobRow]:
    """Queued rows in the order in which they are taken up; with `urgent`, only those of the QUICK kinds."""
    chosen = select(JobRow).where(JobRow.state == "queued")
    if urgent:
        chosen = chosen.where(JobRow.kind.in_(QUICK))
    return chosen.order_by(JobRow.kind.not_in(QUICK), JobRow.queued, JobRow.id)


def claim(
    database: Database, info: ModelInfo, attached: Sequence[saes.SaeInfo], told: Callable[[], None], *, urgent: bool
) -> LongJob | None:
    """Take the next job. `told` of each row that is settled without one (see jobs.claim)."""
    chosen = _waiting(urgent=urgent).limit(1)
    while True:
        with database.read() as session:
            if session.scalars(chosen).first() is None:
                return None
        with database.write() as session:
            row = session.scalars(chosen.with_for_update()).first()
            job = _claim(session, row, info, attached) if row is not None else None
        if job is not None:
            return job
        told()


def _claim(session: Session, row: JobRow, info: ModelInfo, attached: Sequence[saes.SaeInfo]) -> LongJob | None:
    if row.run_id is None:
        asked_of = row.params["model_revision"]
        if asked_of != info.revision:
            row.state, row.error, row.finished = "failed", f"{jobs.OTHER_MODEL} ({asked_of[:12]}).", now()
            return None
        row.state, row.started, row.done, row.total = "running", now(), 0, 0
        return LongJob(row.id, row.kind, None, row.params)
    run = session.get_one(Run, row.run_id)
    error, remedy = jobs.unfit(session, run, info, attached)
    if row.params.get("library") and row.params["library"] != queries.library_revision(session, run.model_revision):
        error, remedy = jobs.OTHER_LIBRARY, "Sweep again."
    if error or run.answer is None:
        row.state, row.error, row.finished = "failed", f"{error} {remedy}".strip() or NO_ANSWER, now()
        return None
    row.state, row.started, row.done, row.total = "running", now(), 0, 0
    choice = from_json(row.params["start"], row.params["end"], row.params["target"])
    return LongJob(row.id, row.kind, jobs.job_of(run, None, row.params["method"], choice), row.params)


def place(session: Session, row: JobRow) -> int:
    """How many jobs are served up to and including this waiting one, unless more urgent ones come; 0 when it does not
    wait."""
    if row.state != "queued":
        return 0
    waiting = [other.id for other in session.scalars(_waiting(urgent=False))]
    return queries.queue_length(session) - len(waiting[waiting.index(row.id) + 1 :])


def pace(session: Session, kind: str, model_revision: str, params: dict[str, Any]) -> tuple[int, float] | None:
    """(steps, seconds) of the newest finished job of this kind and method with this model; None if there is none."""
    chosen = (
        select(JobRow.total, JobRow.started, JobRow.finished, JobRow.params)
        .join(Run, Run.id == JobRow.run_id)
        .where(JobRow.kind == kind, JobRow.state == "done", Run.model_revision == model_revision)
        .order_by(JobRow.finished.desc())
        .limit(RECENT)
    )
    for total, started, finished, other in session.execute(chosen):
        if other["method"] == params["method"] and started and finished:
            return total, (finished - started).total_seconds()
    return None


def progress(database: Database, job_id: str, done: int, total: int) -> bool:
    """Write down how far a job is; whether it is asked to stop, or its row is gone."""
    with database.write() as session:
        row = session.get(JobRow, job_id)
        if row is None:
            return True
        row.done, row.total = done, total
        return row.stop_requested


def finish(database: Database, job_id: str, result: dict[str, Any], arrays: bytes | None) -> None:
    """This and the next two are without effect on a row that is not there any more."""
    with database.write() as session:
        row = session.get(JobRow, job_id)
        if row is not None:
            row.state, row.finished, row.stop_requested = "done", now(), False
            row.result, row.arrays, row.done = result, arrays, row.total


def fail(database: Database, job_id: str, error: str) -> None:
    with database.write() as session:
        row = session.get(JobRow, job_id)
        if row is not None:
            row.state, row.error, row.finished, row.stop_requested = "failed", error, now(), False


def stopped(database: Database, job_id: str) -> None:
    """The worker stopped this job: cancelled if that is still wanted, else queued again."""
    with database.write() as session:
        row = session.get(JobRow, job_id)
        if row is not None:
            wanted, row.stop_requested = row.stop_requested, False
            row.state, row.finished = ("cancelled", now()) if wanted else ("queued", None)


def cancel(session: Session, job_id: str) -> JobRow | None:
    """Cancel a queued job at once; ask a running one to stop."""
    row = session.get(JobRow, job_id, with_for_update=True)
    if row is not None and row.state == "queued":
        row.state, row.finished = "cancelled", now()
    elif row is not None and row.state in LIVE:
        row.stop_requested = True
    return row
