"""Sweeps and batches of answers on every family: each row is what it is alone."""

import pytest
import torch

from engine.contract import PLAIN, NeuronTurn, Question, Steering
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.sweeps import varied
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

TURN = NeuronTurn(1, 5, "add", 0.0)
OTHERS = tuple(NeuronTurn(layer, index, "add", 1.0) for layer in (0, 2) for index in range(0, kits.D_MLP, 5))
VALUES = (-20.0, 0.0, 9.0)


def check_sweep(engine: LocalEngine, question: Question, steering: Steering) -> None:
    original = [token.id for token in engine.generate_only(question).tokens] or [700]
    points = engine.sweep(question, original, steering, TURN, VALUES)
    for point in points:
        steered = engine.steer(question, original, varied(steering, TURN, point.value))
        assert point.ids == tuple(token.id for token in steered.answer.tokens)
        assert point.logprob == pytest.approx(sum(token.logprob for token in steered.answer.tokens), abs=1e-4)
        assert point.original == pytest.approx(sum(steered.original_under_steered), abs=1e-4)
    assert len({round(point.original, 4) for point in points}) == len(points)


def check_answers(engine: LocalEngine, questions: list[Question]) -> None:
    steerings = (PLAIN, Steering(neurons=OTHERS), Steering(neurons=OTHERS[:4], positions="answer"))
    asked = [(question, steering) for question in questions for steering in steerings]
    for (question, steering), answer in zip(asked, engine.answers(asked), strict=True):
        alone = engine.generate_only(question, steering)
        assert [token.id for token in answer.tokens] == [token.id for token in alone.tokens]
        assert answer.stopped == alone.stopped
        assert [token.logprob for token in answer.tokens] == pytest.approx(
            [token.logprob for token in alone.tokens], abs=1e-4
        )


@pytest.mark.parametrize("name", [*kits.TEXT, *seeing.SEEING])
def test_each_row_is_what_it_is_alone(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    kit = kits.TEXT[name]() if name in kits.TEXT else seeing.SEEING[name]()
    engine = LocalEngine(kits.make(tmp_path_factory.mktemp("steered"), kit))
    words = Question(None, "what lives on ice?", 4)
    seen = [
        Question(tiny.picture(1), "what is this?", 4),
        Question(tiny.picture(2), "what is this?", 2),
        Question(tiny.picture(3, 60, 200), "what is this?", 4),
        Question(tiny.picture(1), "what is on the left?", 4),
    ]
    first = seen[0] if engine.loaded.sees else words
    check_sweep(engine, first, PLAIN)
    check_sweep(engine, first, Steering(neurons=OTHERS, positions="answer"))
    check_answers(engine, [*seen, words] if engine.loaded.sees else [words, Question(None, "why?", 3)])
    assert tiny.all_hooks(engine.loaded.model) == 0


def test_a_row_that_ends_is_left_alone_while_others_go_on(model: Loaded, question: Question) -> None:
    """The unembedding's row of the end token is raised along one neuron's write: its row ends at once."""
    changed = tiny.changed(model)
    weights = changed.model.lm_head.weight
    with torch.no_grad():
        weights[2] = changed.anatomy.write_vectors(2)[7] * 40
    engine = LocalEngine(changed)
    turn = NeuronTurn(2, 7, "add", 0.0)
    ended, going = engine.sweep(question, [700], Steering(positions="answer"), turn, (50.0, -50.0))
    assert ended.ids == ()
    assert len(going.ids) == question.max_new_tokens
    assert list(going.ids) == [token.id for token in engine.generate_only(question, Steering(neurons=(
        NeuronTurn(2, 7, "add", -50.0),), positions="answer")).tokens]  # fmt: skip
