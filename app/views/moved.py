"""What a steering changed beside the answer's probabilities: which tokens differ, and which concepts' scores moved."""

import difflib
import itertools
from collections.abc import Sequence
from typing import TypedDict

from app import exports, formats
from app.contexts import MovedRow
from app.tables import Run
from app.views.load import Loaded
from engine.contract import AnswerToken

SHOWN = 5
LEAST = 0.005
"""A similarity that moved by less is, in two decimals, where it was."""


class Moved(TypedDict):
    """Fields of SteeredView."""

    moved: tuple[MovedRow, ...]
    moved_waiting: bool
    moved_none: str


def differing(tokens: Sequence[AnswerToken], others: Sequence[AnswerToken]) -> list[bool]:
    """Which tokens have no equal in the other answer, when both are laid beside one another by their longest common
    runs of ids: a word put in marks itself alone, not all that follows. None while there is no other answer."""
    if not others:
        return [False] * len(tokens)
    marks = [True] * len(tokens)
    matcher = difflib.SequenceMatcher(None, [t.id for t in tokens], [t.id for t in others], autojunk=False)
    for block in matcher.get_matching_blocks():
        marks[block.a : block.a + block.size] = [False] * block.size
    return marks


def parts(text: str, tokens: Sequence[AnswerToken], others: Sequence[AnswerToken]) -> tuple[tuple[str, bool], ...]:
    """An answer's text as (text, differs). Whole where the tokens' texts do not make it up: a letter may be spread over
    several tokens."""
    if "".join(token.text for token in tokens).strip() != text.strip():
        return ((text, False),) if text else ()
    marked = zip(tokens, differing(tokens, others), strict=True)
    joined = [
        ("".join(token.text for token, _ in group), differs)
        for differs, group in itertools.groupby(marked, key=lambda pair: pair[1])
    ]
    kept = [(part.lstrip() if place == 0 else part, differs) for place, (part, differs) in enumerate(joined)]
    return tuple((part, differs) for part, differs in kept if part)


def concepts(loaded: Loaded, steered: Run) -> Moved:
    """The concepts, but for those that were turned, whose similarity to the answer's own fuzzy set changed most: from
    the two stored attributions of the whole answers."""
    before, after = (row.summary if row is not None else None for row in loaded.whole_of)
    if not before or not after:
        return Moved(moved=(), moved_waiting=_coming(loaded, steered), moved_none="")
    was, now = ({name: alike for name, _, alike in summary["concepts"]} for summary in (before, after))
    turned = {name for name, _ in (steered.steering or {}).get("concepts", ())}
    changes = {name: now[name] - was[name] for name in was.keys() & now.keys() - turned}
    ordered = sorted(changes, key=lambda name: (-abs(changes[name]), name))
    largest = [name for name in ordered if abs(changes[name]) >= LEAST][:SHOWN]
    scale = max((max(was[name], now[name]) for name in largest), default=1.0)
    rows = tuple(
        MovedRow(
            concept=name, href=f"/concepts/{exports.quoted(name)}",
            before=was[name] / scale, before_text=formats.membership(was[name]),
            after=now[name] / scale, after_text=formats.membership(now[name]),
            change=f"{changes[name]:+.2f}".replace("-", "−"), polarity=formats.polarity(changes[name]),
        )
        for name in largest
    )  # fmt: skip
    none = "No other concept’s similarity moved by 0.01." if changes else "No other concept is known."
    return Moved(moved=rows, moved_waiting=False, moved_none="" if rows else none)


def _coming(loaded: Loaded, steered: Run) -> bool:
    return steered.live or any(row is not None and row.live for row in loaded.whole_of)
