"""Steering by swapping: does another item's answer come with its latents (METHODS.md §4)?

1. *Pairs* (A, B) of items that are answered right, with different right answers: B asks the same question about another
   picture where there is such an item, else anything else.
2. A is answered by the model as it is; only pairs whose A is right then, word for word, go on. (A swap keeps what the
   SAE does not explain, whatever `keep_error` says.)
3. *Swap*: A's first K latents are set to 0 and B's first K to B's values, at every position where the SAE stands, while
   the model reads A and while it answers (`engine.turns.LatentTurn`, set). A latent of both has B's value. B's value of
   a latent is its *peak*, its largest activation at any position of B: a latent that marks a thing is active at few
   positions, and its mean over all of them is next to nothing.
4. The first K are those by `influence`, by `activation` (mean activation), or `random` ones among the active.
5. *Figures*: how often A's answer is not right any more (`left`), and how often it is B's right answer (`became`), with
   Wilson's intervals; and pair by pair how much more often it becomes B's by influence than by mean activation, with
   McNemar's exact test.

Torch-free.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.contract import PLAIN, Answer, IsCancelled, LatentTurn, OnProgress, Question, Steering, never, saes
from engine.evaluation.metrics import plain
from engine.sae.swapping import exchanged

METHODS = ("influence", "activation", "random")
SIZES = (1, 5, 10, 20, 50)
DEEPEST = max(SIZES)


class Steerable(saes.SaeEngine, Protocol):
    """An engine that answers under a steering, too."""

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        """See `engine.sweeps.SteeringEngine`."""
        ...


@dataclasses.dataclass(frozen=True)
class Pair:
    """Numbers of two items; `alike`: they ask the same question."""

    mine: int
    other: int
    alike: bool


def pairs(parts: Sequence[Mapping[str, Any]], most: int) -> list[Pair]:
    """At most `most` pairs among items' plain data (see `engine.sae.masking`): each item that is right is once the
    first of a pair, if any other has another answer; those with the same question come first."""
    right = [number for number, part in enumerate(parts) if part["right"]]
    found = []
    for at, mine in enumerate(right):
        others = [
            other
            for other in (*right[at + 1 :], *right[:at])
            if parts[other]["about"] != parts[mine]["about"]
            and not {plain(said) for said in parts[other]["answers"]} & {plain(said) for said in parts[mine]["answers"]}
        ]
        alike = [other for other in others if parts[other]["question"] == parts[mine]["question"]]
        if others:
            found.append(Pair(mine, (alike or others)[0], bool(alike)))
    return sorted(found, key=lambda pair: not pair.alike)[:most]


def turns(sae: str, mine: Mapping[str, Any], other: Mapping[str, Any], method: str, k: int) -> tuple[LatentTurn, ...]:
    """The swap of point 3, from two items' plain data; by index."""
    gone = [int(index) for index, _ in mine["first"][method][:k]]
    brought = [(int(index), float(value)) for index, value in other["first"][method][:k]]
    return exchanged(sae, gone, brought)


def swap(
    engine: Steerable,
    question: Question,
    sae: str,
    mine: Mapping[str, Any],
    other: Mapping[str, Any],
    cancelled: IsCancelled = never,
) -> list[list[Any]] | None:
    """[left, became, latents set] for each of METHODS × SIZES, in this order; None where the model alone does not
    answer A right."""
    own, theirs = ({plain(said) for said in part["answers"]} for part in (mine, other))
    chosen = [turns(sae, mine, other, method, k) for method in METHODS for k in SIZES]
    asked = [(question, PLAIN), *((question, Steering(latents=some)) for some in chosen)]
    before, *after = (plain(answer.text) for answer in engine.answers(asked, None, cancelled))
    if before not in own:
        return None
    return [[said not in own, said in theirs, len(some)] for said, some in zip(after, chosen, strict=True)]
