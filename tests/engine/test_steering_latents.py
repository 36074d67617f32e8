"""What a steering by latents does to the model, against plain hooks written here, whole passes without a cache, and
exact ablation."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from engine.contract import (
    PLAIN,
    POSITIONS,
    LatentTurn,
    NeuronTurn,
    Question,
    Steering,
    Target,
)
from engine.features import embed
from engine.hooks import intervene
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.running import answer_ids, forward, with_answer
from engine.sae.activations import at_site
from engine.sae.sae import Sae
from tests.engine import tiny
from tests.engine.test_sae_influence import ANSWER, CASES, N, place, random_sae, sigma, standing


def turn(sae: Sae, index: int, operation: str, value: float) -> LatentTurn:
    return LatentTurn(sae.info.name, index, operation, value)


def some(sae: Sae) -> tuple[LatentTurn, ...]:
    """All operations, one latent twice, its SAE once by its id."""
    return (
        turn(sae, 3, "scale", -2.0),
        turn(sae, 7, "add", 1.5),
        turn(sae, 11, "set", 2.0),
        turn(sae, 20, "add", -3.0),
        turn(sae, 12, "set", 0.0),
        turn(sae, 7, "scale", 2.0),
        LatentTurn(sae.info.id, 30, "scale", 4.0),
    )


def acting(positions: str, prompt: Prompt, size: int) -> list[bool]:
    kinds = [*prompt.modality, *["answer"] * (size - prompt.length)]
    wanted = {"image": {"image"}, "question": {"question", "template"}}.get(positions)
    return [
        at > 0 and (kind in wanted if wanted else positions == "all" or at >= prompt.length - 1)
        for at, kind in enumerate(kinds)
    ]


@contextmanager
def plainly(
    loaded: Loaded, sae: Sae, turns: Sequence[LatentTurn], prompt: Prompt, positions: str = "all"
) -> Iterator[None]:
    """The same edit of whole sequences of one row, by a hook of the test's own."""

    def hook(_module: Any, _args: Any, result: Any) -> Any:
        given = result[0] if isinstance(result, tuple) else result
        H = sigma(sae, given[0])
        after = H.clone()
        for one in turns:
            if one.operation == "scale":
                after[:, one.index] = after[:, one.index] * one.value
            elif one.operation == "add":
                after[:, one.index] = after[:, one.index] + one.value
            else:
                after[:, one.index] = one.value
        acts = torch.tensor(acting(positions, prompt, len(H)))
        made = (given[0] + ((after - H) @ sae.W_dec) * acts[:, None])[None]
        return (made, *result[1:]) if isinstance(result, tuple) else made

    handle = place(loaded.model, sae.info).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def active_ones(engine: LocalEngine, question: Question, sae: Sae) -> list[int]:
    found = engine.latent_influence(question, ANSWER, sae.info.name, top=N)
    return [latent.index for latent in found.latents if latent.influence > 0]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(("layer", "site", "architecture"), CASES)
def test_it_equals_a_plain_hook_with_the_cache_and_without(
    any_model: Loaded,
    any_engine: LocalEngine,
    question: Question,
    layer: int,
    site: str,
    architecture: str,
    positions: str,
) -> None:
    sae = random_sae(any_model, layer, site, architecture)
    prompt = build_prompt(any_model, question)
    steering = Steering(latents=some(sae), positions=positions)
    plain = tiny.span_logprob(tiny.logits(any_model.model, prompt, ANSWER), prompt, ANSWER, 0, 2)
    with plainly(any_model, sae, some(sae), prompt, positions):
        rows = tiny.logits(any_model.model, prompt, ANSWER)
        ids, _ = tiny.greedy(any_model.model, prompt, question.max_new_tokens)
        again = tiny.logits(any_model.model, prompt, ids)
    logprobs = [float(tiny.span_logprob(again, prompt, ids, k, k + 1)) for k in range(len(ids))]
    with standing(any_engine, sae):
        steered = any_engine.steer(question, ANSWER, steering)
        (answer,) = any_engine.answers([(question, steering)])
        value = any_engine.attribute(question, ANSWER, Target(), steering=steering, top=1).value
    expected = [float(tiny.span_logprob(rows, prompt, ANSWER, k, k + 1)) for k in (0, 1)]
    assert list(steered.original_under_steered) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert value == pytest.approx(sum(expected), rel=1e-5, abs=1e-5)
    if (layer, positions) != (any_model.anatomy.n_layers - 1, "image"):  # nothing is read there any more
        assert abs(sum(expected) - float(plain)) > 1e-3
    assert answer_ids(steered.answer) == answer_ids(answer) == ids
    assert [token.logprob for token in steered.answer.tokens] == pytest.approx(logprobs, abs=1e-4)
    assert steered.n_neurons == 0
    assert tiny.all_hooks(any_model.model) == 0


def test_latents_read_what_the_neurons_edits_made(model: Loaded, engine: LocalEngine, question: Question) -> None:
    """And two SAEs at one site read the same."""
    one, two = random_sae(model, 1, "residual", "topk"), random_sae(model, 1, "residual", "jumprelu", seed=1)
    prompt = build_prompt(model, question)
    neurons = tuple(NeuronTurn(layer, index, "add", 2.0) for layer in (0, 1) for index in range(6))

    def edit(layer: int, activation: torch.Tensor) -> torch.Tensor:
        result = activation.clone()
        if layer < 2:
            result[..., :6] += 2.0
        return result

    def both(_module: Any, _args: Any, result: Any) -> Any:
        given = result[0] if isinstance(result, tuple) else result
        made = given.clone()
        for sae in (one, two):
            made[0, 1:] -= (3 * sigma(sae, given[0])[:, 4:9] @ sae.W_dec[4:9])[1:]
        return (made, *result[1:]) if isinstance(result, tuple) else made

    handle = place(model.model, one.info).register_forward_hook(both)
    try:
        with tiny.edited(model.model, edit):
            rows = tiny.logits(model.model, prompt, ANSWER)
    finally:
        handle.remove()
    turns = tuple(turn(sae, c, "scale", -2.0) for c in range(4, 9) for sae in (two, one))
    with standing(engine, one, two):
        steered = engine.steer(question, ANSWER, Steering(neurons=neurons, latents=turns))
    expected = [float(tiny.span_logprob(rows, prompt, ANSWER, k, k + 1)) for k in (0, 1)]
    assert list(steered.original_under_steered) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert steered.n_neurons == len(neurons)


def test_what_leaves_a_latent_alone_changes_no_bit(model: Loaded, engine: LocalEngine, question: Question) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)
    inputs = embed(model, with_answer(prompt, ANSWER), engine._features.get(model, prompt))
    with torch.no_grad():
        plain = forward(model, inputs, 3)
        H = sae.encode(at_site(model, inputs, 1, "residual")[0, 1:])
    never = int((H > 0).any(0).logical_not().nonzero()[0])
    ever = int((H > 0).any(0).nonzero()[0])
    with standing(engine, sae):
        for turns in (
            (turn(sae, ever, "scale", 1.0), turn(sae, ever + 1, "add", 0.0)),
            (turn(sae, never, "scale", 5.0), turn(sae, never, "scale", -2.0)),
            (turn(sae, never, "set", 0.0),),
            (turn(sae, ever, "scale", 2.0), turn(sae, ever, "scale", 0.5)),
        ):
            edits = engine._edits(Steering(latents=turns), prompt)
            with torch.no_grad(), intervene(model.anatomy, [edits]):
                assert torch.equal(forward(model, inputs, 3), plain)
            assert engine.ask(question, steering=Steering(latents=turns)).answer == engine.ask(question).answer
        turned = engine._edits(Steering(latents=(turn(sae, ever, "scale", 2.0),)), prompt)
        with torch.no_grad(), intervene(model.anatomy, [turned]):
            assert not torch.equal(forward(model, inputs, 3), plain)


@pytest.mark.parametrize(("layer", "site", "architecture"), CASES)
def test_setting_one_to_zero_loses_what_ablation_says(
    model: Loaded, engine: LocalEngine, question: Question, layer: int, site: str, architecture: str
) -> None:
    sae = random_sae(model, layer, site, architecture)
    with standing(engine, sae):
        chosen = active_ones(engine, question, sae)[:4]
        lost = engine.latent_ablation(question, ANSWER, sae.info.name, chosen)
        before = sum(engine.steer(question, ANSWER, PLAIN).original_under_steered)
        for c, expected in zip(chosen, lost, strict=True):
            steered = engine.steer(question, ANSWER, Steering(latents=(turn(sae, c, "set", 0.0),)))
            assert before - sum(steered.original_under_steered) == pytest.approx(float(expected), abs=1e-5)
    assert np.abs(lost).max() > 1e-3


def test_each_row_of_a_batch_has_its_own_edits(model: Loaded, engine: LocalEngine, question: Question) -> None:
    one, two = random_sae(model, 1, "residual", "topk"), random_sae(model, 0, "mlp", "standard")
    steerings = [
        PLAIN,
        Steering(latents=some(one)),
        Steering(latents=(*some(two), turn(one, 5, "add", 2.0)), positions="answer"),
        Steering(neurons=(NeuronTurn(0, 3, "set", 4.0),), latents=some(two), positions="image"),
        Steering(neurons=(NeuronTurn(0, 3, "set", 4.0),)),
    ]
    with standing(engine, one, two):
        plain = engine.answers([(question, PLAIN)] * len(steerings))
        told = engine.answers([(question, steering) for steering in steerings])
        for steering, answer in zip(steerings, told, strict=True):
            alone = engine.generate_only(question, steering)
            assert answer_ids(answer) == answer_ids(alone)
            assert [t.logprob for t in answer.tokens] == pytest.approx([t.logprob for t in alone.tokens], abs=1e-4)
        assert len({tuple(round(t.logprob, 5) for t in answer.tokens) for answer in told}) == len(steerings)
    assert told[0] == plain[0]


@pytest.mark.parametrize("positions", ["all", "answer"])
def test_a_sweep_of_a_latent_is_what_steer_says(any_engine: LocalEngine, question: Question, positions: str) -> None:
    sae = random_sae(any_engine.loaded, 1, "residual", "jumprelu")
    values = (0.0, 1.0, 8.0, -8.0)
    with standing(any_engine, sae):
        best = active_ones(any_engine, question, sae)[0]
        original = answer_ids(any_engine.generate_only(question))
        steering = Steering(latents=(turn(sae, best, "set", 9.0), turn(sae, 2, "add", 0.5)), positions=positions)
        swept = turn(sae, best, "scale", 3.0)
        points = any_engine.sweep(question, original, steering, swept, values)
        alone = any_engine.sweep(question, original, Steering(positions=positions), swept, values)
        for point in points:
            latents = (steering.latents[1], dataclasses.replace(swept, value=point.value))
            steered = any_engine.steer(question, original, Steering(latents=latents, positions=positions))
            assert point.ids == tuple(answer_ids(steered.answer))
            assert point.original == pytest.approx(sum(steered.original_under_steered), abs=1e-4)
        still = any_engine.sweep(question, original, Steering(positions=positions), swept, (1.0,) * 4)
    assert alone[1] == still[1]
    assert list(alone[1].ids) == original
    assert len({round(point.original, 4) for point in points}) == len(values)


def test_at_the_answer_the_prompts_other_positions_stay_bit_equal(
    model: Loaded, engine: LocalEngine, question: Question
) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)
    inputs = embed(model, with_answer(prompt, ANSWER), engine._features.get(model, prompt))
    with standing(engine, sae), torch.no_grad():
        edits = engine._edits(Steering(latents=some(sae), positions="answer"), prompt)
        plain = at_site(model, inputs, 2, "residual")
        with intervene(model.anatomy, [edits]):
            steered = at_site(model, inputs, 2, "residual")
    last = prompt.length - 1
    assert torch.equal(steered[:, :last], plain[:, :last])
    assert (steered[:, last:] != plain[:, last:]).any(-1).all()


def test_what_is_reused_gives_what_running_it_all_gives(any_model: Loaded, question: Question) -> None:
    sae = random_sae(any_model, 1, "residual", "topk")
    ours, theirs = LocalEngine(any_model), LocalEngine(any_model)
    theirs.reuse.proved = {True: False, False: False}
    with standing(ours, sae), standing(theirs, sae):
        for positions in ("answer", "all", "image"):
            steering = Steering(latents=some(sae), positions=positions)
            one, other = (engine.steer(question, ANSWER, steering) for engine in (ours, theirs))
            assert answer_ids(one.answer) == answer_ids(other.answer)
            assert one.original_under_steered == pytest.approx(other.original_under_steered, abs=1e-4)
            points = [engine.sweep(question, ANSWER, steering, some(sae)[0], (-3.0, 3.0)) for engine in (ours, theirs)]
            assert [point.ids for point in points[0]] == [point.ids for point in points[1]]
    assert len(ours.reuse.kept) == 1


def test_the_first_position_is_left_alone_where_it_is_reserved(
    model: Loaded, engine: LocalEngine, question: Question
) -> None:
    sae = random_sae(model, 1, "residual", "standard")
    prompt = build_prompt(model, question)
    inputs = embed(model, prompt.ids, engine._features.get(model, prompt))
    with standing(engine, sae), torch.no_grad():
        edits = engine._edits(Steering(latents=(turn(sae, 0, "set", 50.0),)), prompt)
        plain = at_site(model, inputs, 2, "residual")
        with intervene(model.anatomy, [edits]):
            steered = at_site(model, inputs, 2, "residual")
    assert torch.equal(steered[:, 0], plain[:, 0])
    assert (steered[:, 1:] != plain[:, 1:]).any(-1).all()
