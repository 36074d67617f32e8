"""Every SELECT about latents: a run's ranking of them, and the rankings in which one was listed."""

import dataclasses
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from app import longjobs
from app.tables import JobRow, Picture, Run
from engine.contract import UnknownName

SEARCHED = 100
"""Rankings, the newest, in which a latent is looked for."""
LISTED = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Ranked:
    """A ranking in which a latent is listed: at `place` among the listed, counted from 0. `scores` = what is stored of
    it (see latentjobs.rank)."""

    job: JobRow
    run: Run
    picture: Picture | None
    place: int
    scores: dict[str, Any]

    @property
    def rank(self) -> int:
        return self.place + 1


def of_run(session: Session, run_id: str, job_id: str = "") -> JobRow | None:
    """This ranking of a run's latents, or its newest one. Raises UnknownName for one that is not there."""
    if job_id:
        row = session.get(JobRow, job_id)
        if row is None or row.kind != longjobs.LATENTS or row.run_id != run_id:
            raise UnknownName(f"There is no ranking of latents “{job_id[:40]}” of this run.")
        return row
    mine = select(JobRow).where(JobRow.run_id == run_id, JobRow.kind == longjobs.LATENTS)
    return session.scalars(mine.order_by(JobRow.queued.desc(), JobRow.id).limit(1)).first()


def listed_in(session: Session, sae: str, index: int) -> list[Ranked]:
    """The newest runs, each once, in whose newest ranking by this SAE (its id) the latent is listed; without arrays."""
    chosen = (
        select(JobRow, Run, Picture)
        .join(Run, Run.id == JobRow.run_id)
        .outerjoin(Picture, Picture.hash == Run.picture_hash)
        .where(JobRow.kind == longjobs.LATENTS, JobRow.state == "done", JobRow.params["sae"].as_string() == sae)
        .options(defer(JobRow.arrays))
        .order_by(JobRow.queued.desc(), JobRow.id)
        .limit(SEARCHED)
    )
    found: dict[str, Ranked | None] = {}
    for job, run, picture in session.execute(chosen):
        if run.id in found or not job.result:
            continue
        places = [k for k, one in enumerate(job.result["latents"]) if one["index"] == index]
        found[run.id] = Ranked(job, run, picture, places[0], job.result["latents"][places[0]]) if places else None
    return [one for one in found.values() if one is not None][:LISTED]


def arrays(session: Session, job_ids: list[str]) -> dict[str, bytes]:
    """The blobs of these jobs."""
    chosen = select(JobRow.id, JobRow.arrays).where(JobRow.id.in_(job_ids), JobRow.arrays.is_not(None))
    return {row.id: row.arrays for row in session.execute(chosen)}


def known(session: Session, revision: str, name: str) -> dict[str, Any] | None:
    """What rankings of runs of this model remember of the SAE of this name."""
    chosen = (
        select(JobRow)
        .join(Run, Run.id == JobRow.run_id)
        .where(
            JobRow.kind == longjobs.LATENTS, JobRow.state == "done", Run.model_revision == revision,
            JobRow.params["name"].as_string() == name,
        )
        .options(defer(JobRow.arrays))
        .order_by(JobRow.queued.desc())
        .limit(1)
    )  # fmt: skip
    row = session.scalars(chosen).first()
    return dict(row.result["sae"]) if row is not None and row.result else None
