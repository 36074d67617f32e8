"""Contexts of what is explained: the target's line and its form in templates/runs/_answer.html."""

import dataclasses

from app.contexts.links import Choice


@dataclasses.dataclass(frozen=True, slots=True)
class PieceView:
    """One id of a target with its own text, in which spaces are shown as ·."""

    text: str
    id: int


@dataclasses.dataclass(frozen=True, slots=True)
class WayView:
    """A variant of a text: `text` (spaces as ·), its log-probability as text, `ids` in words. `href` explains exactly
    this one; `selected` = it is explained."""

    text: str
    logprob: str
    ids: str
    href: str
    selected: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SideView:
    """One side of the target. `pieces`: one for each id, none while they are not known (`waiting`). `ways`: the text's
    variants, none for the answer's own tokens. `note`: how it came to be written so."""

    label: str
    pieces: tuple[PieceView, ...]
    ways: tuple[WayView, ...]
    note: str
    waiting: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SuggestionView:
    """A contrast in one click: the other side's text and how probable it was, as text."""

    text: str
    percent: str
    href: str


@dataclasses.dataclass(frozen=True, slots=True)
class TargetView:
    """What is explained, and the form (GET `action` with `hidden`) that explains something else. `open`: it is shown
    unfolded. `text`, `against`: both sides in words, '' without a contrast; `value` e.g. 'log-probability −0.10';
    `tokens` e.g. '2 tokens'; `aside` = 'not said by the model', or ''. `whole`: URL of the whole answer's
    log-probability, '' when it is the target already. `say`, `other`: what the two fields hold, `place` the first one's
    label, `example` a text for it. `certain`: why the scores are small, or '', with `remedies` (links). `warning`: what
    is wrong with the target, or ''."""

    open: bool
    action: str
    hidden: tuple[tuple[str, str], ...]
    text: str
    against: str
    aside: str
    tokens: str
    value: str
    whole: str
    say: str
    other: str
    place: str
    example: str
    quantities: tuple[Choice, ...]
    quantity_note: str
    suggestions: tuple[SuggestionView, ...]
    certain: str
    remedies: tuple[Choice, ...]
    warning: str
    sides: tuple[SideView, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ApartView:
    """A kind of position that can be left out of all sums. `percent`: its part of Σ|score|, '' while unknown;
    `counted` = it is not left out; `href` turns that round; `about` explains the kind."""

    label: str
    percent: str
    counted: bool
    href: str
    about: str
