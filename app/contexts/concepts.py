"""Contexts of the pages about concepts: the list, one concept, and all of them beside one another."""

import dataclasses
from typing import Any

from app.contexts.latentconcepts import ConceptLatentsView
from app.contexts.links import Choice
from app.contexts.pages import Shell
from app.contexts.run import HeatCell, MembershipView
from app.contexts.validation import ValidationView


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptLine:
    """`members` = neurons that a steering turns. `weak` = why the concept is marked as weak, '' where it is not."""

    name: str
    kind: str
    probes: int
    cardinality: str
    members: int
    href: str
    weak: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptsPage:
    """templates/concepts/index.html. `kinds` filter; `query` = what was searched for; `kind` and `sort` = what is
    chosen, for the form that searches; `sorts` = an order each, by the column that it sorts."""

    shell: Shell
    query: str
    kind: str
    sort: str
    kinds: tuple[Choice, ...]
    sorts: tuple[Choice, ...]
    concepts: tuple[ConceptLine, ...]
    total: int
    empty: str


@dataclasses.dataclass(frozen=True, slots=True)
class MemberRow:
    """`low` and `high` = the bootstrap interval of `membership`, equal to it where there is none (`interval` = '')."""

    rank: int
    neuron: str
    layer: int
    membership: float
    text: str
    others: tuple[MembershipView, ...]
    interval: str = ""
    low: float = 0.0
    high: float = 0.0
    href: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerBar:
    """How many members a layer has in the α-cut; `bar` relative to the layer with most."""

    layer: str
    bar: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CutView:
    """The α-cut and its members. `alpha` as the slider writes it; `words` says how large the cut is; `about` what the
    intervals are, '' without any."""

    action: str
    alpha: str
    words: str
    layers: tuple[LayerBar, ...]
    members: tuple[MemberRow, ...]
    about: str = ""
    empty: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class AlikeRow:
    """Another concept and how near it is: `value` ∈ [0, 1], `text` the same in words. `pair` = URL of both in
    algebra."""

    name: str
    href: str
    value: float
    text: str
    pair: str


@dataclasses.dataclass(frozen=True, slots=True)
class ExampleView:
    """A run whose answer was much like the concept, with the concept's heat map over its picture."""

    href: str
    src: str
    width: int
    height: int
    cells: tuple[HeatCell, ...]
    question: str
    answer: str
    note: str


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeView:
    """A probe of an own concept. `src` = '' for a text-only one. `state` = what came of it, in words; `refused`."""

    src: str
    question: str
    answer: str
    state: str
    refused: bool


@dataclasses.dataclass(frozen=True, slots=True)
class DerivedView:
    """A derived concept: its expression and family; `href` = URL of both in algebra, `delete` = of the page that asks
    before it is deleted."""

    expression: str
    family: str
    href: str
    delete: str


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptPage:
    """templates/concepts/show.html. `facts` = (term, value, what it is). `bands` = members by layer and membership band
    (Plotly), with `band_columns` and `band_rows` as its table; `figure` = cardinality per layer, with `layers` as its
    table. `near`, `inside` (how far this one lies in others) and `holds` (how far others lie in this one). `figures`
    and `recipe` = what was measured of it and how it was built, as (name, value). `algebra` = URL of this concept in
    algebra; `own` = of the page of its probes and settings, '' where a person has not built it; `latents` of each
    attached SAE."""

    shell: Shell
    concept: ConceptLine
    facts: tuple[tuple[str, str, str], ...]
    cut: CutView
    bands: dict[str, Any]
    band_columns: tuple[str, ...]
    band_rows: tuple[tuple[str, ...], ...]
    figure: dict[str, Any]
    layers: tuple[tuple[str, str], ...]
    near: tuple[AlikeRow, ...]
    inside: tuple[AlikeRow, ...]
    holds: tuple[AlikeRow, ...]
    examples: tuple[ExampleView, ...]
    probes: tuple[ProbeView, ...]
    probes_note: str
    derived: DerivedView | None
    figures: tuple[tuple[str, str], ...]
    recipe: tuple[tuple[str, str], ...]
    algebra: str
    own: str
    validation: ValidationView
    latents: tuple[ConceptLatentsView, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PairRow:
    """Two concepts and how alike they are. `inside` = how far the first lies in the second, `holds` the reverse."""

    first: str
    first_href: str
    second: str
    second_href: str
    value: float
    similarity: str
    inside: str
    holds: str
    href: str


@dataclasses.dataclass(frozen=True, slots=True)
class SimilarPage:
    """templates/concepts/similar.html: all concepts beside one another. `of` = 'similarity' or 'inclusion'; `caption`
    says how to read the figure ({} where there is nothing to compare, which `empty` says)."""

    shell: Shell
    of: str
    measures: tuple[Choice, ...]
    kinds: tuple[Choice, ...]
    figure: dict[str, Any]
    caption: str
    pairs: tuple[PairRow, ...]
    empty: str
