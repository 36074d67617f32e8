"""The text strip: every token of prompt and answer, shaded by its score over all layers.

1. A chip for each position, in order; picture positions in a row are folded into one chip that counts them. A score is
   that of the token's own position, whose stream predicts the token behind it.
2. The answer's tokens are those of the explained sequence: for a text that the model did not say, that text's. A
   contrast has two sequences; where they differ, a chip shows both.
3. Tokens are put to positions only where they agree in number; else positions are shown by their numbers alone.
"""

import dataclasses
import itertools
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app import formats
from app.contexts import StripView, TokenChip
from app.views import heat_choice
from app.views.load import Loaded

Token = tuple[str | None, int]
"""(text, None where only the id is known; id)."""
Scores = npt.NDArray[np.float64]

PART = "▯"
"""Stands for a token that is a part of a character: a later token completes it, and shows it."""
WHITE = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"})
INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")
NUMBERED = "The tokens kept of this run and the scored positions differ in number, so positions are shown by number."
TOGETHER = "Ablation takes a modality’s positions away together: their score stands at the last of them."


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """`count` positions from `start` on, with their summed `score`. `tokens`: one, the two of a contrast that stand at
    the same place, or none where only the position is known."""

    start: int
    tokens: tuple[Token, ...]
    kind: str
    count: int = 1
    target: bool = False
    score: float | None = None


def view(loaded: Loaded) -> StripView:
    opened = loaded.picture is None
    if loaded.run.answer is None:
        words = "The text follows the answer." if loaded.waiting else "This run ended before its answer."
        return StripView(loaded.waiting, opened, (), words, "")
    prompt = _prompt(loaded)
    answer = _answer(loaded, sum(place.count for place in prompt))
    groups, scores = [("prompt", prompt), ("answer", answer)], _scores(loaded)
    if scores is not None:
        if not _agree(loaded, prompt, answer, len(scores)):
            groups = [("positions", [Place(number, (), "position") for number in range(len(scores))])]
        groups = [(name, [_scored(place, scores) for place in places]) for name, places in groups]
    largest = max((abs(p.score or 0.0) for _, places in groups for p in places if p.count == 1), default=0.0)
    return StripView(
        waiting=loaded.waiting,
        open=opened,
        groups=tuple((name, _chips(places, largest)) for name, places in groups),
        caption=_caption(loaded, [place for _, places in groups for place in places]),
        scale=formats.plain(largest) if largest else "",
    )


def _prompt(loaded: Loaded) -> list[Place]:
    places, at = [], 0
    for text, token_id, kind, count in (loaded.run.answer or {})["prompt"]:
        places.append(Place(at, ((text, token_id),), kind, count))
        at += count
    return places


def _answer(loaded: Loaded, begin: int) -> list[Place]:
    sides = _sides(loaded)
    start, end = loaded.span or (0, 0)
    if loaded.choice is not None and loaded.choice.target.text is not None:
        end = len(sides[0])
    return [
        Place(begin + k, tuple(dict.fromkeys(t for t in found if t is not None)), "answer", target=start <= k < end)
        for k, found in enumerate(itertools.zip_longest(*sides))
    ]


def _sides(loaded: Loaded) -> list[list[Token]]:
    """The explained sequence of answer tokens, and that of a contrast's other side."""
    own: list[Token] = [(token.text, token.id) for token in loaded.tokens]
    if loaded.choice is None:
        return [own]
    target, before = loaded.choice.target, own[: loaded.choice.span[0]]
    sides = [own if target.text is None else before + _written(loaded, "text", "explained")]
    return sides if target.against is None else [*sides, before + _written(loaded, "against", "explained_against")]


def _written(loaded: Loaded, field: str, ids_of: str) -> list[Token]:
    """The tokens of a text that a target names, once they are known."""
    ids = list(loaded.summary.get(ids_of, ()))
    for _, way, pieces, _ in loaded.summary.get("ways", {}).get(field, ()):
        if list(way) == ids and len(pieces) == len(ids):
            return list(zip(pieces, ids, strict=True))
    return [(None, token_id) for token_id in ids]


def _scores(loaded: Loaded) -> Scores | None:
    """Scores (pos,) over all layers and neurons; None where there are none, or where they cancel."""
    if "positions" not in loaded.arrays or heat_choice.cancels(loaded.summary):
        return None
    return np.asarray(loaded.arrays["positions"].sum(axis=0, dtype=np.float64))


def _agree(loaded: Loaded, prompt: Sequence[Place], answer: Sequence[Place], length: int) -> bool:
    """There is a token for each scored position, and the explained tokens are those that the engine summed."""
    explained = list(loaded.summary.get("explained", ()))
    ids = [place.tokens[0][1] for place in answer if place.target]
    return sum(place.count for place in prompt) + len(answer) == length and explained in ([], ids)


def _scored(place: Place, scores: Scores) -> Place:
    return dataclasses.replace(place, score=float(scores[place.start : place.start + place.count].sum()))


def _chips(places: Sequence[Place], largest: float) -> tuple[TokenChip, ...]:
    return tuple(
        TokenChip(
            text=_text(place),
            kind=place.kind,
            about=_about(place, _completed(places, k)),
            opacity=round(min(1.0, abs(place.score or 0.0) / largest), 4) if largest else 0.0,
            polarity=formats.polarity(place.score or 0.0),
            target=place.target,
            count=place.count,
        )
        for k, place in enumerate(places)
    )


def _text(place: Place) -> str:
    if place.kind == "image":
        return f"picture × {place.count}" if place.count > 1 else "picture"
    return " | ".join(shown(*token) for token in place.tokens) or str(place.start)


def visible(text: str) -> str:
    """A token's text with its white space to be seen; a mark for a part of a character, which has none of its own."""
    return text.translate(WHITE) or PART


def shown(text: str | None, token_id: int) -> str:
    """As `visible`; what has no shape of its own by its code points."""
    if text is None:
        return f"id {token_id}"
    seen = visible(text)
    if all(
        unicodedata.category(letter) in INVISIBLE or "VARIATION SELECTOR" in unicodedata.name(letter, "")
        for letter in seen
    ):
        return " ".join(f"U+{ord(letter):04X}" for letter in seen)
    return f"◌{seen}" if unicodedata.category(seen[0]).startswith("M") else seen


def _completed(places: Sequence[Place], k: int) -> str:
    """The character that the token at `k` is a part of, '' where it has a text of its own."""
    if places[k].kind == "image" or [text for text, _ in places[k].tokens] != [""]:
        return ""
    return next((place.tokens[0][0] or "" for place in places[k:] if place.tokens and place.tokens[0][0]), "")


def _about(place: Place, completed: str) -> str:
    last = place.start + place.count - 1
    where = f"position {place.start}" if place.count == 1 else f"positions {place.start} to {last}"
    ids = " | ".join(f"id {token_id}" for _, token_id in place.tokens)
    part = f"part of “{completed}”" if completed else ""
    score = formats.signed(place.score) if place.score is not None else ""
    return " · ".join(filter(None, [part, ids, where, place.kind if place.tokens else "", score]))


def _caption(loaded: Loaded, places: Sequence[Place]) -> str:
    if loaded.attribution is not None and loaded.attribution.state == "failed":
        return loaded.attribution.error
    if places and places[0].score is None:
        if heat_choice.cancels(loaded.summary):
            return heat_choice.CANCELLED
        return "The scores follow." if loaded.waiting else "There are no scores for this answer."
    single = [place for place in places if place.count == 1]
    pictures = [place for place in places if place.kind == "image"]
    unit = heat_choice.unit_of(loaded, loaded.state.method)
    strongest = max(single, key=lambda place: abs(place.score or 0.0), default=None)
    words = [f"Each token’s contribution to “{loaded.target_text}”, all layers together."]
    if strongest is not None:
        words.append(f"Strongest: {_text(strongest)} ({formats.signed(strongest.score or 0.0)}{unit}).")
    if pictures:
        count, total = sum(p.count for p in pictures), sum(p.score or 0.0 for p in pictures)
        words.append(f"The picture’s {count} positions together {formats.signed(total)}.")
    if places and not places[0].tokens:
        words.append(NUMBERED)
    if loaded.state.method == "ablation":
        words.append(TOGETHER)
    return " ".join(words) + heat_choice.left_out(loaded)
