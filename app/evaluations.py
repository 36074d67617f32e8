"""What there is to know of evaluations: what a draft would do and how long it takes, how far one is, all of them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import evaluating, jobparts, longjobs, queries, questionsets
from app.questionsets import BUILTIN
from app.tables import JobRow, QuestionSet, Run
from engine.contract import ModelInfo, RequestError, evaluation

DEFAULTS = evaluation.Settings()
LISTED = 50
"""Evaluations that are listed, the newest."""
COUNTED = 200
"""Estimates that are remembered."""
MOST = 200_000
"""Questions of an evaluation in all: more are not drawn, and not held in memory."""
RECENT = 20
"""Runs of which an answer's time is taken where no evaluation has been timed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """What is asked for, as it was typed: empty kinds and conditions = all; empty numbers = the defaults."""

    set: str = BUILTIN
    kinds: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    limit: str = ""
    dev: str = ""
    seed: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What an evaluation would do: questions asked on test and dev, answers generated at most, seconds that they take
    (None: not known), and whether that was `measured` on evaluations (else on single questions). `row`: the set of a
    person's files."""

    settings: evaluation.Settings
    row: QuestionSet | None
    test: int
    dev: int
    answers: int
    seconds: float | None
    measured: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """An evaluation: its job, its settings, the set of a person's files, its place in the queue, how many parts are
    kept, and the key of the newest."""

    job: JobRow
    settings: evaluation.Settings
    row: QuestionSet | None
    place: int
    parts: int
    newest: str


def known_kinds(row: QuestionSet | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(kinds of question, conditions) that a set has."""
    if row is None:
        return tuple(evaluation.BUILTIN_KINDS), tuple(evaluation.builtin.CONDITIONS)
    return tuple(row.kinds), tuple(row.conditions)


def settings_of(draft: Draft, row: QuestionSet | None) -> evaluation.Settings:
    """The settings of a draft, checked. Raises RequestError or UnknownName."""
    limit = _number("limit", draft.limit, DEFAULTS.limit)
    made = evaluation.Settings(
        kinds=draft.kinds,
        conditions=draft.conditions,
        limit=limit,
        dev=_number("dev questions", draft.dev, min(limit, DEFAULTS.dev)),
        seed=_number("seed", draft.seed, 0),
    )
    if row is not None:
        made = questionsets.settings_of(row, made)
    made.check()
    for what, asked, known in zip(
        ("kind of question", "condition"), (draft.kinds, draft.conditions), known_kinds(row), strict=True
    ):
        for name in asked:
            if name not in known:
                raise RequestError(f"This set has no {what} “{name[:60]}”. Choose of {', '.join(known)[:300]}.")
    if row is None:
        each, cells = made.build + made.dev + made.limit, len(_cells(made))
        if each * cells > MOST:
            raise RequestError(
                f"That is {each * cells:,} questions in {cells} kinds and conditions; at most {MOST:,} are drawn. "
                "Take fewer kinds or conditions, or a lower limit."
            )
    return made


def _cells(settings: evaluation.Settings) -> list[tuple[str, str]]:
    """The built-in set's (kind, condition)."""
    return [
        (kind, condition)
        for kind in settings.kinds or evaluation.BUILTIN_KINDS
        for condition in settings.conditions or evaluation.builtin.CONDITIONS
        if evaluation.builtin.asked_under(kind, condition)
    ]


def _number(what: str, typed: str, default: int) -> int:
    text = typed.strip() or str(default)
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(f"The {what} is “{text[:20]}”; it must be a whole number of at most 9 digits.")
    return int(text)


def plan(session: Session, folder: Path, draft: Draft, model_revision: str) -> Plan:
    """What the draft would do, with sets of files in `folder`. Raises RequestError."""
    row = evaluating.row_of(session, draft.set)
    settings = settings_of(draft, row)
    pace, measured = _pace(session, model_revision)
    test, dev, answers = _counts(folder, settings, row)
    if not test or not dev:
        raise RequestError(
            f"Of these questions {test} are test and {dev} dev questions; an evaluation needs both. All questions "
            "about one picture are in one part: take a larger set with more pictures, or another seed."
        )
    return Plan(settings, row, test, dev, answers, None if pace is None else answers * pace, measured)


def _counts(folder: Path, settings: evaluation.Settings, row: QuestionSet | None) -> tuple[int, int, int]:
    """(test questions, dev questions, answers at most). What was counted once is known."""
    key = (row.hash if row is not None else BUILTIN, settings)
    if key not in _COUNTED:
        if len(_COUNTED) >= COUNTED:
            _COUNTED.clear()
        if row is None:
            _COUNTED[key] = _counted(settings, _undrawn(settings))
        else:
            with evaluating.items(folder, row, settings) as found:
                _COUNTED[key] = _counted(settings, found.items)
    return _COUNTED[key]


def _counted(settings: evaluation.Settings, items: Sequence[evaluation.Item]) -> tuple[int, int, int]:
    splits = [item.split for item in items]
    return splits.count("test"), splits.count("dev"), evaluation.estimate(settings, items).answers


def _undrawn(settings: evaluation.Settings) -> list[evaluation.Item]:
    """As many questions as the built-in set will have. Drawing their scenes takes seconds, and an estimate looks at
    none of them."""
    numbers = {"build": settings.build, "dev": settings.dev, "test": settings.limit}
    return [
        evaluation.Item("", kind, condition, split, "", (), lambda: None)
        for kind, condition in _cells(settings)
        for split, number in numbers.items()
        for _ in range(number)
    ]


_COUNTED: dict[tuple[str, evaluation.Settings], tuple[int, int, int]] = {}


def _pace(session: Session, model_revision: str) -> tuple[float | None, bool]:
    """(seconds an answer with this model on this machine, whether evaluations were timed). Of single questions where
    no evaluation has been: those take longer, for an evaluation asks many at once."""
    mine = select(JobRow).where(JobRow.kind == evaluating.KIND, JobRow.state == "done")
    for row in session.scalars(mine.order_by(JobRow.finished.desc()).limit(RECENT)):
        if row.params["model_revision"] == model_revision and row.result:
            return float(row.result["pace"]), True
    asked = select(Run.timing).where(Run.model_revision == model_revision, Run.state == "done", Run.parent_id.is_(None))
    times = [
        timing["generate"] / 1000
        for timing in session.scalars(asked.order_by(Run.finished.desc()).limit(RECENT))
        if timing and "generate" in timing
    ]
    return (float(np.median(times)), False) if times else (None, False)


def params_of(
    session: Session, info: ModelInfo, settings: evaluation.Settings, row: QuestionSet | None
) -> dict[str, Any]:
    return {
        "settings": evaluation.to_json(settings),
        "set": BUILTIN if row is None else row.hash,
        "model_revision": info.revision,
        "library": queries.library_revision(session, info.revision),
        "made_by": [info.dtype, info.device],
    }


def known(session: Session, job_id: str) -> Known | None:
    """An evaluation; None where there is none of this id."""
    job = session.get(JobRow, job_id)
    if job is None or job.kind != evaluating.KIND:
        return None
    parts, newest = jobparts.count(session, job.identity), jobparts.newest(session, job.identity)
    row = session.get(QuestionSet, job.params["set"]) if job.params["set"] != BUILTIN else None
    settings = evaluation.settings_from_json(job.params["settings"])
    return Known(job, settings, row, longjobs.place(session, job), parts, newest)


def listed(session: Session) -> Sequence[JobRow]:
    """Newest first."""
    mine = select(JobRow).where(JobRow.kind == evaluating.KIND).order_by(JobRow.queued.desc(), JobRow.id)
    return list(session.scalars(mine.limit(LISTED)))
