"""The benchmark's steering contenders: sweeps, prefix reuse, answers in batches; see `engine.bench`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from engine.builtin import scenes
from engine.contract import Question, Steering
from engine.local import LocalEngine
from engine.running import answer_ids

VALUES = [k / 2 - 2 for k in range(13)]
MANY = 16
PAIRS = [
    ("sweep of 13 values", "sweep of 13 values, all run"),
    ("steer the answer, prefix reused", "steer the answer, all run"),
    ("sweep the answer, prefix reused", "sweep the answer, all run"),
    ("answers in batches", "answers one by one"),
]


def picture(number: int = 0) -> Any:
    rng = scenes.seeded("bench", number)
    return scenes.render(scenes.make_scene(rng, ["traffic light", "pizza"])).pixels


def contenders(engine: LocalEngine, question: Question, steering: Steering) -> dict[str, Callable[[], Any]]:
    """The calls to time, by name. Sweeps and *steer the answer* are of a prompt that was asked before (an engine of
    their own keeps it); *all run*: nothing of it is reused but the picture's features. The many answers have an engine
    of their own too, so that what the others keep stays."""
    warm, other = LocalEngine(engine.loaded), LocalEngine(engine.loaded)
    turn = steering.concepts[0] if steering.concepts else steering.neurons[0]
    late = dataclasses.replace(steering, positions="answer")
    ids = answer_ids(engine.generate_only(question))
    many = [(dataclasses.replace(question, picture=picture(k)), steering) for k in range(MANY)]

    def all_run(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            known, warm.reuse.proved = warm.reuse.proved, {True: False, False: False}
            try:
                call()
            finally:
                warm.reuse.proved = known

        return run

    def sweep(swept: Steering) -> Callable[[], Any]:
        return lambda: warm.sweep(question, ids, swept, turn, VALUES)

    def steer_late() -> None:
        warm.steer(question, ids, late)

    def in_batches() -> None:
        other.forget()
        other.answers(many)

    def one_by_one() -> None:
        other.forget()
        for asked in many:
            other.generate_only(*asked)

    return {
        "sweep of 13 values": sweep(steering),
        "sweep of 13 values, all run": all_run(sweep(steering)),
        "steer the answer, prefix reused": steer_late,
        "steer the answer, all run": all_run(steer_late),
        "sweep the answer, prefix reused": sweep(late),
        "sweep the answer, all run": all_run(sweep(late)),
        "answers in batches": in_batches,
        "answers one by one": one_by_one,
    }
