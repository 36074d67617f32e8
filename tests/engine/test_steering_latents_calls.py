"""Every call under a steering by latents: what it explains, its control, what it refuses, and that nothing stays."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from engine.contract import (
    Cancelled,
    LatentTurn,
    NeuronTurn,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
    saes,
)
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.sae.sae import Sae
from engine.turns import LATENT_VALUE_LIMIT
from tests.engine import tiny
from tests.engine.test_sae_influence import ANSWER, N, random_sae, standing
from tests.engine.test_steering_latents import active_ones, some, turn


def test_a_neurons_score_is_the_slope_under_the_steering(
    model: Loaded, engine: LocalEngine, question: Question
) -> None:
    """Neurons before the site act through H as well."""
    sae = random_sae(model, 1, "residual", "jumprelu")
    h = 0.02
    with standing(engine, sae):
        chosen = active_ones(engine, question, sae)[:6]
        latents = tuple(turn(sae, c, "scale", 4.0) for c in chosen)
        scores = engine.attribute(question, ANSWER, Target(), steering=Steering(latents=latents)).scores
        unsteered = engine.attribute(question, ANSWER, Target()).scores
        places = np.argsort(-np.abs(scores[:2]), axis=None)[:5]
        for layer, index in zip(*np.unravel_index(places, scores[:2].shape), strict=True):
            up, down = (
                engine.steer(
                    question,
                    ANSWER,
                    Steering(neurons=(NeuronTurn(int(layer), int(index), "scale", 1 + s * h),), latents=latents),
                )
                for s in (1, -1)
            )
            slope = (sum(up.original_under_steered) - sum(down.original_under_steered)) / (2 * h)
            assert slope == pytest.approx(float(scores[layer, index]), rel=0.05, abs=5e-3)
    assert np.abs(scores - unsteered).max() > 0.05


@pytest.mark.parametrize("method", ["direct", "pan", "logprob_increase", "integrated", "ablation"])
@pytest.mark.parametrize("site", saes.SITES)
def test_every_method_explains_the_steered_answer(
    model: Loaded, engine: LocalEngine, question: Question, method: str, site: str
) -> None:
    # TopK's and JumpReLU's jumps have no derivative: the path of `integrated` does not add up over them.
    sae = random_sae(model, 1, site, "standard" if method == "integrated" else "topk")
    with standing(engine, sae):
        found = engine.attribute(question, ANSWER, Target(), method, Steering(latents=some(sae)), top=5)
        plain = engine.attribute(question, ANSWER, Target(), method, top=5)
    assert all(check.holds for check in found.checks), found.checks
    assert np.abs(found.scores - plain.scores).max() > 0
    assert found.value != plain.value


def test_all_other_calls_take_it(model: Loaded, engine: LocalEngine, question: Question) -> None:
    sae = random_sae(model, 0, "mlp", "topk")
    steering = Steering(latents=some(sae))
    with standing(engine, sae):
        steered = sum(engine.steer(question, ANSWER, steering).original_under_steered)
        assert engine.input_heat(question, ANSWER, Target(), steering).value == pytest.approx(steered, abs=1e-4)
        assert engine.latent_influence(question, ANSWER, sae.info.name, steering=steering).value == pytest.approx(
            steered, abs=1e-4
        )
        faith = engine.faithfulness(question, ANSWER, Target(), steering=steering)
        assert faith != engine.faithfulness(question, ANSWER, Target())
        asked = engine.ask(question, steering=steering)
        assert asked.attribution.value == pytest.approx(sum(t.logprob for t in asked.answer.tokens), abs=1e-3)


def test_the_control_deals_to_other_active_latents(model: Loaded, engine: LocalEngine, question: Question) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)
    with standing(engine, sae):
        active = {int(c) for c in engine._active(sae, prompt).nonzero()}
        steering = Steering(latents=some(sae), control=1)
        (own,), (dealt,), (again,), (other,) = (
            engine._edits(dataclasses.replace(steering, control=seed), prompt).latents for seed in (None, 1, 1, 2)
        )
        drawn = set(dealt.edit.index.tolist())
        assert drawn.isdisjoint(own.edit.index.tolist())
        assert drawn <= active
        assert sorted(zip(dealt.edit.scale.tolist(), dealt.edit.shift.tolist(), strict=True)) == sorted(
            zip(own.edit.scale.tolist(), own.edit.shift.tolist(), strict=True)
        )
        assert dealt.edit.index.tolist() == again.edit.index.tolist() != other.edit.index.tolist()
        assert engine.steer(question, ANSWER, steering) == engine.steer(question, ANSWER, steering)
        many = tuple(turn(sae, c, "set", 0.0) for c in range(N // 2 + 1))
        with pytest.raises(RequestError, match="too many"):
            engine.steer(question, ANSWER, Steering(latents=many, control=1))
        half = Steering(latents=many[: N // 2], control=1)
        assert len(engine._edits(half, prompt).latents[0].edit.index) == N // 2


def test_what_cannot_be_turned_is_refused_with_the_reason(engine: LocalEngine, question: Question) -> None:
    sae = random_sae(engine.loaded, 1, "residual", "topk")
    unfit = dataclasses.replace(random_sae(engine.loaded, 0, "mlp", "topk"))
    unfit = dataclasses.replace(unfit, info=dataclasses.replace(unfit.info, fits="It belongs to other weights."))
    refused: list[tuple[LatentTurn, type[RequestError], str]] = [
        (LatentTurn(f"{sae.info.name}s", 0, "scale", 0.0), UnknownName, f"Did you mean .*{sae.info.name}"),
        (turn(unfit, 0, "scale", 0.0), RequestError, "other weights"),
        (turn(sae, N, "scale", 0.0), UnknownName, f"from 0 to {N - 1}"),
        (turn(sae, -1, "scale", 0.0), UnknownName, f"from 0 to {N - 1}"),
        (turn(sae, 0, "delete", 0.0), UnknownName, "scale, add, set"),
        (turn(sae, 0, "set", float("nan")), RequestError, "finite"),
        (turn(sae, 0, "add", float("inf")), RequestError, "finite"),
        (turn(sae, 0, "scale", -1.01 * LATENT_VALUE_LIMIT), RequestError, "10000"),
    ]
    with standing(engine, sae, unfit):
        for one, error, words in refused:
            steering = Steering(latents=(one,))
            for call in (
                lambda s: engine.steer(question, ANSWER, s),
                lambda s: engine.ask(question, steering=s),
                lambda s: engine.answers([(question, s)]),
                lambda s: engine.sweep(question, ANSWER, s, NeuronTurn(0, 0, "scale", 1.0), (1.0,)),
            ):
                with pytest.raises(error, match=words):
                    call(steering)
        words_only = Question(None, "why?", 2)
        with pytest.raises(RequestError, match="no image positions"):
            engine.steer(words_only, ANSWER, Steering(latents=some(sae), positions="image"))


def test_nothing_stays_after_an_error_or_a_stop(
    model: Loaded, engine: LocalEngine, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)
    before = tiny.logits(model.model, prompt, ANSWER)
    steering = Steering(latents=some(sae))
    with standing(engine, sae):
        for error in (RuntimeError, KeyboardInterrupt):

            def fail(*_arguments: object, kind: type[BaseException] = error) -> Any:
                raise kind

            with monkeypatch.context() as patch:
                patch.setattr(Sae, "encode", fail)
                for call in (
                    lambda: engine.steer(question, ANSWER, steering),
                    lambda: engine.attribute(question, ANSWER, Target(), steering=steering),
                ):
                    with pytest.raises(error):
                        call()
        seen: list[object] = []
        with pytest.raises(Cancelled):
            engine.steer(question, ANSWER, steering, seen.append, lambda: len(seen) >= 1)
        assert len(seen) == 1
        assert tiny.all_hooks(model.model) == 0
        assert torch.equal(tiny.logits(model.model, prompt, ANSWER), before)
