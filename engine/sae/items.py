"""Items of an experiment from sets of questions (`engine.evaluation.files`). Torch-free."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.sae.results import Item

if TYPE_CHECKING:
    from engine import evaluation


@dataclasses.dataclass(frozen=True)
class Opened(Sequence[Item]):
    """Questions of a set as items. A picture is opened when its item is asked for, and kept by nobody."""

    questions: "tuple[evaluation.Item, ...]"
    max_new_tokens: int

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, number: Any) -> Any:
        from engine.contract import Question  # it gives this module on

        if isinstance(number, slice):
            return Opened(self.questions[number], self.max_new_tokens)
        one = self.questions[number]
        pixels = one.picture()
        seen = one.question.rpartition("\n")[0].encode() if pixels is None else pixels.tobytes()
        about = int.from_bytes(hashlib.sha256(seen or one.question.encode()).digest()[:6], "big")
        return Item(Question(pixels, one.question, self.max_new_tokens), one.answers, about)


def items_of(questions: "Sequence[evaluation.Item]", limit: int, seed: int, max_new_tokens: int = 24) -> Opened:
    """At most `limit` of a set's questions, in the order of a hash with the seed. An item's `about` numbers its picture
    by its pixels; without one, the text before the question (SQuAD's paragraph), else the question."""

    def drawn(one: "evaluation.Item") -> bytes:
        return hashlib.sha256(f"{seed}\0{one.id}".encode()).digest()

    return Opened(tuple(sorted(questions, key=drawn)[:limit]), max_new_tokens)
