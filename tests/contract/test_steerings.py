"""What `steer` promises: both answers under both models, λ = 0 changes nothing, the control, and refusals."""

import numpy as np
import pytest

from engine.contract import (
    MAX_SET,
    PLAIN,
    POSITIONS,
    AnswerToken,
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


@pytest.fixture(scope="session")
def name(engine: Engine) -> str:
    return engine.library().concepts[0].name


@pytest.mark.parametrize("lam", [None, 0.0])
def test_nothing_to_turn_changes_nothing(
    engine: Engine, question: Question, asked: Asked, ids: list[int], name: str, lam: float | None
) -> None:
    steering = PLAIN if lam is None else Steering((ConceptTurn(name, lam),))
    steered = engine.steer(question, ids, steering)
    logprobs = pytest.approx([token.logprob for token in asked.answer.tokens], abs=1e-3)
    assert steered.answer == asked.answer
    assert list(steered.original_under_steered) == logprobs
    assert list(steered.steered_under_original) == logprobs
    assert steered.n_neurons == 0
    assert engine.ask(question, steering=steering).answer == asked.answer


def test_both_answers_are_scored_under_both_models(
    engine: Engine, question: Question, asked: Asked, ids: list[int], name: str
) -> None:
    steering = Steering((ConceptTurn(name, 4.0),))
    steered = engine.steer(question, ids, steering)
    own = [token.id for token in steered.answer.tokens]
    assert len(steered.original_under_steered) == len(ids)
    assert len(steered.steered_under_original) == len(own)
    assert max(*steered.original_under_steered, *steered.steered_under_original) <= 0
    plain = [token.logprob for token in asked.answer.tokens]
    assert list(steered.original_under_steered) != pytest.approx(plain, abs=1e-3)
    again = engine.steer(question, own, steering)
    assert again.answer == steered.answer
    assert list(again.original_under_steered) == pytest.approx(
        [token.logprob for token in steered.answer.tokens], abs=1e-3
    )
    assert list(steered.steered_under_original) == pytest.approx(
        list(engine.steer(question, own, PLAIN).original_under_steered), abs=1e-3
    )
    whole = engine.ask(question, steering=steering).answer  # in one piece, where steer goes on from the prompt's prefix
    assert [token.id for token in whole.tokens] == own
    logprobs = [token.logprob for token in steered.answer.tokens]
    assert [token.logprob for token in whole.tokens] == pytest.approx(logprobs, abs=1e-4)
    assert engine.steer(question, [], steering).original_under_steered == ()


def test_n_neurons_is_how_many_are_turned(engine: Engine, question: Question, ids: list[int], name: str) -> None:
    for concept in engine.library().concepts[:3]:
        support = int(np.count_nonzero(concept.memberships))
        steered = engine.steer(question, ids, Steering((ConceptTurn(concept.name, 1.5),)))
        assert steered.n_neurons == min(support, MAX_SET)
    assert engine.steer(question, ids, Steering(neurons=(NeuronTurn(0, 1, "set", 0.0),))).n_neurons == 1


def test_the_control_turns_as_many_other_neurons(engine: Engine, question: Question, ids: list[int], name: str) -> None:
    turns = (ConceptTurn(name, 4.0),)
    true = engine.steer(question, ids, Steering(turns))
    control = engine.steer(question, ids, Steering(turns, control=1))
    assert control.n_neurons == true.n_neurons
    assert control.original_under_steered != true.original_under_steered
    assert engine.steer(question, ids, Steering(turns, control=1)) == control
    assert (
        engine.steer(question, ids, Steering(turns, control=2)).original_under_steered != control.original_under_steered
    )


@pytest.mark.parametrize("operation", ["scale", "add", "set"])
def test_a_single_neuron_can_be_turned(engine: Engine, question: Question, ids: list[int], operation: str) -> None:
    top = engine.attribute(question, ids, Target(), top=1).neurons[0]
    steering = Steering(neurons=(NeuronTurn(top.layer, top.index, operation, 5.0),))
    plain = engine.attribute(question, ids, Target())
    turned = engine.attribute(question, ids, Target(), steering=steering)
    assert turned.scores[top.layer, top.index] != plain.scores[top.layer, top.index]


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_word_for_positions_is_known(
    engine: Engine, question: Question, ids: list[int], name: str, positions: str
) -> None:
    steered = engine.steer(question, ids, Steering((ConceptTurn(name, 2.0),), positions=positions))
    assert len(steered.original_under_steered) == len(ids)


def test_steering_leaves_nothing_behind(engine: Engine, question: Question, asked: Asked, name: str) -> None:
    for lam in (-2.0, 4.0):
        engine.ask(question, steering=Steering((ConceptTurn(name, lam),)))
        assert engine.ask(question).answer == asked.answer


def test_tokens_come_one_by_one_and_stop_when_cancelled(
    engine: Engine, question: Question, ids: list[int], name: str
) -> None:
    steering = Steering((ConceptTurn(name, 0.5),))
    tokens: list[AnswerToken] = []
    steered = engine.steer(question, ids, steering, on_token=tokens.append)
    assert tuple(tokens) == steered.answer.tokens
    tokens.clear()
    with pytest.raises(Cancelled):
        engine.steer(question, ids, steering, on_token=tokens.append, cancelled=lambda: len(tokens) >= 1)
    assert len(tokens) == 1


def test_what_cannot_be_steered_is_refused_before_any_work(engine: Engine, question: Question, name: str) -> None:
    info = engine.info()
    refused: list[tuple[Steering, type[RequestError]]] = [
        (Steering((ConceptTurn(f"{name}s", 1.0),)), UnknownName),
        (Steering((ConceptTurn("<img src=x onerror=alert(1)>", 1.0),)), UnknownName),
        (Steering((ConceptTurn("", 0.0),)), UnknownName),
        (Steering((ConceptTurn(name, 4.01),)), RequestError),
        (Steering((ConceptTurn(name, -2.01),)), RequestError),
        (Steering((ConceptTurn(name, float("nan")),)), RequestError),
        (Steering((ConceptTurn(name, 1.0),), positions="everywhere"), UnknownName),
        (Steering(neurons=(NeuronTurn(info.n_layers, 0, "set", 0.0),)), UnknownName),
        (Steering(neurons=(NeuronTurn(0, info.d_mlp, "set", 0.0),)), UnknownName),
        (Steering(neurons=(NeuronTurn(-1, 0, "set", 0.0),)), UnknownName),
        (Steering(neurons=(NeuronTurn(0, 0, "delete", 0.0),)), UnknownName),
        (Steering(neurons=(NeuronTurn(0, 0, "set", float("nan")),)), RequestError),
    ]
    tokens: list[AnswerToken] = []
    for steering, error in refused:
        with pytest.raises(error) as caught:
            engine.steer(question, [10], steering, on_token=tokens.append)
        assert str(caught.value).endswith((".", "?"))
        with pytest.raises(error):
            engine.ask(question, steering=steering, on_token=tokens.append)
        with pytest.raises(error):
            engine.attribute(question, [10], Target(), steering=steering)
    assert not tokens


def test_an_unknown_concept_is_answered_with_near_misses(engine: Engine, question: Question, name: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean .*{name}"):
        engine.ask(question, steering=Steering((ConceptTurn(f"{name}s", 1.0),)))
