"""A run's page as a value: everything that a URL of it can say. `url()` writes what `parse()` reads.

`span` (start, end) of answer tokens, None = the whole answer. `say`: a text to explain instead, put after the answer's
first `span[0]` tokens; `against`: the text it is contrasted with; `exact`: both are meant as written, else in their
most probable way. `quantity` of the target, `leave`: kinds of positions left out of all sums. `method`: '' is the run's
own. `heat`: 'all', 'off', 'input', 'layer:L', 'concept:NAME', 'neuron:text.L.I', 'activation:text.L.I', or '' for the
neurons that carried the target, each by its degree (a URL may say 'evidence'). `steer` is the id of the steered run
that stands beside this one, `sweep` that of a sweep, `latents` that of a ranking of latents ('' = the newest), of which
`latent` is drawn ('influence:INDEX' or 'activation:INDEX', '' = the first). `add` are concepts, neurons and latents
that were added to the steering panel by hand. `rows`: neurons shown at most. `panel` names one view of the page; it is
read from a URL but never written into one.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from app import steerings
from app.targets import MAX_TEXT
from engine.contract import APART, METHODS, MODALITIES, QUANTITIES, BadTarget, RequestError, UnknownName

SORTS = ("score", "image", "layer")
DEFAULT_ROWS = 20
MAX_ADDED = 40
KNOWN = frozenset((
    "span", "say", "against", "exact", "quantity", "leave", "method", "heat", "layer", "modality", "concept", "sort",
    "steer", "sweep", "latents", "latent", "add", "rows",
))  # fmt: skip
HEATS = "evidence, all, off, input, layer:L, concept:NAME, neuron:text.LAYER.INDEX or activation:text.LAYER.INDEX"


@dataclasses.dataclass(frozen=True, slots=True)
class PageState:
    span: tuple[int, int] | None = None
    say: str = ""
    against: str = ""
    exact: bool = False
    quantity: str = "logprob"
    leave: tuple[str, ...] = ()
    method: str = ""
    heat: str = ""
    layer: int | None = None
    modality: str = ""
    concept: str = ""
    sort: str = "score"
    steer: str = ""
    sweep: str = ""
    latents: str = ""
    latent: str = ""
    add: tuple[str, ...] = ()
    rows: int = DEFAULT_ROWS
    panel: str = ""

    def but(self, **changes: Any) -> "PageState":
        return dataclasses.replace(self, **changes)

    def own(self, method: str) -> "PageState":
        """With the run's own method where none is named."""
        return self if self.method else self.but(method=method)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(name, value) of everything that differs from the default, in a fixed order."""
        written = [
            ("span", f"{self.span[0]}-{self.span[1]}" if self.span else ""),
            ("say", self.say),
            ("against", self.against),
            ("exact", "1" if self.exact and (self.say or self.against) else ""),
            ("quantity", self.quantity if self.quantity != "logprob" else ""),
            *(("leave", kind) for kind in self.leave),
            ("method", self.method if self.method != "gradient" else ""),
            ("heat", self.heat),
            ("layer", "" if self.layer is None else str(self.layer)),
            ("modality", self.modality),
            ("concept", self.concept),
            ("sort", self.sort if self.sort != "score" else ""),
            ("rows", str(self.rows) if self.rows != DEFAULT_ROWS else ""),
            ("steer", self.steer),
            ("sweep", self.sweep),
            ("latents", self.latents),
            ("latent", self.latent),
            *(("add", name) for name in self.add),
        ]
        return tuple((name, value) for name, value in written if value)

    def url(self, run_id: str, **changes: Any) -> str:
        return address(f"/runs/{run_id}", self.but(**changes).pairs())


def address(path: str, pairs: Iterable[tuple[str, str]] = ()) -> str:
    """A path with a query."""
    query = urlencode(list(pairs), quote_via=quote)
    return f"{path}?{query}" if query else path


def parse(query: Iterable[tuple[str, str]]) -> PageState:
    """The state in a query string. Empty values mean the default. Raises RequestError."""
    given = [(name, value) for name, value in query if value != ""]
    last: Mapping[str, str] = dict(given)
    left = [value for name, value in given if name == "leave"]
    added = tuple(dict.fromkeys(value.strip() for name, value in given if name == "add" and value.strip()))
    return PageState(
        span=_span(last.get("span", "")),
        say=_text("to explain", last.get("say", "")),
        against=_text("to contrast with", last.get("against", "")),
        exact=last.get("exact", "") == "1",
        quantity=_one_of("quantity", last.get("quantity", "logprob"), QUANTITIES),
        leave=tuple(kind for kind in APART if kind in [_one_of("kind of positions", k, APART) for k in left]),
        method=_one_of("method", last.get("method", ""), ("", *METHODS)),
        heat=_heat(last.get("heat", "")),
        layer=_whole("layer", last["layer"]) if "layer" in last else None,
        modality=_one_of("modality", last.get("modality", ""), ("", *MODALITIES)),
        concept=_name(last.get("concept", "")),
        sort=_one_of("order", last.get("sort", "score"), SORTS),
        steer=_name(last.get("steer", "")),
        sweep=_name(last.get("sweep", "")),
        latents=_name(last.get("latents", "")),
        latent=_latent(last.get("latent", "")),
        add=tuple(map(_name, added[:MAX_ADDED])),
        rows=_whole("number of rows", last["rows"]) if "rows" in last else DEFAULT_ROWS,
        panel=panel if re.fullmatch(r"\w{1,40}", panel := last.get("panel", "")) else "",
    )


def _span(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise BadTarget(f"“{text[:40]}” is not a span of tokens. Spans are written START-END, for example 0-2.")
    return int(found[1]), int(found[2])


def _heat(text: str) -> str:
    if text == "evidence":
        return ""
    kind, _, name = text.partition(":")
    if text in ("", "all", "off", "input") or (kind == "concept" and _name(name)):
        return text
    if kind == "layer":
        _whole("layer", name)
        return text
    if kind in ("neuron", "activation"):
        steerings.neuron(name)
        return text
    raise UnknownName(f"There is no heat map “{text[:80]}”. Choose {HEATS}.")


def _name(text: str) -> str:
    """Every link of a page repeats it."""
    if len(text) > steerings.NAMED:
        raise UnknownName(
            f"“{text[:40]}…” has {len(text)} characters; no name has more than {steerings.NAMED}. Shorten it."
        )
    return text


def _latent(text: str) -> str:
    if text and not re.fullmatch(r"(influence|activation):\d{1,7}", text):
        raise UnknownName(f"“{text[:40]}” is no map of a latent. Choose influence:INDEX or activation:INDEX.")
    return text


def _text(what: str, text: str) -> str:
    """Kept as it is: a leading space counts."""
    if text and not text.strip():
        raise BadTarget(f"The text {what} is empty. Type what the model could have said.")
    if len(text) > MAX_TEXT:
        raise BadTarget(f"The text {what} has {len(text)} characters; at most {MAX_TEXT} are taken. Shorten it.")
    return text


def _one_of(what: str, text: str, known: Iterable[str]) -> str:
    if text in known:
        return text
    raise UnknownName(f"There is no {what} “{text[:80]}”. Choose one of {', '.join(filter(None, known))}.")


def _whole(what: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise RequestError(f"The {what} is “{text[:40]}”; it must be a whole number.")
    return int(text)
