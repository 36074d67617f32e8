"""Contexts of the pages that lay two states side by side (templates/compare/*.html), and of their parts."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.pages import RunLine, Shell
from app.contexts.run import HeatCell, MembershipView


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedView:
    """One side. `letter` = 'A' | 'B'; `href` = its run's page in this state. `target` in words with its quotation
    marks, `value` e.g. 'log-probability −0.10'. `model` = '' where both sides' is the same. `message` = why there is
    no attribution, or ''. `src` = '' without a picture; `cells` as in PictureView; `scale` = largest |value| of its
    own heat map where the sides have no common scale, else ''."""

    letter: str
    href: str
    question: str
    answer: str
    steering: str
    target: str
    value: str
    method: str
    model: str
    state: str
    message: str
    waiting: bool
    src: str
    width: int
    height: int
    cells: tuple[HeatCell, ...]
    caption: str
    scale: str


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceView:
    """A neuron on one side: its score as text and as a bar, and its rank as text."""

    score: str
    bar: float
    polarity: str
    rank: str


@dataclasses.dataclass(frozen=True, slots=True)
class CarriedRow:
    """A neuron with its place on both sides. `heat` = URL of this comparison with its heat maps; `steer_a`, `steer_b` =
    URLs of the runs' pages with it in the steering panel."""

    neuron: str
    a: PlaceView
    b: PlaceView
    memberships: tuple[MembershipView, ...]
    heat: str
    selected: bool
    steer_a: str
    steer_b: str


@dataclasses.dataclass(frozen=True, slots=True)
class CarriedGroup:
    """Neurons that carried both, only A, or only B. `empty` = what is said in place of rows, or ''."""

    name: str
    title: str
    rows: tuple[CarriedRow, ...]
    empty: str


@dataclasses.dataclass(frozen=True, slots=True)
class LikeRow:
    """A concept with its similarity to both sides' answers, as text and as a bar. `heat` = URL of this comparison with
    the concept's heat maps."""

    concept: str
    a: str
    a_bar: float
    b: str
    b_bar: float
    heat: str
    selected: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ComparePage:
    """templates/compare/show.html. `waiting` = a side is still being computed, and the page looks again at `url`.
    `notes`: what keeps the sides from being compared in full. `heats` and `layers` choose what both heat maps show
    (`layers` are options of a select named `heat`, which keeps `hidden`), `switch` = contribution | activation of a
    neuron. `scale` = largest |value| of both heat maps, '' where each has its own; `ends` = what its lower and upper
    end mean; `scales` = one for both | each its own, where that may be chosen, else `scale_note` says why not. `unit` =
    the power of ten of all scores, or ''. `figures` = (name, value, what it means). `tops` = how many neurons of each
    side are compared; `no_neurons` = why none are, or ''. `other` = URL of the choice of another side B.
    `error`: why this is not the comparison that was asked for, or ''."""

    shell: Shell
    a: ComparedView
    b: ComparedView
    waiting: bool
    url: str
    swap: str
    other: str
    export: str
    notes: tuple[str, ...]
    heats: tuple[Choice, ...]
    switch: tuple[Choice, ...]
    layers: tuple[Choice, ...]
    hidden: tuple[tuple[str, str], ...]
    scale: str
    ends: tuple[str, str]
    scale_note: str
    scales: tuple[Choice, ...]
    unit: str
    tops: tuple[Choice, ...]
    groups: tuple[CarriedGroup, ...]
    figures: tuple[tuple[str, str, str], ...]
    concepts: tuple[LikeRow, ...]
    no_neurons: str
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ChosenView:
    """A side that is chosen already. `drop` = URL of the choice without it."""

    letter: str
    href: str
    src: str
    question: str
    answer: str
    steering: str
    target: str
    method: str
    drop: str


@dataclasses.dataclass(frozen=True, slots=True)
class AddressField:
    """The field for one side's address: form field `name`, what is in it, and what is wrong with it, or ''."""

    name: str
    label: str
    value: str
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class ChoosePage:
    """templates/compare/choose.html: which two states to compare. `fields` for what is missing; `hidden`
    (name, value) keeps what is there. `error` = what is wrong with the choice as a whole.
    `suggestions` = further states of the chosen run, `recent` = runs to choose by a click, under the title
    `recent_title`."""

    shell: Shell
    fields: tuple[AddressField, ...]
    hidden: tuple[tuple[str, str], ...]
    chosen: tuple[ChosenView, ...]
    error: str
    suggestions: tuple[Choice, ...]
    recent: tuple[RunLine, ...]
    recent_title: str
