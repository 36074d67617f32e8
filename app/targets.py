"""The target that a page names: the engine's `Target`, and whether its texts are meant exactly as written.

A text that is typed may be written as tokens in several ways (with a leading space, in small letters, …): unless it is
meant exactly, the most probable one is explained, which the worker finds out.
"""

import dataclasses
import hashlib
import json
from typing import Any

from engine.contract import BadTarget, Target

MAX_TEXT = 200
"""Characters of a text that a target may name."""


@dataclasses.dataclass(frozen=True, slots=True)
class TargetChoice:
    """`target.start` and `target.end` are resolved. A text has no end of its own: `end` then equals `start`."""

    target: Target
    exact: bool = False

    @property
    def span(self) -> tuple[int, int]:
        assert self.target.end is not None, "a chosen target is resolved"
        return self.target.start, self.target.end

    @property
    def key(self) -> str:
        """One spelling for one target: "0-2" for tokens of the answer, with a hash of everything else that counts."""
        start, end = self.span
        rest = self._rest()
        if not rest:
            return f"{start}-{end}"
        spelled = json.dumps(rest, sort_keys=True, ensure_ascii=False)
        return f"{start}-{end}:{hashlib.sha256(spelled.encode()).hexdigest()[:32]}"

    def _rest(self) -> dict[str, Any]:
        target = self.target
        named = {
            "text": target.text,
            "against": target.against,
            "exact": self.exact if target.text or target.against else False,
            "quantity": target.quantity if target.quantity != "logprob" else "",
            "leave_out": list(target.leave_out),
        }
        return {name: value for name, value in named.items() if value}

    def to_json(self) -> dict[str, Any] | None:
        """What `start` and `end` do not say; None where that is nothing."""
        return self._rest() or None


def outside(start: int, end: int, count: int) -> BadTarget:
    """The error that a span does not lie inside an answer of `count` tokens."""
    tokens = "1 token" if count == 1 else f"{count} tokens"
    return BadTarget(f"Tokens {start} to {end} are not a span of this answer, which has {tokens}.")


def from_json(start: int, end: int, rest: dict[str, Any] | None) -> TargetChoice:
    rest = rest or {}
    target = Target(
        start, end, rest.get("text"), rest.get("against"), rest.get("quantity", "logprob"),
        tuple(rest.get("leave_out", ())),
    )  # fmt: skip
    return TargetChoice(target, bool(rest.get("exact")))
