"""The sides of a target: which tokens of a teacher-forced answer are explained (METHODS.md §0). Torch-free.

1. A target has one side, or two for a contrast. A side is a sequence of answer ids of which start:end are explained:
   the answer's own tokens, or a given text's put after the answer's first `start` tokens.
2. A contrast's S is the difference of its sides', and so is every score.
3. A text is turned into ids as it would continue an answer: exactly as written, with a leading space or without.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from engine.contract import APART, QUANTITIES, BadTarget, Target


@dataclasses.dataclass(frozen=True)
class Part:
    """One side of a target: `target.start`:`target.end` of the answer `ids` are explained, and count `sign` times."""

    sign: int
    ids: tuple[int, ...]
    target: Target

    @property
    def explained(self) -> tuple[int, ...]:
        return self.ids[self.target.start : self.target.end]


def resolve(target: Target, length: int) -> tuple[int, int]:
    """(start, end) of a target over an answer of `length` tokens. Raises BadTarget when it is empty or outside."""
    end = length if target.end is None else target.end
    if length == 0:
        raise BadTarget("The answer is empty, so there is nothing to attribute. Ask another question.")
    if not 0 <= target.start < end <= length:
        raise BadTarget(
            f"The target {target.start}–{end} does not lie inside the answer's {length} tokens. "
            f"Choose a start from 0 to {length - 1} and an end from start + 1 to {length}."
        )
    return target.start, end


def check(target: Target) -> None:
    """Raise BadTarget for a quantity or a kind of position that does not exist."""
    if target.quantity not in QUANTITIES:
        raise BadTarget(f"A target sums {' or '.join(QUANTITIES)}, not {target.quantity!r}.")
    for kind in target.leave_out:
        if kind not in APART:
            raise BadTarget(f"Positions that can be left out are {' and '.join(APART)}, not {kind!r}.")


def parts_of(target: Target, answer: Sequence[int], encode: Callable[[str], list[int]]) -> tuple[Part, ...]:
    """The sides of a target over an answer, first the explained one. `encode` = text to ids. Raises BadTarget."""
    check(target)
    if target.text is None:
        start, end = resolve(target, len(answer))
        first = Part(1, tuple(answer), Target(start, end, quantity=target.quantity))
    elif not 0 <= target.start <= len(answer):
        raise BadTarget(
            f"The text cannot be put after {target.start} tokens of an answer that has {len(answer)}. "
            f"Choose a start from 0 to {len(answer)}."
        )
    else:
        first = _side(1, target.text, target, answer, encode)
    if target.against is None:
        return (first,)
    return first, _side(-1, target.against, target, answer, encode)


def _side(sign: int, text: str, target: Target, answer: Sequence[int], encode: Callable[[str], list[int]]) -> Part:
    ids = encode(text)
    before = tuple(answer[: target.start])
    place = Target(target.start, target.start + len(ids), quantity=target.quantity)
    return Part(sign, (*before, *ids), place)


def continuation_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` as the continuation of an answer, exactly as written: some tokenizers put a space before the
    first word of what they are given, so it is tokenised behind a mark. Raises BadTarget for a text of no tokens, or
    with a special one (a picture's placeholder among them)."""
    behind = tokenizer(f":{text}", add_special_tokens=False)["input_ids"]
    mark = tokenizer(":", add_special_tokens=False)["input_ids"]
    joined = behind[: len(mark)] != mark
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if joined else behind[len(mark) :]
    if not text.strip() or not ids:
        raise BadTarget("The text to explain is empty. Write what the model might have said.")
    reserved = {*tokenizer.all_special_ids, *tokenizer.added_tokens_encoder.values()}
    for index in ids:
        if index in reserved:
            raise BadTarget(f"The text holds {tokenizer.decode([index])}, which the model reserves. Leave it out.")
    return [int(index) for index in ids]


def ways_to_write(text: str) -> list[str]:
    """`text` as given, then with and without a leading space: as written, in small letters, capitalised. Each once."""
    bare = text.strip()
    cases = (bare, bare.lower(), bare[:1].upper() + bare[1:])
    return list(dict.fromkeys([text, *(f" {case}" for case in cases), *cases]))
