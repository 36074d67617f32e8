"""What is known of concepts' validations and collaborations: the jobs of one concept, what the next one takes, and the
figures of all of them. Functions take a session and return rows or plain values."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from app import collaborating, longjobs, validated, validating
from app.tables import ConceptRow, JobRow, Membership, OwnConcept, ProbeRow
from engine.contract import concepts

KINDS = ("validate", "collaborate")
RECENT = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """Of one concept: its row, the newest job of each kind about its present memberships, the place of a waiting one in
    the queue, how long the last one with this model took (seconds a step), `members` = neurons at α, `built` = an own
    concept's probes that the model took (None: it is the library's), `specific`: it is contrasted with others,
    `derived`: it has an expression."""

    row: ConceptRow
    jobs: dict[str, JobRow]
    places: dict[str, int]
    paces: dict[str, float]
    alpha: float
    top: int
    members: int
    built: int | None
    specific: bool
    derived: bool


def known(session: Session, row: ConceptRow, alpha: float | None = None, top: int | None = None) -> Known:
    """`alpha` and `top` of a collaboration; those of the newest one where they are not given."""
    jobs = newest(session, row)
    last = jobs["collaborate"].params if "collaborate" in jobs else {}
    alpha = alpha if alpha is not None else last.get("alpha", collaborating.ALPHA)
    top = top if top is not None else last.get("top", collaborating.TOP)
    inside = select(func.count()).select_from(Membership)
    members = session.execute(inside.where(Membership.concept_id == row.id, Membership.mu >= alpha)).scalar_one()
    mine = (OwnConcept.model_revision == row.model_revision) & (OwnConcept.name == row.name)
    own = session.scalars(select(OwnConcept).where(mine)).first()
    built = None
    if own is not None:
        taken = (ProbeRow.concept_id == own.id) & ProbeRow.shares.is_not(None)
        built = session.execute(select(func.count()).select_from(ProbeRow).where(taken)).scalar_one()
    paces = {kind: found for kind in KINDS if (found := pace(session, kind, row.model_revision)) is not None}
    places = {kind: longjobs.place(session, job) for kind, job in jobs.items() if job.state == "queued"}
    specific = own is not None and own.mode == "specific" and bool(own.contrast)
    derived = own is not None and bool(own.expression)
    return Known(row, jobs, places, paces, alpha, top, members, built, specific, derived)


def newest(session: Session, row: ConceptRow) -> dict[str, JobRow]:
    """The newest job of each kind about a concept's present memberships."""
    chosen = (
        select(JobRow)
        .where(JobRow.kind.in_(KINDS), JobRow.params["concept"].as_string() == row.name)
        .where(JobRow.params["model_revision"].as_string() == row.model_revision)
        .where(JobRow.params["stamp"].as_string() == validated.stamp(row))
        .options(defer(JobRow.arrays))
        .order_by(JobRow.queued, JobRow.id)
    )
    return {job.kind: job for job in session.scalars(chosen)}


def pace(session: Session, kind: str, model_revision: str) -> float | None:
    """Seconds a step of the newest finished job of this kind with this model; None if there is none."""
    of_model = JobRow.params["model_revision"].as_string() == model_revision
    chosen = select(JobRow.total, JobRow.started, JobRow.finished).where(
        JobRow.kind == kind, JobRow.state == "done", of_model, JobRow.total > 0
    )
    for total, started, finished in session.execute(chosen.order_by(JobRow.finished.desc()).limit(RECENT)):
        if started and finished:
            return float((finished - started).total_seconds() / total)
    return None


def steps(found: Known, kind: str) -> int:
    """How many steps the job would take."""
    if kind == "validate":
        return validating.steps(found.built or 0, specific=found.specific)
    return collaborating.runs(found.members, found.top)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A concept of the report: what lists show of it, with its validation's figures (see results.figures_of)."""

    name: str
    kind: str
    figures: Mapping[str, float]

    @property
    def validated(self) -> bool:
        return "passes" in self.figures

    @property
    def weak(self) -> bool:
        return self.figures.get("passes") == 0

    def value(self, column: str) -> float | None:
        """One of COLUMNS; None where it is not known."""
        if column in ("own", "random", "baseline", "other"):
            return self._gap("plain", column)
        if column == "specificity":
            own, others = self._gap("plain", "own"), self._gap("others plain", "others own")
            return own - others if own is not None and others is not None else None
        return self.figures.get(column)

    def _gap(self, before: str, after: str) -> float | None:
        if before not in self.figures or after not in self.figures:
            return None
        return self.figures[before] - self.figures[after]


COLUMNS = ("own", "random", "baseline", "other", "specificity", "pointing", "split half", "passes")
"""Figures of the report: how many of the concept's answers fall without its set, a random one, the baseline's, another
concept's; by how much more than others' answers; the rest as they are."""


def lines(session: Session, model_revision: str) -> list[Line]:
    """All concepts, by kind and name."""
    chosen = select(ConceptRow.name, ConceptRow.kind, ConceptRow.figures)
    ordered = chosen.where(ConceptRow.model_revision == model_revision).order_by(ConceptRow.kind, ConceptRow.name)
    return [Line(*row) for row in session.execute(ordered)]


def ordered(found: Sequence[Line], column: str) -> list[Line]:
    """By falling value of one of COLUMNS, unknown ones last; by kind and name for any other."""
    if column not in COLUMNS:
        return list(found)

    def key(line: Line) -> tuple[bool, float]:
        value = line.value(column)
        return value is None, -(value or 0.0)

    return sorted(found, key=key)


def groups(found: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    """Validated concepts: all, those whose name takes one token and several, and each kind; none that is empty."""
    done = [line for line in found if line.validated]
    made = [
        ("all", done),
        ("one token", [line for line in done if line.figures.get("tokens") == 1]),
        ("several tokens", [line for line in done if line.figures.get("tokens", 0) > 1]),
    ]
    kinds = dict.fromkeys(line.kind for line in done)
    made += [(kind, [line for line in done if line.kind == kind]) for kind in kinds]
    return [(name, some) for name, some in made if some]


def mean(some: Sequence[Line], column: str) -> concepts.results.Interval | None:
    """Over concepts, with a bootstrap interval over concepts; None where nothing is known."""
    values = [value for line in some if (value := line.value(column)) is not None]
    return concepts.results.mean_interval(values) if values else None


def as_json(found: Sequence[Line]) -> dict[str, Any]:
    """The whole report."""
    return {
        "concepts": [
            {"name": line.name, "kind": line.kind, **_row(line), "figures": dict(line.figures)} for line in found
        ],
        "summary": [
            {"group": name, "concepts": len(some)}
            | {column: dataclasses.asdict(value) for column in COLUMNS if (value := mean(some, column)) is not None}
            for name, some in groups(found)
        ],
    }


def _row(line: Line) -> dict[str, Any]:
    values = {column: line.value(column) for column in COLUMNS}
    return values | {"passes": None if not line.validated else not line.weak}
