"""What both engines promise of a steering by latents, in every call that takes one, and of swapping."""

import dataclasses
from typing import cast

import numpy as np
import pytest

from engine.contract import (
    Answer,
    Asked,
    Cancelled,
    ConceptTurn,
    Engine,
    LatentTurn,
    NeuronTurn,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
    saes,
)
from engine.sae.swapping import swapped
from engine.sweeps import SteeringEngine, varied
from engine.turns import LATENT_VALUE_LIMIT


@pytest.fixture(scope="session")
def sae(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> saes.SaeInfo:
    """What ships with the model; or, where nothing does yet, one that was hardly trained."""
    shipped = engine.saes()
    if shipped:
        return shipped[0]
    recipe = saes.Recipe(1, n_latents=64, k=8, steps=4, batch=64, kept=256, pictures=2)
    return engine.train_sae(recipe, str(tmp_path_factory.mktemp("sae")))


@pytest.fixture(scope="session")
def found(engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo) -> saes.Influence:
    return engine.latent_influence(question, ids, sae.name)


@pytest.fixture(scope="session")
def best(found: saes.Influence) -> saes.LatentScore:
    return found.latents[0]


def same(one: Answer, other: Answer) -> bool:
    """One answer, to rounding: a steered prompt may be run in two pieces."""
    pairs = list(zip(one.tokens, other.tokens, strict=True))
    return (one.text, one.stopped) == (other.text, other.stopped) and all(
        a.id == b.id and abs(a.logprob - b.logprob) < 1e-4 for a, b in pairs
    )


def strong(sae: saes.SaeInfo, best: saes.LatentScore, sign: int = 1) -> LatentTurn:
    return LatentTurn(sae.name, best.index, "set", sign * 20 * best.peak)


@pytest.mark.parametrize("value", [1.0, None])
def test_a_latent_that_is_left_alone_changes_nothing(
    engine: Engine, question: Question, asked: Asked, ids: list[int], sae: saes.SaeInfo,
    found: saes.Influence, value: float | None,
) -> None:  # fmt: skip
    """Scaled by 1; or not active, and scaled by whatever."""
    never = int(np.flatnonzero(~found.active)[0]) if not found.active.all() else None
    index = found.latents[0].index if value is not None else never
    if index is None:
        pytest.skip("every latent is active in this question")
    steering = Steering(latents=(LatentTurn(sae.name, index, "scale", 7.0 if value is None else value),))
    steered = engine.steer(question, ids, steering)
    assert same(steered.answer, asked.answer)
    assert list(steered.steered_under_original) == pytest.approx(list(steered.original_under_steered), abs=1e-3)
    assert same(engine.ask(question, steering=steering).answer, asked.answer)


def test_a_strong_turn_gives_another_answer_and_leaves_nothing_behind(
    engine: Engine, question: Question, asked: Asked, ids: list[int], sae: saes.SaeInfo, best: saes.LatentScore
) -> None:
    steering = Steering(latents=(strong(sae, best),))
    steered = engine.steer(question, ids, steering)
    assert steered.answer.text != asked.answer.text
    assert sum(steered.original_under_steered) < sum(token.logprob for token in asked.answer.tokens) - 1
    assert steered.n_neurons == 0
    assert same(engine.ask(question, steering=steering).answer, steered.answer)
    assert engine.ask(question).answer == asked.answer
    by_id = Steering(latents=(dataclasses.replace(strong(sae, best), sae=sae.id),))
    assert engine.steer(question, ids, by_id) == steered


@pytest.mark.parametrize("operation", ["scale", "add", "set"])
def test_each_operation_reaches_every_call(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, best: saes.LatentScore, operation: str
) -> None:
    steering = Steering(latents=(LatentTurn(sae.name, best.index, operation, 5 * max(best.peak, 1.0)),))
    value = sum(engine.steer(question, ids, steering).original_under_steered)
    plain = engine.attribute(question, ids, Target()).value
    assert abs(value - plain) > 1e-3
    assert engine.attribute(question, ids, Target(), steering=steering).value == pytest.approx(value, abs=1e-3)
    assert engine.input_heat(question, ids, Target(), steering).value == pytest.approx(value, abs=1e-3)
    influence = engine.latent_influence(question, ids, sae.name, steering=steering, top=3)
    assert influence.value == pytest.approx(value, abs=1e-3)


def test_turns_of_one_latent_act_one_after_the_other(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, best: saes.LatentScore
) -> None:
    def under(*turns: tuple[str, float]) -> float:
        latents = tuple(LatentTurn(sae.name, best.index, *turn) for turn in turns)
        return sum(engine.steer(question, ids, Steering(latents=latents)).original_under_steered)

    peak = best.peak
    assert under(("set", peak), ("scale", 3.0)) == pytest.approx(under(("set", 3 * peak)), abs=1e-4)
    assert under(("scale", 3.0), ("set", peak)) == pytest.approx(under(("set", peak)), abs=1e-4)
    assert under(("set", peak), ("add", peak)) == pytest.approx(under(("set", 2 * peak)), abs=1e-4)


def test_a_sweep_of_a_latent_is_what_steer_says_beside_other_turns(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, best: saes.LatentScore
) -> None:
    sweeping = cast(SteeringEngine, engine)
    turn = LatentTurn(sae.name, best.index, "scale", 0.0)
    name = engine.library().concepts[0].name
    steering = Steering((ConceptTurn(name, 0.5),), (NeuronTurn(0, 1, "set", 0.5),), latents=(turn,), positions="answer")
    points = sweeping.sweep(question, ids, steering, turn, (-8.0, 1.0, 8.0))
    for point in points:
        one = varied(steering, turn, point.value)
        assert one.latents == (dataclasses.replace(turn, value=point.value),)
        steered = engine.steer(question, ids, one)
        assert point.ids == tuple(token.id for token in steered.answer.tokens)
        assert point.original == pytest.approx(sum(steered.original_under_steered), abs=1e-4)
    other = LatentTurn(sae.name, best.index + 1 if best.index == 0 else best.index - 1, "set", 1.0)
    assert varied(steering, other, 3.0).latents == (turn, dataclasses.replace(other, value=3.0))


def test_answers_take_turns_of_their_own(
    engine: Engine, question: Question, asked: Asked, sae: saes.SaeInfo, best: saes.LatentScore
) -> None:
    steerings = [Steering(latents=(strong(sae, best, sign),)) for sign in (1, -1)]
    many = cast(SteeringEngine, engine).answers([(question, one) for one in (steerings[0], Steering(), steerings[1])])
    assert many[1].text == asked.answer.text
    for answer, steering in zip((many[0], many[2]), steerings, strict=True):
        alone = engine.ask(question, steering=steering).answer
        assert [token.id for token in answer.tokens] == [token.id for token in alone.tokens]


def test_the_control_is_drawn_and_the_same_again(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, best: saes.LatentScore
) -> None:
    latents = (LatentTurn(sae.name, best.index, "add", 3 * best.peak),)
    true, one, again, two = (
        engine.steer(question, ids, Steering(latents=latents, control=seed)) for seed in (None, 1, 1, 2)
    )
    assert one == again
    assert one.original_under_steered != true.original_under_steered
    assert one.original_under_steered != two.original_under_steered


def test_what_cannot_be_turned_is_refused_before_any_work(
    engine: Engine, question: Question, sae: saes.SaeInfo
) -> None:
    refused: list[tuple[LatentTurn, type[RequestError]]] = [
        (LatentTurn(f"{sae.name}s", 0, "set", 0.0), UnknownName),
        (LatentTurn("<img src=x onerror=alert(1)>", 0, "set", 0.0), UnknownName),
        (LatentTurn(sae.name, sae.n_latents, "set", 0.0), UnknownName),
        (LatentTurn(sae.name, -1, "set", 0.0), UnknownName),
        (LatentTurn(sae.name, 0, "delete", 0.0), UnknownName),
        (LatentTurn(sae.name, 0, "set", float("nan")), RequestError),
        (LatentTurn(sae.name, 0, "add", float("-inf")), RequestError),
        (LatentTurn(sae.name, 0, "scale", 1.01 * LATENT_VALUE_LIMIT), RequestError),
    ]
    tokens: list[object] = []
    for turn, error in refused:
        steering = Steering(latents=(turn,))
        with pytest.raises(error) as caught:
            engine.steer(question, [10], steering, on_token=tokens.append)
        assert str(caught.value).endswith((".", "?"))
        with pytest.raises(error):
            engine.attribute(question, [10], Target(), steering=steering)
        with pytest.raises(error):
            cast(SteeringEngine, engine).sweep(question, [10], Steering(), turn, (turn.value,))
    assert not tokens


def test_it_stops_when_cancelled(
    engine: Engine, question: Question, asked: Asked, ids: list[int], sae: saes.SaeInfo, best: saes.LatentScore
) -> None:
    tokens: list[object] = []
    steering = Steering(latents=(LatentTurn(sae.name, best.index, "scale", 1.1),))
    with pytest.raises(Cancelled):
        engine.steer(question, ids, steering, tokens.append, lambda: len(tokens) >= 1)
    assert len(tokens) == 1
    assert engine.ask(question).answer == asked.answer


def test_a_swap_takes_the_others_latents_for_ones_own(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, found: saes.Influence
) -> None:
    elsewhere = dataclasses.replace(question, text="what is on the left?")
    other_ids = [token.id for token in engine.ask(elsewhere).answer.tokens]
    other = engine.latent_influence(elsewhere, other_ids, sae.name)
    mine, theirs = ([(one.index, one.influence, one.peak) for one in ranking.latents] for ranking in (found, other))
    for k in (1, 5):
        turns = swapped(sae.name, mine, theirs, k)
        gone, brought = (set(np.argsort(-one.influence, kind="stable")[:k].tolist()) for one in (found, other))
        assert {turn.index for turn in turns} == gone | brought
        assert len(turns) == len({turn.index for turn in turns})
        peaks = {one.index: one.peak for one in other.latents}
        for turn in turns:
            expected = peaks[turn.index] if turn.index in brought else 0.0
            assert (turn.sae, turn.operation, turn.value) == (sae.name, "set", expected)
    steered = engine.steer(question, ids, Steering(latents=swapped(sae.name, mine, theirs, 5)))
    assert abs(sum(steered.original_under_steered) - sum(steered.steered_under_original)) > 0
    with pytest.raises(RequestError, match="At least 1"):
        swapped(sae.name, mine, theirs, 0)
