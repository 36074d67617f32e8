"""Contexts of the neuron page, the search, and the page that says which neurons fire inside a box."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.pages import Shell
from app.contexts.run import HeatCell
from app.contexts.trust import FigureView, MeasurementView


@dataclasses.dataclass(frozen=True, slots=True)
class BelongsTo:
    """A concept that the neuron belongs to, with its membership ∈ [0, 1]. `weak`: its validation failed."""

    concept: str
    kind: str
    href: str
    membership: float
    text: str
    weak: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TokenBar:
    """A token of the lens; `bar` ∈ [0, 1] relative to the largest of both lists."""

    text: str
    value: str
    bar: float


@dataclasses.dataclass(frozen=True, slots=True)
class AlikeNeuron:
    """A neuron with a nearby write vector; `bar` ∈ [0, 1] = the cosine. `label` = what a person called it, or ''."""

    neuron: str
    href: str
    cosine: str
    bar: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class LensView:
    """`message` in place of the lists while they are not there; `again` = URL to POST to after a failure, or ''."""

    message: str
    again: str
    promoted: tuple[TokenBar, ...]
    suppressed: tuple[TokenBar, ...]
    alike: tuple[AlikeNeuron, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SeenPicture:
    """A picture that the neuron answers to, with its activations as `cells`. `href` = the run that asked it, or ''."""

    src: str
    width: int
    height: int
    question: str
    value: str
    href: str
    cells: tuple[HeatCell, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Snippet:
    """A token to which the neuron answers, between what stands around it."""

    before: str
    token: str
    after: str
    value: str
    href: str


@dataclasses.dataclass(frozen=True, slots=True)
class SeenView:
    """What the survey saw of the neuron. `of` = what was surveyed, in words ('' = nothing was); `facts` = rows of
    (term, image, text); `bins` = the figure's numbers. `pending` = why the pictures have no masks, or ''. `work` = the
    survey that is asked for or runs, by a POST to `action`."""

    of: str
    facts: tuple[tuple[str, str, str], ...]
    figure: FigureView
    bins: tuple[tuple[str, str, str], ...]
    pictures: tuple[SeenPicture, ...]
    snippets: tuple[Snippet, ...]
    pending: str
    work: MeasurementView
    action: str


@dataclasses.dataclass(frozen=True, slots=True)
class RankedRun:
    """A run in which the neuron was among the ranked. `image` = its image share."""

    href: str
    picture: str
    question: str
    answer: str
    rank: int
    score: str
    polarity: str
    method: str
    image: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReaderGroup:
    """An SAE by `name` and site, and its latents that read the neuron most; none where it writes nothing to its
    site."""

    name: str
    site: str
    latents: tuple[AlikeNeuron, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronPage:
    """templates/neuron/show.html. `moves` = neighbours (an empty href: there is none). `other` = why this is not about
    the loaded model, or ''. `memberships` strongest first, `folded` the rest of them. `live`: the page asks for `here`
    again until everything is there. `limits` = characters of label and note. `readers` = latents that read it, by SAE;
    `reading` = why there are none yet, or ''."""

    shell: Shell
    neuron: str
    about: str
    here: str
    other: str
    moves: tuple[Choice, ...]
    label: str
    note: str
    limits: tuple[int, int]
    memberships: tuple[BelongsTo, ...]
    folded: tuple[BelongsTo, ...]
    concepts: str
    lens: LensView
    seen: SeenView
    live: bool
    runs: tuple[RankedRun, ...]
    readers: tuple[ReaderGroup, ...] = ()
    reading: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A neuron that was found, and why."""

    neuron: str
    href: str
    label: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class SearchPage:
    """templates/neuron/search.html. `groups` = (title, hits). `tokens` = the lens of all neurons, which a search by
    token needs, asked for by a POST to `action`; `empty` = what to do where nothing was found."""

    shell: Shell
    query: str
    concepts: tuple[Choice, ...]
    groups: tuple[tuple[str, tuple[Hit, ...]], ...]
    tokens: MeasurementView
    action: str
    live: bool
    here: str
    empty: str


@dataclasses.dataclass(frozen=True, slots=True)
class FiredRow:
    """A neuron inside the box: mean |activation| there and elsewhere, and its map."""

    neuron: str
    href: str
    label: str
    inside: str
    outside: str
    bar: float
    cells: tuple[HeatCell, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FiresPage:
    """templates/neuron/fires.html. `fields` = (name, label, value, largest) of the box's edges in pixels; `box` = (x,
    y, width, height) once it is drawn, or None. `live`: the page asks for `here` again."""

    shell: Shell
    run: str
    question: str
    src: str
    width: int
    height: int
    fields: tuple[tuple[str, str, str, int], ...]
    box: tuple[float, float, float, float] | None
    message: str
    live: bool
    here: str
    summary: str
    rows: tuple[FiredRow, ...]
