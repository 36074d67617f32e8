"""What `sweep` and `answers` promise: each point is what `steer` says, each answer what `ask` says."""

import dataclasses
from typing import cast

import pytest

from engine.contract import (
    PLAIN,
    Asked,
    Cancelled,
    ConceptTurn,
    Engine,
    NeuronTurn,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
)
from engine.sweeps import SWEEP_LIMIT, SteeringEngine, SweepPoint, varied

VALUES = (4.0, -2.0, 0.0, 1.5, -2.0)


@pytest.fixture(scope="session")
def steering_engine(engine: Engine) -> SteeringEngine:
    return cast(SteeringEngine, engine)


@pytest.fixture(scope="session")
def names(engine: Engine) -> list[str]:
    return [concept.name for concept in engine.library().concepts[:2]]


@pytest.fixture(scope="session")
def points(
    steering_engine: SteeringEngine, question: Question, ids: list[int], names: list[str]
) -> tuple[SweepPoint, ...]:
    return steering_engine.sweep(question, ids, PLAIN, ConceptTurn(names[0], 1.0), VALUES)


def same_as_steer(engine: Engine, question: Question, ids: list[int], steering: Steering, point: SweepPoint) -> None:
    steered = engine.steer(question, ids, steering)
    assert point.ids == tuple(token.id for token in steered.answer.tokens)
    assert point.text == steered.answer.text
    assert point.logprob == pytest.approx(sum(token.logprob for token in steered.answer.tokens), abs=1e-4)
    assert point.original == pytest.approx(sum(steered.original_under_steered), abs=1e-4)
    assert not point.live


def test_each_point_is_what_steer_says(
    engine: Engine, question: Question, ids: list[int], names: list[str], points: tuple[SweepPoint, ...]
) -> None:
    assert [point.value for point in points] == list(VALUES)
    for point in points:
        same_as_steer(engine, question, ids, Steering((ConceptTurn(names[0], point.value),)), point)
    assert points[1].ids == points[4].ids
    assert len({round(point.original, 3) for point in points}) >= 3


def test_the_point_at_nothing_is_the_original_answer(asked: Asked, points: tuple[SweepPoint, ...]) -> None:
    answer = asked.answer
    assert points[2].text == answer.text
    assert points[2].ids == tuple(token.id for token in answer.tokens)
    logprob = sum(token.logprob for token in answer.tokens)
    assert points[2].logprob == pytest.approx(logprob, abs=1e-4)
    assert points[2].original == pytest.approx(logprob, abs=1e-3)


def test_one_turn_is_varied_and_the_others_stay(
    engine: Engine, steering_engine: SteeringEngine, question: Question, ids: list[int], names: list[str]
) -> None:
    steering = Steering((ConceptTurn(names[0], 3.0), ConceptTurn(names[1], -1.0)), positions="image", layers=(0, 1))
    turn = ConceptTurn(names[1], 9.0)  # its own λ is not used
    found = steering_engine.sweep(question, ids, steering, turn, (2.0, -1.0))
    for point in found:
        same_as_steer(engine, question, ids, varied(steering, turn, point.value), point)
    same_as_steer(engine, question, ids, steering, found[1])


def test_a_single_neuron_can_be_swept(
    engine: Engine, steering_engine: SteeringEngine, question: Question, ids: list[int], names: list[str]
) -> None:
    top = engine.attribute(question, ids, Target(), top=1).neurons[0]
    turn = NeuronTurn(top.layer, top.index, "add", 0.0)
    steering = Steering((ConceptTurn(names[0], 0.5),))
    for point in steering_engine.sweep(question, ids, steering, turn, (-3.0, 3.0)):
        same_as_steer(engine, question, ids, varied(steering, turn, point.value), point)


def test_all_points_come_after_each_token(
    steering_engine: SteeringEngine, question: Question, ids: list[int], names: list[str]
) -> None:
    seen: list[tuple[SweepPoint, ...]] = []
    whole = steering_engine.sweep(question, ids, PLAIN, ConceptTurn(names[0], 0.0), VALUES, seen.append)
    assert seen[-1] == whole
    assert len(seen) >= max(len(point.ids) for point in whole)
    for step, points in enumerate(seen, 1):
        for point, final in zip(points, whole, strict=True):
            assert point.ids == final.ids[:step]
            assert final.text.startswith(point.text)
            assert point.original == final.original
            assert point.live or point.ids == final.ids
    assert any(point.live for point in seen[0])


@pytest.mark.parametrize("after", [0, 1])
def test_a_cancelled_sweep_stops_within_one_token(
    engine: Engine, steering_engine: SteeringEngine, question: Question, asked: Asked, names: list[str], after: int
) -> None:
    seen: list[object] = []
    turn = ConceptTurn(names[0], 0.0)
    with pytest.raises(Cancelled):
        steering_engine.sweep(question, [], PLAIN, turn, VALUES, seen.append, lambda: len(seen) >= after)
    assert len(seen) == after
    assert engine.ask(question).answer == asked.answer


def test_a_sweep_takes_some_values_and_not_too_many(
    steering_engine: SteeringEngine, question: Question, ids: list[int], names: list[str]
) -> None:
    turn = ConceptTurn(names[0], 0.0)
    for values in ((), (0.5,) * (SWEEP_LIMIT + 1)):
        with pytest.raises(RequestError, match=f"1 to {SWEEP_LIMIT} values; {len(values)} were given"):
            steering_engine.sweep(question, ids, PLAIN, turn, values)
    seen: list[object] = []
    for refused, error in (((0.0, 4.5), RequestError), ((float("nan"),), RequestError)):
        with pytest.raises(error):
            steering_engine.sweep(question, ids, PLAIN, turn, refused, seen.append)
    with pytest.raises(UnknownName):
        steering_engine.sweep(question, ids, PLAIN, ConceptTurn("no such concept", 0.0), (1.0,), seen.append)
    assert not seen


def test_a_sweep_without_an_original_answer_has_no_probability_of_it(
    steering_engine: SteeringEngine, question: Question, names: list[str]
) -> None:
    (point,) = steering_engine.sweep(question, [], PLAIN, ConceptTurn(names[0], 0.0), (1.0,))
    assert point.original == 0
    assert point.ids


def test_answers_are_those_of_ask_in_order(
    engine: Engine, steering_engine: SteeringEngine, question: Question, names: list[str]
) -> None:
    """Questions of several lengths, with and without a picture, plain and steered, with limits of their own."""
    other = dataclasses.replace(question, text="what is on the left?")
    asked = [
        (question, PLAIN),
        (Question(None, "where does the penguin live?", 4), Steering((ConceptTurn(names[0], 2.0),))),
        (other, Steering((ConceptTurn(names[0], 4.0),), positions="question")),
        (question, Steering((ConceptTurn(names[1], -2.0),), positions="answer")),
        (dataclasses.replace(question, max_new_tokens=1), PLAIN),
        (other, PLAIN),
        (question, PLAIN),
    ]
    told: list[tuple[int, int]] = []
    given = steering_engine.answers(asked, lambda done, of: told.append((done, of)))
    assert len(given) == len(asked)
    for (one, steering), answer in zip(asked, given, strict=True):
        alone = engine.ask(one, steering=steering).answer
        assert [token.id for token in answer.tokens] == [token.id for token in alone.tokens]
        assert (answer.text, answer.stopped, answer.prompt) == (alone.text, alone.stopped, alone.prompt)
        for ours, theirs in zip(answer.tokens, alone.tokens, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [a.id for a in ours.alternatives[:2]] == [a.id for a in theirs.alternatives[:2]]
    assert told[-1] == (len(asked), len(asked))
    assert told == sorted(told)
    assert steering_engine.answers([]) == ()


def test_answers_can_be_stopped_and_refuse_what_ask_refuses(
    engine: Engine, steering_engine: SteeringEngine, question: Question, asked: Asked
) -> None:
    with pytest.raises(Cancelled):
        steering_engine.answers([(question, PLAIN)], cancelled=lambda: True)
    with pytest.raises(UnknownName):
        steering_engine.answers([(question, PLAIN), (question, Steering((ConceptTurn("no such concept", 1.0),)))])
    assert engine.ask(question).answer == asked.answer
