"""Contexts of the fragments of a run's page (templates/runs/_*.html), and of their parts."""

import dataclasses
from typing import Any

from app.contexts.links import Choice
from app.contexts.target import ApartView, TargetView


@dataclasses.dataclass(frozen=True, slots=True)
class StatusView:
    """templates/runs/_status.html (root #status). Queue position counts from 1; 0 when not waiting.
    `timings` = (stage, milliseconds as text). `cancel` = URL to POST to, or '' when there is nothing to cancel; `again`
    = URL to POST to that asks a failed or cancelled run again, or ''.
    `live` = the run is queued or running, so the page listens to `events`."""

    state: str
    live: bool
    queue_position: int
    message: str
    error: str
    remedy: str
    cancel: str
    again: str
    timings: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AlternativeView:
    text: str
    probability: float
    percent: str


@dataclasses.dataclass(frozen=True, slots=True)
class TokenView:
    """One answer token as a chip. `text` may hold leading space (shown as · in titles only). `href` makes this token
    alone the target; `extend` extends the current target to it."""

    position: int
    text: str
    id: int
    probability: float
    percent: str
    logprob: str
    in_target: bool
    href: str
    extend: str
    alternatives: tuple[AlternativeView, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerView:
    """templates/runs/_answer.html (root #answer). While streaming, `tokens` hold what has come so far.
    `target`: what is explained. `methods` = attribution methods to choose from. `add` = URL that makes the run a probe
    of an own concept, '' where it cannot be one."""

    question: str
    streaming: bool
    tokens: tuple[TokenView, ...]
    text: str
    stopped_by_length: bool
    target: TargetView
    methods: tuple[Choice, ...]
    add: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class HeatCell:
    """A patch as a rectangle in pixels of the original picture. `opacity` ∈ [0, 1] = |value| / largest |value|."""

    x: float
    y: float
    width: float
    height: float
    opacity: float
    polarity: str
    value: str
    row: int
    column: int


@dataclasses.dataclass(frozen=True, slots=True)
class TokenChip:
    """A token of prompt or answer on the text strip, or `count` picture positions in a row folded into one. `text`
    makes white space and what has no shape visible; `kind` = its modality. `opacity` ∈ [0, 1] = |score| / largest
    |score| of a token. `about` = position, id and score in words. `target`: it is one of the explained tokens."""

    text: str
    kind: str
    about: str
    opacity: float
    polarity: str
    target: bool
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StripView:
    """The text strip: every token of prompt and answer, shaded by its score over all layers. `groups` = (name, chips);
    `open` = it is shown from the start, because there is no picture. `scale` = largest |score| of a token as text, or
    '' where nothing is shaded."""

    waiting: bool
    open: bool
    groups: tuple[tuple[str, tuple[TokenChip, ...]], ...]
    caption: str
    scale: str


@dataclasses.dataclass(frozen=True, slots=True)
class PictureView:
    """templates/runs/_picture.html (root #picture): the picture with its heat map, aligned by the SVG's viewBox =
    `0 0 width height` of the original picture. `src` = '' for a text-only question. `shown` names what the heat map
    shows; `caption` says it in words, with the strongest patch; `choices` = what carried it | the concepts at
    hand | all neurons | input | off; `layers` = options of a GET select beside them that sends `hidden` (name, value);
    `switch` = contribution | activation while a neuron is shown. `scale` = largest |value| as text (or ''), `ends` =
    what its lower and upper end mean. `waiting` = the heat map is not there yet. `retry` = URL to POST `retry_fields`
    to, which computes a failed map again, or ''. `fires` = URL of the page on which a box is drawn, or ''.
    `notes`: what intake did ("frame 1 of 3", "turned upright", "16-bit scaled from 0–65535")."""

    src: str
    width: int
    height: int
    alt: str
    waiting: bool
    shown: str
    caption: str
    scale: str
    cells: tuple[HeatCell, ...]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    strip: StripView
    ends: tuple[str, str] = ("against", "for")
    layers: tuple[Choice, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()
    switch: tuple[Choice, ...] = ()
    retry: str = ""
    retry_fields: tuple[tuple[str, str], ...] = ()
    fires: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MembershipView:
    """A concept chip: membership μ ∈ [0, 1] of one neuron. `weak`: the concept failed its validation."""

    concept: str
    membership: float
    text: str
    href: str
    weak: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronRow:
    """A ranked neuron. `heat` = URL that shows its heat map; `selected` = it is shown. `image_share` ∈ [0, 1].
    `steer` = URL that adds it to the steering panel; `page` = its own page, '' where its model is not known; `label` =
    what people call it, or ''."""

    rank: int
    neuron: str
    layer: int
    score: str
    bar: float
    polarity: str
    image_share: float
    image_percent: str
    memberships: tuple[MembershipView, ...]
    heat: str
    selected: bool
    steer: str
    page: str = ""
    label: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronsView:
    """templates/runs/_neurons.html (root #neurons). `layers`, `modalities`, `concepts` and `sorts` are options of
    GET selects that keep the other state in `hidden` (name, value). `shares` = (modality, percent text), its modality
    shares. `sums` = (modality or 'all', signed sum as text), and `checks`: the bookkeeping in words. `apart`: positions
    that can be left out; `left_out` says which are, or ''. `waiting`: attribution is not there
    yet. `empty` = why nothing is shown, or ''. `more` = URL that shows further rows, or ''. `unit` = the power of
    ten of all scores, e.g. '10⁻³', or ''. `retry` = URL to POST `retry_fields` (name, value) to, which
    computes a failed attribution again, or ''; `back` = targets and methods that it leaves to choose.
    `listed` = how many of the strongest neurons are kept: the filters search these."""

    waiting: bool
    method: str
    shown: int
    all_neurons: str
    rows: tuple[NeuronRow, ...]
    layers: tuple[Choice, ...]
    modalities: tuple[Choice, ...]
    concepts: tuple[Choice, ...]
    sorts: tuple[Choice, ...]
    hidden: tuple[tuple[str, str], ...]
    shares: tuple[tuple[str, str], ...]
    checks: tuple[str, ...]
    empty: str
    python: str
    export: str
    more: str = ""
    unit: str = ""
    retry: str = ""
    retry_fields: tuple[tuple[str, str], ...] = ()
    back: tuple[Choice, ...] = ()
    listed: int = 0
    sums: tuple[tuple[str, str], ...] = ()
    apart: tuple[ApartView, ...] = ()
    left_out: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class WhereView:
    """templates/runs/_where.html (root #where): layers × positions as a Plotly figure (`figure` is JSON-ready, no NaN)
    with a caption and the same numbers as a table (`rows`: layer, then one text per modality)."""

    waiting: bool
    figure: dict[str, Any]
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
