"""Contexts of the card that says how far a ranking can be trusted (templates/runs/_trust.html)."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class MeasurementView:
    """One measurement of the target. `state` as of a run, '' where nobody has asked for it. `teach` = what will be
    measured, and how long it takes; `message` = how far it is; `error` = why it failed. `button` = what the button says
    that asks for it, '' = there is none. `cancel` = URL to POST to, or ''. `share` ∈ [0, 1] of its steps that are done,
    None while that is not known. `live`: it waits or runs."""

    kind: str
    title: str
    state: str
    live: bool
    teach: str
    message: str = ""
    error: str = ""
    button: str = ""
    cancel: str = ""
    share: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FigureView:
    """A Plotly figure (`figure` is JSON-ready, no NaN; {} = it follows) with its caption. `name` is its id."""

    name: str
    label: str
    figure: dict[str, Any]
    caption: str


@dataclasses.dataclass(frozen=True, slots=True)
class BandView:
    """What one other way to compute the same scores changes, in words; `moved` = (neuron, URL of its heat map)."""

    against: str
    words: str
    moved: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TrustView:
    """templates/runs/_trust.html (root #trust). `waiting`: the ranking is not there yet; `empty` = why there is none to
    judge, or ''. A measurement is asked for by a POST of `hidden` (name, value) and `kind` to `action`, and cancelled
    by a POST of `hidden`. `live`: the card listens to `events`.
    `faithfulness` and `noise` are the measurements. Of the first: `figures` and `facts` = (term, value, definition),
    whose room is kept while it runs, and the `thresholds`; once it is done the `verdict` (its first word), `because`,
    and the curve as a table (`columns`, `rows`). Of the second: `bands`. `long`: more is said beside the
    verdict, and its room is kept."""

    waiting: bool
    empty: str
    sub: str
    action: str
    hidden: tuple[tuple[str, str], ...]
    live: bool
    events: str
    faithfulness: MeasurementView
    noise: MeasurementView
    thresholds: str
    figures: tuple[FigureView, ...]
    facts: tuple[tuple[str, str, str], ...]
    columns: tuple[str, ...]
    verdict: str = ""
    because: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    bands: tuple[BandView, ...] = ()
    long: bool = False
