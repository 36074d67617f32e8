"""Contexts of whole pages, and of the parts that only they show."""

import dataclasses

from app.contexts.latents import LatentsView
from app.contexts.run import (
    AnswerView,
    NeuronsView,
    PictureView,
    StatusView,
    WhereView,
)
from app.contexts.steering import SteeredView, SteerView
from app.contexts.sweep import SweepView
from app.contexts.trust import TrustView


@dataclasses.dataclass(frozen=True, slots=True)
class Shell:
    """What every page shows around its content. `active` = 'ask' | 'runs' | 'concepts' | 'evaluate' |
    'model' | ''. `model_state` = 'loading' | 'ready' | 'refused'; `model_message` says so in words ('' when ready)."""

    title: str
    active: str
    model_name: str
    model_device: str
    model_holds: bool
    queue_length: int
    model_state: str = "ready"
    model_message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SampleView:
    """A sample picture on the first page; `questions` are suggestions the built-in model can answer."""

    name: str
    src: str
    alt: str
    questions: tuple[str, ...]
    selected: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RunLine:
    """A run in a list. `state` = 'queued' | 'running' | 'done' | 'failed' | 'cancelled'."""

    href: str
    picture: str | None
    question: str
    answer: str
    state: str
    when: str
    when_iso: str
    steering: str


@dataclasses.dataclass(frozen=True, slots=True)
class AskForm:
    """The question form, with what was typed kept after an error. `sample` = name of the chosen sample or ''.
    `picture_hash` = an already stored upload kept over an error. `limits` says what may be uploaded."""

    action: str
    question: str
    sample: str
    picture_hash: str
    picture_src: str
    error: str
    limits: str
    accept: str
    max_question: int


@dataclasses.dataclass(frozen=True, slots=True)
class AskPage:
    """templates/ask/index.html"""

    shell: Shell
    form: AskForm
    samples: tuple[SampleView, ...]
    recent: tuple[RunLine, ...]
    builtin: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RunsPage:
    """templates/runs/index.html. `older`/`newer` are URLs or ''."""

    shell: Shell
    runs: tuple[RunLine, ...]
    older: str
    newer: str


@dataclasses.dataclass(frozen=True, slots=True)
class RunPage:
    """templates/runs/show.html. `events` = URL of the event stream. `permalink` = this state's URL. `parent` = URL of
    the original run when this one is steered, else ''. `builtin_note` = plain note about the built-in model's small
    world, '' when not needed. `title` of the shell is the question. `compare` = URL that lays another state beside this
    one."""

    shell: Shell
    run: str
    events: str
    permalink: str
    parent: str
    builtin_note: str
    status: StatusView
    answer: AnswerView
    picture: PictureView
    neurons: NeuronsView
    steer: SteerView
    steered: SteeredView
    where: WhereView
    trust: TrustView
    sweep: SweepView
    latents: LatentsView
    compare: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckLine:
    name: str
    holds: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class ModelPage:
    """templates/model/show.html: the loaded model, its anatomy and its self-check; how to load another one."""

    shell: Shell
    facts: tuple[tuple[str, str], ...]
    checks: tuple[CheckLine, ...]
    holds: bool
    builtin: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorPage:
    """templates/error.html, and templates/_error.html for htmx: what happened, the remedy, and a link onwards."""

    shell: Shell
    status: int
    headline: str
    message: str
    remedy: str
    href: str
    link: str
