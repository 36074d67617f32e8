"""Contexts of the steering panel (templates/runs/_steer.html) and of the two answers (templates/runs/_steered.html)."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.run import AlternativeView, HeatCell


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptTurnRow:
    """A concept in the steering panel. `lam` = current λ as text for the slider (−2 … 4, in steps of `step`; '0' =
    alone); `on` = it is part of the present steering. `weight` = Σ μ s as text with sign, `polarity` of it; `bar` = the
    similarity relative to the largest; `members` = how many neurons it steers through. `field` = name of the form field
    that carries λ. `heat` = URL of its heat map.
    `factor` = the multiplier at μ = 1 as text (1 + λ, e.g. '×0.0'), '' when alone. `similarity` of the concept and the
    answer's own fuzzy set as text, '' while unknown; the most similar concepts come first. `weak`: the concept
    failed its validation."""

    concept: str
    kind: str
    field: str
    lam: str
    on: bool
    members: int
    weight: str
    polarity: str
    bar: float
    heat: str
    href: str
    factor: str = ""
    similarity: str = ""
    weak: bool = False
    step: str = "0.1"


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronTurnRow:
    """A single neuron or latent in the steering panel, called `neuron`; `factor` = multiplier as text ('1' = alone),
    `field` its name; the form with `drop` = that name removes the row. `operations` are options of a select named
    `operation_field` (scale, add or set); for add and set, `value` ('' = alone) is the content of a number field named
    `value_field`. `low`, `high`, `step` of the slider. `says` = the edit in short, e.g. '+2', '' when alone. `peak` =
    its peak activation in this run as text, '' while unknown; `usual` = the value to begin with.
    Of a latent: `href` = its page, `label` = what it is called, `hidden` = further form fields (name, value); `set`
    begins with `usual` too; `lost` = why it cannot be turned now."""

    neuron: str
    field: str
    factor: str
    on: bool
    operations: tuple[Choice, ...] = ()
    operation_field: str = ""
    value: str = ""
    value_field: str = ""
    low: str = "0"
    high: str = "4"
    step: str = "0.1"
    says: str = ""
    peak: str = ""
    usual: str = "1"
    href: str = ""
    label: str = ""
    hidden: tuple[tuple[str, str], ...] = ()
    lost: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PresetLine:
    """A preset in the panel's menu. `words` = what it does; `apply` = URL to POST to."""

    name: str
    words: str
    apply: str


@dataclasses.dataclass(frozen=True, slots=True)
class PresetsView:
    """The panel's menu of presets. `hidden` (name, value) is sent when one is applied; `save` = URL to POST the panel's
    form and a name (field `preset`) to. `more` = how many further ones the page at `href` lists."""

    lines: tuple[PresetLine, ...]
    hidden: tuple[tuple[str, str], ...]
    save: str
    href: str
    more: int


@dataclasses.dataclass(frozen=True, slots=True)
class SteerView:
    """templates/runs/_steer.html (root #steer): a form that POSTs the whole steering to `action`. The rows are the
    concepts that carried the answer most, then those added by hand, then `neurons` and `latents`. `add_options` = names
    for a datalist; `add_action` = URL (GET) to add a concept, neuron or latent by name (field `add`), with `hidden`.
    `positions` are options of a select named `positions`. `reset` = URL of this page without any
    steering ('' when nothing is steered). `first`, `last` are options of two selects named `layers`, in which concepts
    act: `first` may be '' for all layers. `presets`: a menu of saved steerings."""

    waiting: bool
    action: str
    concepts: tuple[ConceptTurnRow, ...]
    neurons: tuple[NeuronTurnRow, ...]
    positions: tuple[Choice, ...]
    add_action: str
    add_options: tuple[str, ...]
    add_error: str
    hidden: tuple[tuple[str, str], ...]
    empty: str
    reset: str = ""
    first: tuple[Choice, ...] = ()
    last: tuple[Choice, ...] = ()
    presets: PresetsView | None = None
    sweep: str = ""
    latents: tuple[NeuronTurnRow, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PairToken:
    """A token of one answer with its probability under both models. `changed`: it has no equal in the other answer,
    both laid beside one another so that most tokens meet their like."""

    text: str
    id: int
    original: float
    original_percent: str
    steered: float
    steered_percent: str
    changed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MovedRow:
    """A concept whose similarity to the answer's own fuzzy set the steering changed. `before`, `after` ∈ [0, 1] are
    relative to the largest of all rows; `change` = the difference with its sign."""

    concept: str
    href: str
    before: float
    before_text: str
    after: float
    after_text: str
    change: str
    polarity: str


@dataclasses.dataclass(frozen=True, slots=True)
class SteeredView:
    """templates/runs/_steered.html (root #steered): default and steered side by side. `present` = there is a steered
    run; otherwise an empty state that teaches. `summary` = the steering in words ("traffic light λ −1 · 128 neurons").
    `control` = what the random set of equal size answered, in words, '' while unknown. `heat_original`,
    `heat_steered`: cells on one common scale (empty when unknown), of `heat_of` (what the maps show).
    `alternatives_of` = the token of the default and of the steered answer that the alternatives stand for.
    `original_parts`, `steered_parts`: the answers as (text, differs). `moved`: the concepts, but for the steered ones,
    whose similarity changed most; `moved_waiting` while that is not known, `moved_none` = why none is shown."""

    present: bool
    live: bool
    events: str
    href: str
    summary: str
    original_text: str
    steered_text: str
    same_answer: bool
    original_tokens: tuple[PairToken, ...]
    steered_tokens: tuple[PairToken, ...]
    alternatives_original: tuple[AlternativeView, ...]
    alternatives_steered: tuple[AlternativeView, ...]
    control: str
    control_same: bool
    duration: str
    error: str
    remedy: str
    undo: str
    picture: str
    width: int
    height: int
    heat_original: tuple[HeatCell, ...]
    heat_steered: tuple[HeatCell, ...]
    heat_of: str = ""
    alternatives_of: tuple[str, str] = ("", "")
    original_parts: tuple[tuple[str, bool], ...] = ()
    steered_parts: tuple[tuple[str, bool], ...] = ()
    moved: tuple[MovedRow, ...] = ()
    moved_waiting: bool = False
    moved_none: str = ""
