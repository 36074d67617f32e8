"""Going on from a prompt that has been run: the same numbers, nothing shared, and only where it was proved."""

import pytest
import torch

from engine import reuse
from engine.contract import NeuronTurn, Question, Steering
from engine.hooks import Call, _call, intervene
from engine.interventions import NO_EDITS
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import embed, forward, picture_features
from engine.sweeps import SweepPoint
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

TURN = NeuronTurn(1, 5, "add", 6.0)
ANSWER = Steering(neurons=(TURN,), positions="answer")
EVERYWHERE = Steering(neurons=(TURN,))


def unproved(engine: LocalEngine) -> LocalEngine:
    """An engine that goes on from nothing."""
    engine.reuse.proved = {True: False, False: False}
    return engine


def close(one: tuple[SweepPoint, ...], other: tuple[SweepPoint, ...]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a.ids == b.ids and abs(a.logprob - b.logprob) + abs(a.original - b.original) < 1e-4 for a, b in pairs)


def test_reuse_gives_what_running_it_all_gives(any_model: Loaded, question: Question) -> None:
    ours, theirs = LocalEngine(any_model), unproved(LocalEngine(any_model))
    for steering in (ANSWER, EVERYWHERE):
        one, other = ours.steer(question, [700, 701], steering), theirs.steer(question, [700, 701], steering)
        assert [token.id for token in one.answer.tokens] == [token.id for token in other.answer.tokens]
        assert one.original_under_steered == pytest.approx(other.original_under_steered, abs=1e-4)
        points = [engine.sweep(question, [700], steering, TURN, (-6.0, 0.0, 6.0)) for engine in (ours, theirs)]
        assert close(*points)
    assert ours.reuse.proved == {True: True}
    assert len(ours.reuse.kept) == 1
    assert not theirs.reuse.kept


def test_what_is_kept_is_never_changed_by_a_steered_run(model: Loaded, question: Question) -> None:
    engine = LocalEngine(model)
    first = engine.steer(question, [700], ANSWER)
    (past,) = engine.reuse.kept.values()
    before = [(layer.keys.clone(), layer.values.clone()) for layer in past.cache.layers]
    engine.sweep(question, [700, 701], ANSWER, TURN, (-9.0, 9.0))
    engine.sweep(question, [700, 701], EVERYWHERE, TURN, (-9.0, 9.0))
    engine.ask(question, steering=ANSWER)
    (kept,) = engine.reuse.kept.values()
    assert kept.cache is past.cache
    for layer, (keys, values) in zip(kept.cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)
    assert engine.steer(question, [700], ANSWER) == first


def test_the_last_two_prompts_are_kept_and_forgotten_on_request(cropping: Loaded) -> None:
    engine = LocalEngine(cropping)
    for number in range(4):
        engine.steer(Question(tiny.picture(number), "what is this?", 1), [], ANSWER)
    assert len(engine.reuse.kept) == reuse.KEPT
    engine.forget()
    assert not engine.reuse.kept


def test_a_steered_prefix_is_not_kept(cropping: Loaded, question: Question) -> None:
    """From the first layer on nothing of it is plain; above it, the plain run is what is kept."""
    engine = LocalEngine(cropping)
    first = NeuronTurn(0, 5, "add", 6.0)
    engine.sweep(question, [700], Steering(neurons=(first,)), first, (-9.0, 9.0))
    assert not engine.reuse.kept
    engine.sweep(question, [700], EVERYWHERE, TURN, (-9.0, 9.0))
    (kept,) = engine.reuse.kept.values()
    prompt = build_prompt(cropping, question)
    plain = reuse.run_prefix(cropping, embed(cropping, prompt.ids, picture_features(cropping, prompt.pixels)))
    for layer, wanted in zip(kept.cache.layers, plain.cache.layers, strict=True):
        assert torch.equal(layer.keys, wanted.keys)
        assert torch.equal(layer.values, wanted.values)


def test_a_prompt_that_sees_all_of_itself_is_run_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    """PaliGemma's positions see the ones after them: found out by trying."""
    engine = LocalEngine(kits.make(tmp_path_factory.mktemp("prefix"), seeing.paligemma()))
    question = Question(tiny.picture(), "what is this?", 2)
    engine.steer(question, [700], ANSWER)
    assert engine.reuse.proved == {True: False}
    assert not engine.reuse.kept


def test_positions_go_on_from_where_the_prefix_ends(cropping: Loaded, question: Question) -> None:
    """An edit of the prompt's last position reaches it when the positions before it are not run again."""
    prompt = build_prompt(cropping, question)
    inputs = embed(cropping, prompt.ids, picture_features(cropping, prompt.pixels))
    past = reuse.run_prefix(cropping, inputs)
    calls: list[Call] = []
    handle = cropping.anatomy.decoder.register_forward_pre_hook(
        lambda _module, args, kwargs: calls.append(_call(args, kwargs)), with_kwargs=True
    )
    try:
        with torch.no_grad(), intervene(cropping.anatomy, [NO_EDITS] * 3):
            forward(cropping, reuse.after(inputs.ids.repeat(3, 1), past, inputs.d_model), 1)
    finally:
        handle.remove()
    assert calls == [Call(3, prompt.length - 1, 1)]
