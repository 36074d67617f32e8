"""Contexts of experiments with latents: the list with its form and plan, and one as it runs and as a report."""

import dataclasses

from app.contexts.evaluation import EvaluationLine
from app.contexts.latents import LatentField
from app.contexts.links import Choice
from app.contexts.pages import Shell
from app.contexts.trust import FigureView


@dataclasses.dataclass(frozen=True, slots=True)
class ExperimentForm:
    """What an experiment is to do: GET to `action`. `fields`: selects of the set, the SAE and the variant; `most`
    items at most."""

    action: str
    fields: tuple[LatentField, ...]
    limit: str
    seed: str
    most: int


@dataclasses.dataclass(frozen=True, slots=True)
class ExperimentsPage:
    """templates/experiment/index.html. `teach`: the protocol in sentences. `empty`: why none can be started, or ''.
    Once the form was sent: what it would do as `facts` = (term, value) and `estimate`, to be started by a POST of
    `hidden` (name, value) to `start`; or an `error`. `limits` and `shapes` of files in words; `bad`: (line, reason) of
    lines of the set that are left out, and how many `more` there are."""

    shell: Shell
    teach: tuple[str, ...]
    form: ExperimentForm
    empty: str
    error: str
    facts: tuple[tuple[str, str], ...]
    estimate: str
    start: str
    hidden: tuple[tuple[str, str], ...]
    shapes: tuple[tuple[str, str], ...]
    limits: str
    lines: tuple[EvaluationLine, ...]
    bad: tuple[tuple[int, str], ...]
    more: str


@dataclasses.dataclass(frozen=True, slots=True)
class FigureTable:
    """Figures with the table that says the same: `columns` = (label, definition); the first cell of a row heads it."""

    title: str
    caption: str
    figures: tuple[FigureView, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ExperimentView:
    """templates/experiment/_experiment.html (root #experiment); the fields up to `error` as of EvaluationView. The
    report, empty before: `said` = what the figures say in sentences, and `parts`. `protocol`, `facts`, `command`,
    `take` as of EvaluationView; `bad`: (line or item, reason) of what was left out."""

    live: bool
    state: str
    events: str
    headline: str
    polarity: str
    detail: str
    share: float | None
    cancel: str
    again: str
    error: str
    said: tuple[str, ...]
    parts: tuple[FigureTable, ...]
    protocol: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    command: str
    take: tuple[Choice, ...]
    bad: tuple[tuple[int, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ExperimentPage:
    """templates/experiment/show.html"""

    shell: Shell
    title: str
    about: str
    experiment: ExperimentView
