"""Contexts of the page that lists sparse autoencoders (SAEs), and of the pages on which one is trained."""

import dataclasses

from app.contexts.evaluation import EvaluationLine
from app.contexts.latentconcepts import SaeConceptsView
from app.contexts.links import Choice
from app.contexts.pages import Shell
from app.contexts.trust import FigureView


@dataclasses.dataclass(frozen=True, slots=True)
class SaeCard:
    """An SAE. `about` = architecture and site; `facts` (term, value); `refused` = why it cannot stand on the loaded
    model, or ''. `command` = what made it, or ''. `tried` = (term, value) of how well it reads a sample, which `sample`
    names, with `warnings`; `detach` = URL to POST `id` to, '' for one that ships with the model. `fresh`: it was
    attached just now."""

    name: str
    about: str
    facts: tuple[tuple[str, str], ...]
    refused: str
    command: str
    id: str = ""
    tried: tuple[tuple[str, str], ...] = ()
    sample: str = ""
    warnings: tuple[str, ...] = ()
    detach: str = ""
    fresh: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class AttemptView:
    """An SAE that is being attached, or could not be: `message` says what is the matter. `again` and `forget` are URLs
    to POST to, '' while it is `live`."""

    what: str
    message: str
    live: bool
    again: str
    forget: str


@dataclasses.dataclass(frozen=True, slots=True)
class AttachForm:
    """POST of `path`, `layer` and `site` to `action`. `where` = from where in words; `error` of what was typed."""

    action: str
    path: str
    layer: str
    sites: tuple[Choice, ...]
    where: str
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class TrainForm:
    """What is to be trained: GET to `action`. `numbers` = (field, label, value, least, largest, hint); `sources` are
    the radio buttons of `source`, and `folder` belongs to the last."""

    action: str
    sites: tuple[Choice, ...]
    architectures: tuple[Choice, ...]
    numbers: tuple[tuple[str, str, str, int, int, str], ...]
    name: str
    sources: tuple[Choice, ...]
    folder: str
    where: str


@dataclasses.dataclass(frozen=True, slots=True)
class SaesPage:
    """templates/latents/saes.html. `empty` = why none is listed, or ''; `memberships` = concepts in the latents of
    each. `attempts` to attach that have not ended, or failed; while `live` the page asks again at `here`."""

    shell: Shell
    saes: tuple[SaeCard, ...]
    empty: str
    memberships: tuple[SaeConceptsView, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    live: bool = False
    here: str = "/saes"
    attach: AttachForm | None = None
    train: TrainForm | None = None
    trainings: tuple[EvaluationLine, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TrainPlanPage:
    """templates/latents/plan.html: what would be trained and how long it takes, before it is started by a POST of
    `hidden` (name, value) to `start` ('' where `error` says why not). `facts` = (term, value)."""

    shell: Shell
    form: TrainForm
    error: str
    estimate: str
    facts: tuple[tuple[str, str], ...]
    start: str
    hidden: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingView:
    """templates/latents/_training.html (root #training). While it is `live` it listens to `events`; `headline` and
    `detail` say how far it is, `share` ∈ [0, 1] the same (None: it is done). `cancel`, `again` and `anew` are URLs or
    ''. `figure` (None: no point yet) of the curve, and `rows` of its table under `columns`; `card` = what came of it,
    with the page of all SAEs at `home`; `facts` = (term, value) of the recipe; `command` reproduces it."""

    live: bool
    state: str
    events: str
    headline: str
    detail: str
    share: float | None
    cancel: str
    again: str
    anew: str
    error: str
    figure: FigureView | None
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    card: SaeCard | None
    home: str
    facts: tuple[tuple[str, str], ...]
    command: str


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingPage:
    """templates/latents/training.html"""

    shell: Shell
    title: str
    about: str
    training: TrainingView
