"""Contexts of a concept's validation and collaboration (templates/concepts/_validation.html), and of the report."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.pages import Shell
from app.contexts.trust import FigureView, MeasurementView


@dataclasses.dataclass(frozen=True, slots=True)
class ControlRow:
    """How many answers stay right without one set of neurons. `value`, `low` and `high` ∈ [0, 1] are drawn, the
    interval `span` wide; `text` says the same. `own`: it is the concept's own set."""

    label: str
    about: str
    value: float
    low: float
    span: float
    text: str
    own: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CriterionRow:
    """A condition: whether it `holds`, whether it is `needed` to pass, and the figures in words."""

    name: str
    holds: bool
    needed: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class ValidationView:
    """templates/concepts/_validation.html (root #validation). `validation` and `collaboration` are what can be
    measured, each asked for by a POST of `hidden` (name, value) and `kind` to `action`, the second with `alpha` and
    `top`; the card listens to `events` while it is `live`.
    Of a validation: `weak`, the `verdict` and `because` ('' before), `how` it was tested, `controls`, `criteria` and
    `facts` = (term, value, definition). Of a collaboration: what was `said` of it, the `matrix` (None before), with
    `columns` and `rows` as its table, and `how`. `limits` of what may be asked for: (smallest α, largest, step,
    fewest neurons, most)."""

    action: str
    hidden: tuple[tuple[str, str], ...]
    live: bool
    events: str
    report: str
    validation: MeasurementView
    weak: bool
    verdict: str
    because: str
    how: str
    controls: tuple[ControlRow, ...]
    criteria: tuple[CriterionRow, ...]
    facts: tuple[tuple[str, str, str], ...]
    collaboration: MeasurementView
    alpha: str
    top: str
    limits: tuple[str, ...]
    said: tuple[str, ...]
    matrix: FigureView | None
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    over: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReportRow:
    """A concept of the report; `values` as text, in the order of the columns. `state` = 'passes' | 'weak' | ''."""

    name: str
    href: str
    kind: str
    values: tuple[str, ...]
    state: str


@dataclasses.dataclass(frozen=True, slots=True)
class GroupRow:
    """Means over the concepts of a group with their intervals, in the order of the columns."""

    name: str
    concepts: str
    values: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ReportPage:
    """templates/validation/report.html. `columns` = a link each that sorts by it (its `value` says what it is);
    `by_kind` the link back to kinds. `lead` says how many pass; `csv` and `json` are URLs."""

    shell: Shell
    lead: str
    columns: tuple[Choice, ...]
    groups: tuple[GroupRow, ...]
    rows: tuple[ReportRow, ...]
    by_kind: Choice
    csv: str
    json: str
    empty: str
