"""Every SELECT about latents: a run's ranking of them, and the rankings in which one was listed."""

import dataclasses
from collections.abc import Collection
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, defer

from app import longjobs
from app.neuronqueries import FOUND, Seen
from app.tables import JobRow, LatentNote, Picture, Run
from engine.contract import UnknownName

SEARCHED = 100
"""Rankings, the newest, in which a latent is looked for."""
LISTED = 10
ABLATED = 20
"""Latents that are ablated exactly, one by one: the first by influence."""


@dataclasses.dataclass(frozen=True, slots=True)
class GatheredLatent:
    """All that the page shows of a latent beside its SAE: `ranked` = rankings in which it is listed, with each one's
    arrays and exact ablation; `labels` of latents of its SAE by index; `waiting` = why what is looked up is not under
    way."""

    note: LatentNote | None
    seen: Seen
    ranked: "list[tuple[Ranked, bytes | None, JobRow | None]]"
    labels: dict[int, str]
    waiting: str = ""


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

    @property
    def beside(self) -> tuple[int | None, int | None]:
        """The latents that are listed before and after it."""
        listed = [one["index"] for one in (self.job.result or {})["latents"]]
        return (
            listed[self.place - 1] if self.place else None,
            listed[self.place + 1] if self.place + 1 < len(listed) else None,
        )


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


@dataclasses.dataclass(frozen=True, slots=True)
class Swappable:
    """A ranking of another run whose latents may be swapped in; without its result. `answer` as text."""

    job: str
    run: str
    question: str
    answer: str
    picture_hash: str | None


def ranking(session: Session, job_id: str) -> JobRow | None:
    """A ranking of whichever run's latents."""
    row = session.get(JobRow, job_id)
    return row if row is not None and row.kind == longjobs.LATENTS else None


def swappable(session: Session, mine: JobRow) -> list[Swappable]:
    """The newest rankings of other unsteered runs by the same SAE in the same variant, each run once."""
    chosen = (
        select(JobRow.id, JobRow.params, Run.id, Run.question, Run.answer, Run.picture_hash)
        .join(Run, Run.id == JobRow.run_id)
        .where(
            JobRow.kind == longjobs.LATENTS, JobRow.state == "done", JobRow.run_id != mine.run_id,
            Run.parent_id.is_(None), JobRow.params["sae"].as_string() == mine.params["sae"],
        )
        .order_by(JobRow.queued.desc(), JobRow.id)
        .limit(SEARCHED)
    )  # fmt: skip
    found: dict[str, Swappable] = {}
    for job, params, run, question, answer, picture in session.execute(chosen):
        if params["settings"] == mine.params["settings"]:
            found.setdefault(run, Swappable(job, run, question, (answer or {}).get("text", ""), picture))
    return list(found.values())[:LISTED]


def labels(session: Session, indices: Collection[int]) -> dict[tuple[str, int], str]:
    """What latents of these indices are called, by (SAE's id, index), of whichever SAE. No query for no index."""
    if not indices:
        return {}
    chosen = select(LatentNote).where(LatentNote.index.in_(sorted(indices)), LatentNote.label != "")
    return {(row.sae_id, row.index): row.label for row in session.scalars(chosen)}


def exact_params(ranking: JobRow) -> dict[str, Any]:
    """What the exact ablation of a finished ranking's first latents depends on."""
    listed = (ranking.result or {})["latents"]
    return {**ranking.params, "latents": [one["index"] for one in listed[:ABLATED]]}


def exact(session: Session, rankings: list[JobRow]) -> dict[str, JobRow]:
    """The exact ablations that were asked for, by their ranking's id."""
    wanted = {
        longjobs.identity(longjobs.EXACT, row.run_id, exact_params(row)): row.id
        for row in rankings
        if row.state == "done" and row.result
    }
    rows = session.scalars(select(JobRow).where(JobRow.identity.in_(wanted))) if wanted else ()
    return {wanted[row.identity]: row for row in rows}


def lost(row: JobRow | None) -> dict[int, float | None]:
    """What the answer loses without each latent of an exact ablation, by its index; {} while that is not there."""
    if row is None or row.state != "done" or not row.result:
        return {}
    return dict(zip(row.result["latents"], row.result["lost"], strict=True))


def note(session: Session, sae: str, index: int) -> LatentNote | None:
    return session.get(LatentNote, (sae, index))


def noted(session: Session, saes: list[str], query: str) -> list[LatentNote]:
    """Latents of these SAEs (ids) whose label or note contains this."""
    holds = or_(LatentNote.label.icontains(query, autoescape=True), LatentNote.note.icontains(query, autoescape=True))
    chosen = select(LatentNote).where(LatentNote.sae_id.in_(saes), holds)
    return list(session.scalars(chosen.order_by(LatentNote.label, LatentNote.sae_id, LatentNote.index).limit(FOUND)))
