"""What there is to know of experiments with latents: what a draft would do and how long it takes, how far one is, all
of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import evaluating, experimenting, jobparts, latentjobs, longjobs
from app.questionsets import BUILTIN
from app.tables import JobRow, QuestionSet
from engine.contract import ModelInfo, RequestError, saes

LIMIT, MOST, LISTED = 100, 2000, 50
"""Items unless another number is given, at most, and experiments that are listed (the newest)."""
ABLATED, SWAPPED = 10, 40
"""Items that are compared with exact ablation, and pairs that swap their latents, at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """What is asked for, as it was typed; empty numbers = the defaults. `variant`: see latentjobs.FIELDS."""

    set: str = BUILTIN
    sae: str = ""
    limit: str = ""
    seed: str = ""
    variant: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment would do: `params`, its items and pairs at most, and seconds that they take (None: not known).
    `row`: the set of a person's files."""

    params: dict[str, Any]
    row: QuestionSet | None
    items: int
    pairs: int
    seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """An experiment: its job, the set of a person's files, its place in the queue, and how many steps are kept."""

    job: JobRow
    row: QuestionSet | None
    place: int
    parts: int


def number(what: str, typed: str, default: int, low: int, high: int) -> int:
    """Raises RequestError."""
    text = typed.strip() or str(default)
    if not text.isdecimal() or len(text) > 9 or not low <= int(text) <= high:
        raise RequestError(f"The {what} is “{text[:20]}”; it must be a whole number from {low} to {high:,}.")
    return int(text)


def params_of(info: ModelInfo, sae: saes.SaeInfo, draft: Draft) -> dict[str, Any]:
    """Raises RequestError."""
    return {
        **latentjobs.params_of(sae, latentjobs.settings_of(draft.variant)),
        "set": draft.set,
        "limit": number("number of items", draft.limit, LIMIT, 1, MOST),
        "seed": number("seed", draft.seed, 0, 0, 999_999_999),
        "ablated": ABLATED,
        "swapped": SWAPPED,
        "model_revision": info.revision,
        "made_by": [info.dtype, info.device],
    }


def plan(session: Session, params: dict[str, Any]) -> Plan:
    """What this would do. Raises RequestError."""
    row = evaluating.row_of(session, params["set"])
    items = params["limit"] if row is None else min(params["limit"], row.questions)
    pairs, pace = min(items, params["swapped"]), _pace(session, params)
    return Plan(params, row, items, pairs, None if pace is None else pace * (items + pairs))


def _pace(session: Session, params: Mapping[str, Any]) -> float | None:
    """Seconds a step of the newest experiment with this model."""
    mine = select(JobRow).where(JobRow.kind == experimenting.KIND, JobRow.state == "done")
    for row in session.scalars(mine.order_by(JobRow.finished.desc()).limit(LISTED)):
        if row.params["model_revision"] == params["model_revision"] and row.result:
            return float(row.result["pace"])
    return None


def known(session: Session, job: JobRow) -> Known:
    row = session.get(QuestionSet, job.params["set"]) if job.params["set"] != BUILTIN else None
    return Known(job, row, longjobs.place(session, job), jobparts.count(session, job.identity))


def listed(session: Session) -> Sequence[JobRow]:
    """Newest first."""
    mine = select(JobRow).where(JobRow.kind == experimenting.KIND).order_by(JobRow.queued.desc(), JobRow.id)
    return list(session.scalars(mine.limit(LISTED)))
