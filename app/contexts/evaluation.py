"""Contexts of evaluations: the list with its forms, the plan of one, and one as it runs and as a report."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.pages import Shell


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationLine:
    """A long job in the list of its page: an evaluation, an experiment, a training. `gain` = what came of it, in words,
    '' while there is none; `polarity` 'for' | 'against' | 'even' | ''. `state` as of a run."""

    href: str
    what: str
    about: str
    state: str
    gain: str
    polarity: str
    when: str
    when_iso: str


@dataclasses.dataclass(frozen=True, slots=True)
class PlanForm:
    """What an evaluation is to ask: GET to `action`. Nothing ticked = all. `most` questions a cell at most,
    and of dev, where no number is given, `most_dev`."""

    action: str
    set: str
    kinds: tuple[Choice, ...]
    conditions: tuple[Choice, ...]
    limit: str
    dev: str
    seed: str
    most: int
    most_dev: int


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationsPage:
    """templates/evaluation/index.html. `teach`: the protocol in sentences. `sets`: sets of files that are kept, with
    links to their plans. `limits` and `shapes` of files in words; `error` of files that were sent."""

    shell: Shell
    teach: tuple[str, ...]
    form: PlanForm
    sets: tuple[Choice, ...]
    shapes: tuple[tuple[str, str], ...]
    limits: str
    lines: tuple[EvaluationLine, ...]
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class PlanPage:
    """templates/evaluation/plan.html: what would be asked and how long it takes, before it is started by a POST of
    `hidden` (name, value) to `start`. `error`: why it cannot be. `bad`: (number, reason) of lines of the file that
    are left out (or what `entry` says), and how many `more` there are. `facts` = (term, value)."""

    shell: Shell
    name: str
    about: str
    form: PlanForm
    error: str
    estimate: str
    facts: tuple[tuple[str, str], ...]
    start: str
    hidden: tuple[tuple[str, str], ...]
    bad: tuple[tuple[int, str], ...]
    entry: str
    more: str


@dataclasses.dataclass(frozen=True, slots=True)
class ArmBar:
    """Accuracy of one arm of ARMS: `value`, `low` and `high` less `low` = `span` ∈ [0, 1] are drawn; `text` says the
    same."""

    arm: str
    label: str
    about: str
    value: float
    low: float
    span: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class GainRow:
    """A gain with its interval on the report's common axis: `at`, `low` and `span` ∈ [0, 1], zero in the middle.
    `setting`: what was chosen on dev, in words. `polarity` 'for' | 'against' | 'even' (the interval holds zero)."""

    label: str
    at: float
    low: float
    span: float
    text: str
    polarity: str
    setting: str


@dataclasses.dataclass(frozen=True, slots=True)
class KindCard:
    """A kind of question: its arms over `over`, and its gain in each condition."""

    name: str
    about: str
    over: str
    bars: tuple[ArmBar, ...]
    gains: tuple[GainRow, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResultRow:
    """A line of a table of results; `values` in the order of its columns."""

    name: str
    condition: str
    values: tuple[str, ...]
    polarity: str
    setting: str


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationView:
    """templates/evaluation/_evaluation.html (root #evaluation). While it is `live` it listens to `events`; `headline`
    says what is being done or what came of it, `detail` more of that, `share` ∈ [0, 1] how far it is (None: not known,
    nothing is drawn when not `live`). `cancel` and `again` are URLs or ''.
    The report, empty before: `bars` over all, `scale` of the gains' axis (both ends), `cards` by kind, `rows` and
    `totals` with their `columns` = (label, definition), `rules` = (name, definition) of what was chosen. `protocol`:
    what was done, in sentences; `facts` = (term, value) of the settings; `command` reproduces it; `take` = downloads;
    `bad`: (number, reason) of lines left out, or of what `entry` says. `graded`: there are several conditions."""

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
    bars: tuple[ArmBar, ...]
    over: str
    scale: tuple[str, str]
    cards: tuple[KindCard, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[ResultRow, ...]
    totals: tuple[ResultRow, ...]
    rules: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    protocol: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    command: str
    take: tuple[Choice, ...]
    bad: tuple[tuple[int, str], ...]
    entry: str
    graded: bool


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationPage:
    """templates/evaluation/show.html"""

    shell: Shell
    title: str
    about: str
    evaluation: EvaluationView
