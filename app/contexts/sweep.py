"""Contexts of the card that shows a sweep (templates/runs/_sweep.html)."""

import dataclasses

from app.contexts.trust import FigureView


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRun:
    """Neighbouring values of equal answers, `count` of them, on the strip above the chart. `key` = the answer's letter,
    '…' while no token is there; `same`: it is the default answer; `about` = the values and the answer in words."""

    count: int
    key: str
    text: str
    same: bool
    about: str


@dataclasses.dataclass(frozen=True, slots=True)
class DistinctAnswer:
    """One of the answers of a sweep, and where it is given, as text ("λ −2 … −1, 3")."""

    key: str
    text: str
    same: bool
    where: str


@dataclasses.dataclass(frozen=True, slots=True)
class SweepRow:
    """One value: `number` as the form field has it, `value` as text; the probabilities of the answer given there
    (`given`) and of the default answer (`default`) as text. `current`: the panel stands at it."""

    number: str
    value: str
    text: str
    given: str
    default: str
    same: bool
    current: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SweepView:
    """templates/runs/_sweep.html (root #sweep): what is answered under each value of one row of the steering panel, the
    other rows as they stood. Without `present` the root is hidden and empty. `field` = the row's form field, `symbol` =
    λ, × or =, `name` = the concept, neuron or latent, `operation` = what is done to the latter; `summary` = range and
    other settings in words. `live`: it waits or runs, and listens to `events`; `message` = how far it is, `error` why
    it failed. `cancel` = URL to POST `hidden` to, or ''; `again` = URL to POST the row to as `row`, with `hidden` and
    `others`, or ''. `action` = URL to POST one value to, as `field`, with both. `others` = the other settings as form
    fields. `figure`: {} = it follows. `columns`, `rows`: the table. `export` = URL of its JSON. `listed` = the panel
    stands as it was swept, apart from the row."""

    present: bool
    live: bool
    events: str
    field: str
    symbol: str
    name: str
    summary: str
    message: str
    error: str
    cancel: str
    again: str
    action: str
    hidden: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, str], ...]
    figure: FigureView
    strip: tuple[AnswerRun, ...]
    answers: tuple[DistinctAnswer, ...]
    columns: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    export: str
    listed: bool
    operation: str = "scale"
