"""What a comparison's URL can say: two states of runs' pages, each under its address, and what is shown of both.

An address is a run's id with the query of its state (`ID`, `ID?span=0-1&method=direct`), or the whole URL of a run's
page. Of a state only the target and the method count here: which heat map is shown is chosen once for both sides.
"""

import dataclasses
import re
from typing import Any
from urllib.parse import parse_qsl

from app import state
from app.state import PageState
from engine.contract import RequestError, UnknownName

ADDRESS = re.compile(r"(?:(?:https?://[^/?#\s]+)?/runs/)?([a-z0-9]{1,16})(?:\?([^#]*))?(?:#.*)?")
EXAMPLE = "k3v9x2mmqa?span=0-1&method=direct"
HEATS = "evidence, all, layer:L, concept:NAME, neuron:text.LAYER.INDEX or activation:text.LAYER.INDEX"
TOPS = (20, 50, 100)
"""How many of the strongest neurons of each side may be compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """A state of a run's page; `state` holds its target and method, and the defaults for all else."""

    run_id: str
    state: PageState

    @property
    def address(self) -> str:
        return state.address(self.run_id, self.state.pairs())


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """`heat` as in the URL of a run's page, '' = evidence; `top`: one of TOPS; `own`: each side has its own scale."""

    a: Side
    b: Side
    heat: str = ""
    top: int = TOPS[0]
    own: bool = False

    def but(self, **changes: Any) -> "Pair":
        return dataclasses.replace(self, **changes)

    @property
    def url(self) -> str:
        return url(self.a.address, self.b.address, self.heat, self.top, own=self.own)


def url(
    a: str = "", b: str = "", heat: str = "", top: int = TOPS[0], *, own: bool = False, path: str = "/compare"
) -> str:
    """A comparison's URL; one side or both may still be missing."""
    few = str(top) if top != TOPS[0] else ""
    written = (("a", a), ("b", b), ("heat", heat), ("top", few), ("scale", "own" if own else ""))
    return state.address(path, [(name, value) for name, value in written if value])


def read(text: str) -> tuple[Side, str]:
    """The side under an address, and the heat map that its page shows ('' for one that a comparison has not). Raises
    RequestError."""
    found = ADDRESS.fullmatch(text.strip())
    query = (found[2] or "") if found else ""
    if found is None or "%00" in query:
        raise RequestError(
            f"“{text.strip()[:80]}” is not the address of a run’s page. Paste the address from the page of a run, or "
            f"write its id, with its target and method if they matter, for example {EXAMPLE}"
        )
    asked = state.parse(parse_qsl(query, keep_blank_values=True))
    kept = PageState(
        span=asked.span, say=asked.say, against=asked.against, exact=asked.exact, quantity=asked.quantity,
        leave=asked.leave, method=asked.method,
    )  # fmt: skip
    return Side(found[1], kept), asked.heat if _compared(asked.heat) else ""


def heat(text: str) -> str:
    """The heat map that both sides show. Raises UnknownName."""
    wanted = state.parse([("heat", text)]).heat
    if not _compared(wanted):
        raise UnknownName(f"A comparison has no heat map “{text[:80]}”. Choose {HEATS}.")
    return wanted


def top(text: str) -> int:
    """Raises UnknownName."""
    if text in map(str, TOPS):
        return int(text)
    if text:
        raise UnknownName(f"“{text[:40]}” strongest neurons cannot be compared. Choose {', '.join(map(str, TOPS))}.")
    return TOPS[0]


def own(text: str) -> bool:
    """Raises UnknownName."""
    if text in ("", "one", "own"):
        return text == "own"
    raise UnknownName(f"There is no scale “{text[:40]}”. Choose one or own.")


def _compared(wanted: str) -> bool:
    return wanted in ("", "all") or wanted.partition(":")[0] in ("layer", "concept", "neuron", "activation")
