"""Contexts of a person's own concepts (templates/own/)."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.pages import Shell


@dataclasses.dataclass(frozen=True, slots=True)
class NewConceptPage:
    """templates/own/new.html: the form with what was typed kept. `source` = 'file' | 'world' | 'none'; `worlds` are
    concepts of the built-in world by kind (none for another model). `limits` says what may be uploaded. `mine` = the
    own concepts that there are, with what `value` says of them."""

    shell: Shell
    error: str
    name: str
    kind: str
    forms: str
    source: str
    worlds: tuple[tuple[str, tuple[Choice, ...]], ...]
    n: str
    most_drawn: int
    limits: str
    pictures: str
    mine: tuple[Choice, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OwnProbeRow:
    """A probe in the table. `before`, `says`, `after` make up the expected answer; `against` = what a contrast would
    say in the place of `says`, or ''. `outcome` = 'right' | 'wrong' | 'waiting' | 'refused', `refused` says why."""

    picture: str
    question: str
    before: str
    says: str
    after: str
    against: str
    logprob: str
    outcome: str
    refused: str
    source: str
    remove: str


@dataclasses.dataclass(frozen=True, slots=True)
class ProbesView:
    """Root #probes. `lines` = (line of a file, why it could not be taken, URL that forgets it). `more` = URL that shows
    all of them, or ''."""

    rows: tuple[OwnProbeRow, ...]
    summary: str
    more: str
    lines: tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class BuildView:
    """Root #build: how far the concept is. `state` of the newest job ('' = never built); `live`: the page listens to
    `events`. `share` ∈ [0, 1] of its probes. `button` = what the button says that builds, '' = nothing to build.
    `public` = URL of the concept's page in the library, '' while it is not there."""

    state: str
    live: bool
    headline: str
    message: str
    error: str
    share: float
    button: str
    action: str
    cancel: str
    events: str
    public: str


@dataclasses.dataclass(frozen=True, slots=True)
class BuildFragment:
    """templates/own/_build.html"""

    build: BuildView


@dataclasses.dataclass(frozen=True, slots=True)
class ProbesFragment:
    """templates/own/_probes.html"""

    probes: ProbesView


@dataclasses.dataclass(frozen=True, slots=True)
class OwnPage:
    """templates/own/show.html. `forms` in a sentence, `typed` one a line as they are edited. `expression` of a derived
    concept, '' else. `maps`, `modes` and `contrasts` are the options of the settings' form."""

    shell: Shell
    url: str
    name: str
    kind: str
    forms: str
    typed: str
    expression: str
    build: BuildView
    probes: ProbesView
    maps: tuple[Choice, ...]
    quantile: str
    modes: tuple[Choice, ...]
    contrasts: tuple[Choice, ...]
    limits: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeletePage:
    """templates/own/delete.html. `naming` = derived concepts that cannot be made without it, `contrasting` = those that
    it is contrasted with, each in a sentence or ''. `derived`: it has an expression, and no probes."""

    shell: Shell
    url: str
    name: str
    probes: int
    naming: str
    contrasting: str
    derived: bool


@dataclasses.dataclass(frozen=True, slots=True)
class AddRunPage:
    """templates/own/add.html: a run's question and answer become a probe. `concepts` = the own concepts to choose from;
    `name` of a new one. `run` = URL of the run."""

    shell: Shell
    error: str
    run: str
    action: str
    picture: str
    question: str
    answer: str
    says: str
    concepts: tuple[Choice, ...]
    name: str
