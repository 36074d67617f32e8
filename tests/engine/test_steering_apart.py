"""Steered and clean runs never mix, and nothing is left on the model or in memory."""

import gc
import random
from collections.abc import Callable

import pytest

from engine.bench import resident_mib
from engine.contract import PLAIN, Cancelled, NeuronTurn, Question, Steering
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from tests.engine import tiny

STEERINGS = [
    PLAIN,
    Steering(neurons=(NeuronTurn(0, 3, "add", 4.0),)),
    Steering(neurons=(NeuronTurn(1, 7, "set", -5.0), NeuronTurn(2, 7, "scale", 3.0)), positions="image"),
    Steering(neurons=(NeuronTurn(2, 9, "add", 8.0),), positions="answer"),
    Steering(neurons=(NeuronTurn(1, 2, "add", -6.0),), positions="question"),
]
TURN = NeuronTurn(2, 11, "add", 0.0)


def test_two_clients_interleaved_are_as_in_sequence(cropping: Loaded) -> None:
    """One steers, the other asks plainly, 50 runs each, sweeps, cancelled and failed runs between them."""
    engine = LocalEngine(cropping)
    questions = [Question(tiny.picture(k), text, 2) for k in (1, 2) for text in ("what is this?", "why is it?")]
    alone = {
        (k, n): engine.steer(question, [700, 701], steering)
        for k, question in enumerate(questions)
        for n, steering in enumerate(STEERINGS)
    }
    engine.forget()
    rng = random.Random(5)
    runs = [("steered", rng.randrange(len(questions)), 1 + k % (len(STEERINGS) - 1)) for k in range(50)]
    runs += [("clean", rng.randrange(len(questions)), 0) for _ in range(50)]
    rng.shuffle(runs)
    for number, (_, k, n) in enumerate(runs):
        assert engine.steer(questions[k], [700, 701], STEERINGS[n]) == alone[k, n]
        if number % 10 == 0:
            engine.sweep(questions[k], [700], STEERINGS[n], TURN, (-9.0, 9.0))
            with pytest.raises(Cancelled):
                engine.sweep(questions[k], [700], PLAIN, TURN, (9.0,), None, _after(2))
        assert count_hooks(engine.loaded.model) == 0


def _after(calls: int) -> Callable[[], bool]:
    left = [calls]

    def cancelled() -> bool:
        left[0] -= 1
        return left[0] < 0

    return cancelled


def fail(*_: object) -> None:
    raise KeyboardInterrupt


def test_nothing_is_left_after_an_error_or_a_stop(engine: LocalEngine) -> None:
    question = Question(tiny.picture(1), "what is this?", 4)
    before = engine.steer(question, [700], STEERINGS[1])
    asked = [(question, steering) for steering in STEERINGS]
    calls: list[tuple[Callable[[], object], type[BaseException]]] = [
        (lambda: engine.steer(question, [700], STEERINGS[2], fail), KeyboardInterrupt),
        (lambda: engine.steer(question, [700], STEERINGS[2], None, _after(2)), Cancelled),
        (lambda: engine.sweep(question, [700], PLAIN, TURN, (1.0, 2.0), fail), KeyboardInterrupt),
        (lambda: engine.sweep(question, [700], PLAIN, TURN, (1.0, 2.0), None, _after(3)), Cancelled),
        (lambda: engine.answers(asked, fail), KeyboardInterrupt),
        (lambda: engine.answers(asked, None, _after(len(asked) + 2)), Cancelled),
    ]
    for call, error in calls:
        with pytest.raises(error):
            call()
        assert tiny.all_hooks(engine.loaded.model) == 0
        assert engine.steer(question, [700], STEERINGS[1]) == before


def test_steering_many_times_keeps_memory_flat(cropping: Loaded) -> None:
    """500 different steerings: the process holds as much after the last as after the 100th, to 4 MiB, and no
    objects pile up (a handful come and go with other threads; one kept a steering would be 400)."""
    engine = LocalEngine(cropping)
    question = Question(tiny.picture(1), "what is this?", 1)

    def run(count: int, start: int) -> tuple[float, int]:
        for k in range(start, start + count):
            engine.steer(question, [], Steering(neurons=(NeuronTurn(k % 3, k % 48, "add", k / 100),)))
            assert count_hooks(engine.loaded.model) == 0
        gc.collect()
        return resident_mib(), len(gc.get_objects())

    warm, last = run(100, 0), run(400, 100)
    assert last[0] - warm[0] < 4
    assert last[1] - warm[1] < 200
