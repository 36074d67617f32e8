"""What a steering does to the model, against weight surgery, hooks written here and decoding without a cache."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from engine.contract import POSITIONS, Concept, ConceptTurn, Library, NeuronTurn, Question, RequestError, Steering
from engine.hooks import intervene
from engine.interventions import compile_steering
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import answer_ids, embed, generate, picture_features
from tests.engine import tiny

SET = [(0, 3), (1, 11), (1, 12), (2, 5), (2, 40)]
"""Neurons (layer, index) of the set that is turned."""


def engine_with_set(loaded: Loaded) -> LocalEngine:
    """An engine whose library holds SET as a concept, every member with membership 1, and one of graded memberships."""
    engine = LocalEngine(loaded)
    crisp = np.zeros((loaded.anatomy.n_layers, loaded.anatomy.d_mlp), np.float32)
    graded = crisp.copy()
    for k, place in enumerate(SET):
        crisp[place], graded[place] = 1, 1 - k / 10
    engine._library = Library("made", (Concept("set", "object", 4, crisp), Concept("graded", "object", 4, graded)))
    return engine


@contextmanager
def surgery(loaded: Loaded, neurons: list[tuple[int, int]], value: float) -> Iterator[None]:
    """Every neuron's activation is `value` at every position: its write vector is zeroed and value × it is a bias."""
    downs = [layer.mlp.down_proj for layer in tiny.decoder_of(loaded.model).layers]
    kept = [down.weight.clone() for down in downs]
    try:
        for layer, index in neurons:
            with torch.no_grad():
                column = downs[layer].weight[:, index]
                bias = value * column.clone() + (0 if downs[layer].bias is None else downs[layer].bias)
                downs[layer].bias = torch.nn.Parameter(bias, requires_grad=False)
                column.zero_()
        yield
    finally:
        for down, weight in zip(downs, kept, strict=True):
            down.bias = None
            with torch.no_grad():
                down.weight.copy_(weight)


def oracle(loaded: Loaded, question: Question) -> tuple[list[int], list[float]]:
    return tiny.greedy(loaded.model, build_prompt(loaded, question), question.max_new_tokens)


def same(engine: LocalEngine, question: Question, steering: Steering, ids: list[int], logprobs: list[float]) -> None:
    steered = engine.steer(question, ids, steering)
    assert answer_ids(steered.answer) == ids
    assert [token.logprob for token in steered.answer.tokens] == pytest.approx(logprobs, abs=2e-3)
    assert steered.original_under_steered == pytest.approx(logprobs, abs=2e-3)
    (answer,) = engine.answers([(question, steering)])
    assert answer_ids(answer) == ids


def test_setting_a_set_is_weight_surgery_in_the_builtin_model(builtin: Loaded, question: Question) -> None:
    check_surgery(builtin, question, 0.0)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_setting_a_set_is_weight_surgery(model: Loaded, question: Question, value: float) -> None:
    check_surgery(model, question, value)


def check_surgery(any_model: Loaded, question: Question, value: float) -> None:
    """`set` of every member; 0 also by λ = −1 of the set as a concept."""
    engine = engine_with_set(any_model)
    plain = oracle(any_model, question)
    with surgery(any_model, SET, value):
        ids, logprobs = oracle(any_model, question)
    assert logprobs != pytest.approx(plain[1], abs=1e-4)
    same(engine, question, Steering(neurons=tuple(NeuronTurn(*n, "set", value) for n in SET)), ids, logprobs)
    if value == 0:
        same(engine, question, Steering((ConceptTurn("set", -1.0),)), ids, logprobs)
    same(engine, question, Steering(), *plain)


@pytest.mark.parametrize("layers", [(0, 0), (1, 2), (2, 2)])
def test_layers_limit_a_concept_to_its_members_there(
    model: Loaded, question: Question, layers: tuple[int, int]
) -> None:
    engine = engine_with_set(model)
    first, last = layers
    inside = [(layer, index) for layer, index in SET if first <= layer <= last]
    with surgery(model, inside, 0.0):
        ids, logprobs = oracle(model, question)
    same(engine, question, Steering((ConceptTurn("set", -1.0),), layers=layers), ids, logprobs)


def test_layers_leave_single_neurons_where_they_are(model: Loaded, question: Question) -> None:
    engine = engine_with_set(model)
    steering = Steering((ConceptTurn("set", -1.0),), (NeuronTurn(0, 9, "set", 0.0),), layers=(2, 2))
    with surgery(model, [(0, 9), (2, 5), (2, 40)], 0.0):
        ids, logprobs = oracle(model, question)
    same(engine, question, steering, ids, logprobs)
    for layers in ((0, 3), (-1, 1), (2, 1)):
        with pytest.raises(RequestError, match="layers from 0 to 2"):
            engine.steer(question, [700], dataclasses.replace(steering, layers=layers))


def turned(layers: tuple[int, int], positions: str, length: int, modality: tuple[str, ...]) -> tiny.Edit:
    """graded × 2 within `layers`, then one neuron added to and one set, at `positions`: for whole sequences."""

    def edit(layer: int, activation: torch.Tensor) -> torch.Tensor:
        result = activation.clone()
        for k, (where, index) in enumerate(SET):
            if where == layer and layers[0] <= layer <= layers[1]:
                result[..., index] *= 1 + 2 * np.float32(1 - k / 10)
        if layer == 1:
            result[..., 20] += 1.5
            result[..., 11] = -2.0
        kinds = [*modality, *["answer"] * (activation.shape[1] - length)]
        for place, kind in enumerate(kinds):
            acts = {
                "all": True,
                "image": kind == "image",
                "question": kind in ("question", "template"),
                "answer": place >= length - 1,
            }[positions]
            if not acts:
                result[:, place] = activation[:, place]
        return result

    return edit


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("layers", [(0, 2), (2, 2)])
def test_generation_with_the_cache_is_decoding_without_it(
    model: Loaded, question: Question, positions: str, layers: tuple[int, int]
) -> None:
    """Concept, `add` and `set` together, against hooks of the test's own and whole passes for every token."""
    engine = engine_with_set(model)
    prompt = build_prompt(model, question)
    singles = (NeuronTurn(1, 20, "add", 1.5), NeuronTurn(1, 11, "set", -2.0))
    steering = Steering((ConceptTurn("graded", 2.0),), singles, positions=positions, layers=layers)
    with tiny.edited(model.model, turned(layers, positions, prompt.length, prompt.modality)):
        ids, logprobs = oracle(model, question)
    same(engine, question, steering, ids, logprobs)


def decode_steps(loaded: Loaded, question: Question, steering: Steering) -> list[tuple[int, bool]]:
    """(positions of the call, are its activations bit-equal after the edit?) of every call and layer."""
    engine = engine_with_set(loaded)
    prompt = build_prompt(loaded, question)
    anatomy = loaded.anatomy
    inputs = embed(loaded, prompt.ids, picture_features(loaded, prompt.pixels))
    edits = compile_steering(steering, engine.library(), prompt.modality, anatomy.n_layers, anatomy.d_mlp)
    before: list[torch.Tensor] = []
    calls: list[tuple[int, bool]] = []

    def first(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        before.append(args[0].clone())

    def last(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        calls.append((args[0].shape[1], torch.equal(args[0], before[-1])))

    handles = [down.register_forward_pre_hook(first) for down in anatomy.downs]
    try:
        with intervene(anatomy, [edits]):
            handles += [down.register_forward_pre_hook(last) for down in anatomy.downs]
            generate(loaded, prompt, inputs, question.max_new_tokens)
    finally:
        for handle in handles:
            handle.remove()
    return calls


@pytest.mark.parametrize(("positions", "untouched"), [("image", True), ("question", True), ("answer", False)])
def test_image_and_question_steering_leave_decode_steps_untouched(
    any_model: Loaded, question: Question, positions: str, untouched: bool
) -> None:
    calls = decode_steps(any_model, question, Steering((ConceptTurn("set", 3.0),), positions=positions))
    decoding = [equal for length, equal in calls if length == 1]
    assert len(decoding) >= any_model.anatomy.n_layers
    assert all(decoding) == untouched
    assert not all(equal for length, equal in calls if length > 1)


def test_a_row_turned_by_nothing_is_bit_equal_to_the_plain_batch(any_model: Loaded, question: Question) -> None:
    """λ = 0 in a sweep is the original answer of a batch of that shape, to the last bit."""
    engine = engine_with_set(any_model)
    original = answer_ids(engine.generate_only(question))
    turn = ConceptTurn("graded", 0.0)
    mixed = engine.sweep(question, original, Steering(), turn, (0.0, 3.0))
    plain = engine.sweep(question, original, Steering(), turn, (0.0, 0.0))
    assert mixed[0] == plain[0]
    assert mixed[1].original != plain[1].original
    assert list(mixed[0].ids) == original
