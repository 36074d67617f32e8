"""The benchmark's steering contenders: sweeps, prefix reuse, answers in batches; see `engine.bench`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from engine.builtin import scenes
from engine.contract import ConceptTurn, NeuronTurn, Question, Steering
from engine.local import LocalEngine
from engine.running import answer_ids

VALUES = [k / 2 - 2 for k in range(13)]
MANY = 16
PAIRS = [
    ("sweep of 13 values", "sweep of 13 values, all run"),
    ("steer the answer, prefix reused", "steer the answer, all run"),
    ("sweep the answer, prefix reused", "sweep the answer, all run"),
    ("steer upper layers, lower reused", "steer upper layers, all run"),
    ("sweep upper layers, lower reused", "sweep upper layers, all run"),
    ("answers in batches", "answers one by one"),
]


def picture(number: int = 0) -> Any:
    rng = scenes.seeded("bench", number)
    return scenes.render(scenes.make_scene(rng, ["traffic light", "pizza"])).pixels


def contenders(engine: LocalEngine, question: Question, steering: Steering) -> dict[str, Callable[[], Any]]:
    """The calls to time, by name. Sweeps and *steer the answer* are of a prompt that was asked before (an engine of
    their own keeps it); *all run*: nothing of it is reused but the picture's features; where the upper half of the
    layers is steered, the prefix is, but no lower layer. The many answers have an engine of their own too, so that what
    the others keep stays."""
    warm, other = LocalEngine(engine.loaded), LocalEngine(engine.loaded)
    turn = steering.concepts[0] if steering.concepts else steering.neurons[0]
    late = dataclasses.replace(steering, positions="answer")
    n_layers = engine.loaded.anatomy.n_layers
    upper = dataclasses.replace(steering, layers=((n_layers + 1) // 2, n_layers - 1))
    if not steering.concepts:
        upper = Steering(neurons=(NeuronTurn((n_layers + 1) // 2, 0, "scale", 0.5),))
    high = upper.concepts[0] if upper.concepts else upper.neurons[0]
    ids = answer_ids(engine.generate_only(question))
    many = [(dataclasses.replace(question, picture=picture(k)), steering) for k in range(MANY)]

    def without(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        """The call where what `Reuse.<name>` found to hold does not."""

        def run() -> None:
            known = getattr(warm.reuse, name)
            setattr(warm.reuse, name, {True: False, False: False})
            try:
                call()
            finally:
                setattr(warm.reuse, name, known)

        return run

    def all_run(call: Callable[[], Any]) -> Callable[[], Any]:
        return without("proved", call)

    def sweep(swept: Steering, turned: ConceptTurn | NeuronTurn = turn) -> Callable[[], Any]:
        return lambda: warm.sweep(question, ids, swept, turned, VALUES)

    def steer_late() -> None:
        warm.steer(question, ids, late)

    def steer_upper() -> None:
        warm.steer(question, ids, upper)

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
        "steer upper layers, lower reused": steer_upper,
        "steer upper layers, all run": without("proved_below", steer_upper),
        "sweep upper layers, lower reused": sweep(upper, high),
        "sweep upper layers, all run": without("proved_below", without("proved_spread", sweep(upper, high))),
        "answers in batches": in_batches,
        "answers one by one": one_by_one,
    }
