"""Probes as data: what a concept is built from, and what came of each. Torch-free (METHODS.md §2)."""

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.concepts.evidence import Shares
from engine.errors import RequestError

MAX_FORMS, MAX_FORM, MAX_NAME = 50, 200, 80


@dataclasses.dataclass(frozen=True)
class Probe:
    """A picture (height, width, 3; None for text), a question, the expected answer, and the part of it, `says`, that
    expresses the concept. `box` = (left, top, right, bottom) of the thing in the picture's pixels, where known.
    `against`: the target is a contrast: what this other text would have said in the place of `says`."""

    picture: npt.NDArray[np.uint8] | None
    question: str
    answer: str
    says: str
    box: tuple[float, float, float, float] | None = None
    against: str | None = None


@dataclasses.dataclass(frozen=True)
class ConceptPlan:
    """A concept to be built: its name and kind, the surface forms by which answers word it (the name itself where none
    is given), and the names of the concepts it is contrasted with."""

    name: str
    kind: str = "own"
    surface_forms: tuple[str, ...] = ()
    contrast: tuple[str, ...] = ()

    @property
    def forms(self) -> tuple[str, ...]:
        return self.surface_forms or (self.name,)


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeResult:
    """What came of probe `index`: its evidence shares, the log-probability (nats) of the part that says the concept,
    and whether the model, decoding greedily, would give exactly the expected answer and then end."""

    index: int
    shares: Shares
    logprob: float
    right: bool


@dataclasses.dataclass(frozen=True)
class Refused:
    """Probe `index` cannot be put to this model, and why."""

    index: int
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeEvidence:
    """What came of all probes that were run, by index; `seconds_per_probe` over the whole call."""

    results: tuple[ProbeResult, ...]
    refused: tuple[Refused, ...]
    seconds_per_probe: float


OnBatch = Callable[[Sequence[ProbeResult], Sequence[Refused], float], None]
"""(results, refused, seconds): called after each batch with what is new; store it, and it need not be done again. The
first batch's seconds over its probes are the estimate for the rest."""


def check_plan(plan: ConceptPlan) -> None:
    """Raise RequestError for a name or forms that cannot be used."""
    if not plan.name.strip() or len(plan.name) > MAX_NAME:
        raise RequestError(f"A concept needs a name of 1 to {MAX_NAME} characters; this one has {len(plan.name)}.")
    if len(plan.surface_forms) > MAX_FORMS:
        raise RequestError(f"A concept has at most {MAX_FORMS} surface forms; {len(plan.surface_forms)} were given.")
    if any(not form.strip() for form in plan.surface_forms):
        raise RequestError("A surface form is empty. Write it out, or leave it out.")
    longest = max(map(len, plan.surface_forms), default=0)
    if longest > MAX_FORM:
        raise RequestError(f"A surface form has {longest} characters; at most {MAX_FORM} are taken. Shorten it.")


def find_form(text: str, form: str) -> tuple[int, int] | None:
    """(start, end) of the last place where `form` stands in `text` as whole words, in any case; None if nowhere."""
    found = list(re.finditer(rf"(?<!\w){re.escape(form.strip())}(?!\w)", text, re.IGNORECASE)) if form.strip() else []
    return found[-1].span() if found else None


def said_in(answer: str, forms: Sequence[str]) -> str:
    """The part of an expected answer that says a concept: the first of its surface forms found there, as the answer
    writes it. Raises RequestError where none is."""
    for form in forms:
        place = find_form(answer, form)
        if place is not None:
            return answer[slice(*place)]
    words = ", ".join(repr(form) for form in forms[:5]) + (" …" if len(forms) > 5 else "")
    raise RequestError(
        f"The expected answer {answer!r} contains none of the concept's surface forms ({words}). "
        "Add the form that it uses, or say which part expresses the concept."
    )
