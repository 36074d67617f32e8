"""Influence of latents against plain autograd, finite differences and exact zeroing, on the tiny models and the
built-in one; no hook stays."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from engine.contract import MODALITIES, Cancelled, Question, RequestError, Steering, saes
from engine.contract import NeuronTurn as Turn
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.sae import influence
from engine.sae.sae import Sae, fit_of, make
from tests.engine import tiny

ANSWER = [700, 701]
N = 40


def random_sae(loaded: Loaded, layer: int, site: str, architecture: str, seed: int = 0) -> Sae:
    """Random directions; about a fifth of the latents are active at a position."""
    d = loaded.anatomy.d_model
    g = torch.Generator().manual_seed(seed)
    W = torch.nn.functional.normalize(torch.randn(N, d, generator=g), dim=1)
    tensors = {
        "W_enc": W.T + 0.05 * torch.randn(d, N, generator=g),
        "W_dec": W,
        "b_enc": -0.2 * torch.rand(N, generator=g),
        "b_dec": 0.1 * torch.randn(d, generator=g),
    }
    if architecture == "jumprelu":
        tensors["threshold"] = 0.6 * torch.rand(N, generator=g)
    k = 6 if architecture == "topk" else None
    return make(saes.SaeInfo("", f"{architecture}-{site}-{layer}", layer, site, architecture, 0, 0, k, "", ""), tensors)


CASES = [(0, "mlp", "standard"), (1, "residual", "topk"), (1, "attention", "jumprelu"), (2, "residual", "jumprelu")]


@contextmanager
def standing(engine: LocalEngine, *all_saes: Sae) -> Iterator[None]:
    """These, and no others, attached."""
    before, engine._standing = engine._standing, {sae.info.name: sae for sae in all_saes}
    try:
        yield
    finally:
        engine._standing = before


# Plain autograd: the model's own forward pass and a hook of the test's own


def place(model: Any, info: saes.SaeInfo) -> Any:
    layer = tiny.decoder_of(model).layers[info.layer]
    return {"residual": layer, "mlp": layer.mlp, "attention": layer.self_attn}[info.site]


def plain(
    loaded: Loaded, prompt: Prompt, sae: Sae, change: Any, ids: list[int]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(Σ log p of `ids`, the leaf); `change(Z)` gives (what goes on, leaf) for Z (pos, d_model)."""
    leaves: list[Any] = []

    def hook(_module: Any, _args: Any, result: Any) -> Any:
        given = result[0] if isinstance(result, tuple) else result
        made, leaf = change(given[0].detach())
        leaves.append(leaf)
        return (made[None], *result[1:]) if isinstance(result, tuple) else made[None]

    handle = place(loaded.model, sae.info).register_forward_hook(hook)
    try:
        rows = loaded.model(**tiny.inputs(prompt, ids), use_cache=False).logits[0]
    finally:
        handle.remove()
    return tiny.span_logprob(rows, prompt, ids, 0, len(ids)), leaves[0]


def sigma(sae: Sae, x: torch.Tensor) -> torch.Tensor:
    """σ, written out entry by entry."""
    given = (x.double() @ sae.W_enc.double() + sae.b_enc.double()).numpy()
    made = np.maximum(given, 0)
    if sae.threshold is not None:
        made[given <= sae.threshold.double().numpy()] = 0
    if sae.info.k is not None:
        for row in made:
            row[np.argsort(-row)[sae.info.k :]] = 0
    return torch.from_numpy(made).float()


def by_autograd(loaded: Loaded, prompt: Prompt, sae: Sae, keep: bool, first: int) -> tuple[np.ndarray, float]:
    def change(Z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        H = sigma(sae, Z).requires_grad_(True)
        made = H @ sae.W_dec + sae.b_dec
        error = (Z - made).detach() if keep else 0
        return torch.cat([Z[:first], (made + error)[first:]]), H

    value, leaf = plain(loaded, prompt, sae, change, ANSWER)
    assert leaf is not None
    (slope,) = torch.autograd.grad(value, [leaf])
    return (leaf * slope).detach().double().numpy()[first:], value.item()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("layer", "site", "architecture"), CASES)
def test_it_equals_plain_gradient_times_activation(
    any_model: Loaded, any_engine: LocalEngine, question: Question, layer: int, site: str, architecture: str, keep: bool
) -> None:
    sae = random_sae(any_model, layer, site, architecture)
    prompt = build_prompt(any_model, question)
    entries, value = by_autograd(any_model, prompt, sae, keep, 1)
    with standing(any_engine, sae):
        settings = saes.Settings(keep_error=keep)
        found = any_engine.latent_influence(question, ANSWER, sae.info.name, settings, top=N)
        mean = any_engine.latent_influence(
            question, ANSWER, sae.info.name, dataclasses.replace(settings, positive="mean")
        )
    scale = np.abs(entries).max()
    assert scale > 0
    assert np.abs(found.influence - entries.clip(0).mean(0)).max() < 1e-4 * scale
    assert np.abs(mean.influence - entries.mean(0).clip(0)).max() < 1e-4 * scale
    assert found.value == pytest.approx(value, abs=2e-4)
    kinds = np.array([*prompt.modality, "answer", "answer"])[1:]
    assert found.grid is not None
    for latent in found.latents:
        column = entries[:, latent.index]
        parts = [column[kinds == kind].sum() for kind in MODALITIES]
        assert np.abs(np.subtract(latent.by_modality, parts)).max() < 1e-3 * scale
        assert latent.heat is not None
        assert np.abs(latent.heat.ravel() - column[kinds == "image"]).max() < 1e-4 * scale
    assert tiny.all_hooks(any_model.model) == 0


def test_with_the_error_kept_the_logits_are_the_models_own_to_the_bit(model: Loaded, question: Question) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)
    engine = LocalEngine(model)
    seen = engine._features.get(model, prompt)
    case = influence.Case.of(model, sae, saes.DEFAULT, prompt, seen, ANSWER)
    before = case.run(lambda values, call: values)
    caught: list[torch.Tensor] = []
    run = influence.Case.run

    def spy(self: influence.Case, change: influence.Change, rows: int = 1) -> torch.Tensor:
        caught.append(run(self, change, rows))
        return caught[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(influence.Case, "run", spy)
        influence.influence(case, None)
    assert torch.equal(caught[0].detach(), before)


def test_finite_differences(model: Loaded, engine: LocalEngine, question: Question) -> None:
    """Scaling all of one latent's entries by 1 ± h moves S by h × their signed sum."""
    sae = random_sae(model, 1, "residual", "jumprelu")
    prompt = build_prompt(model, question)
    with standing(engine, sae):
        found = engine.latent_influence(question, ANSWER, sae.info.name, top=N)
    largest = sorted(found.latents, key=lambda latent: -abs(sum(latent.by_modality)))[:3]
    h = 0.01
    for latent in largest:

        def scaled(Z: torch.Tensor, factor: float, c: int = latent.index) -> tuple[torch.Tensor, None]:
            write = sigma(sae, Z)[:, c : c + 1] * sae.W_dec[c] * factor
            write[0] = 0
            return Z + write, None

        with torch.no_grad():
            up, down = (
                float(plain(model, prompt, sae, lambda Z, s=sign: scaled(Z, s * h), ANSWER)[0]) for sign in (1, -1)
            )
        expected = sum(latent.by_modality)
        assert (up - down) / (2 * h) == pytest.approx(expected, rel=0.03, abs=2e-3)


@pytest.mark.parametrize("keep", [True, False])
def test_ablation_is_the_loss_of_a_plain_run_without_that_latent(
    model: Loaded, engine: LocalEngine, question: Question, keep: bool
) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)

    def without(Z: torch.Tensor, gone: int | None) -> tuple[torch.Tensor, None]:
        H = sigma(sae, Z)
        made = H @ sae.W_dec + sae.b_dec
        error = Z - made
        if gone is not None:
            H[:, gone] = 0
        made = H @ sae.W_dec + sae.b_dec + (error if keep else 0)
        return torch.cat([Z[:1], made[1:]]), None

    settings = saes.Settings(keep_error=keep)
    with standing(engine, sae):
        found = engine.latent_influence(question, ANSWER, sae.info.name, settings, top=N)
        active = np.flatnonzero(found.active).tolist()
        lost = engine.latent_ablation(question, ANSWER, sae.info.name, [*active, active[0]], settings)
    with torch.no_grad():
        whole = float(plain(model, prompt, sae, lambda Z: without(Z, None), ANSWER)[0])
        for k in range(0, len(active), 5):
            expected = whole - float(plain(model, prompt, sae, lambda Z, c=active[k]: without(Z, c), ANSWER)[0])
            assert float(lost[k]) == pytest.approx(expected, abs=5e-4)
    assert lost[-1] == lost[0]
    assert np.abs(lost).max() > 1e-3


def test_a_zero_decoder_row_has_no_influence(model: Loaded, engine: LocalEngine, question: Question) -> None:
    sae = random_sae(model, 1, "residual", "standard")
    with standing(engine, sae):
        best = engine.latent_influence(question, ANSWER, sae.info.name).latents[0]
        assert best.influence > 0
        sae.W_dec[best.index] = 0
        found = engine.latent_influence(question, ANSWER, sae.info.name, top=N)
        assert found.active[best.index]
        assert found.influence[best.index] == 0
        assert engine.latent_ablation(question, ANSWER, sae.info.name, [best.index])[0] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("architecture", ["topk", "jumprelu", "standard"])
def test_zeros_are_exact(model: Loaded, architecture: str) -> None:
    sae = random_sae(model, 1, "residual", architecture)
    Z = torch.randn(50, model.anatomy.d_model, generator=torch.Generator().manual_seed(1))
    H = sae.encode(Z)
    expected = sigma(sae, Z)
    assert torch.equal(H == 0, expected == 0)
    assert (H - expected).abs().max() < 1e-5
    assert (H == 0).any()
    if architecture == "topk":
        assert int((H > 0).sum(1).max()) <= 6
    if sae.threshold is not None:
        given = sae.before(Z)
        assert ((given > 0) & (given <= sae.threshold)).any()
    explained, l0, active = fit_of(sae, Z)
    assert l0 == pytest.approx(float((expected > 0).float().sum(1).mean()))
    lost = (Z - (expected @ sae.W_dec + sae.b_dec)).pow(2).sum() / (Z - Z.mean(0)).pow(2).sum()
    assert explained == pytest.approx(1 - float(lost), abs=1e-4)
    assert torch.equal(active, (expected > 0).any(0))


def test_the_first_position_counts_only_where_it_is_asked_for(
    model: Loaded, engine: LocalEngine, question: Question
) -> None:
    sae = random_sae(model, 0, "mlp", "standard")
    prompt = build_prompt(model, question)
    inside, value = by_autograd(model, prompt, sae, True, 0)
    with standing(engine, sae):
        found = engine.latent_influence(question, ANSWER, sae.info.name, saes.Settings(bos=True))
    assert np.abs(found.influence - inside.clip(0).mean(0)).max() < 1e-4 * np.abs(inside).max()
    assert found.value == pytest.approx(value, abs=2e-4)


def test_a_steered_answer_is_explained_as_steered(model: Loaded, engine: LocalEngine, question: Question) -> None:
    sae = random_sae(model, 2, "residual", "topk")
    steering = Steering(neurons=tuple(Turn(0, index, "set", 3.0) for index in range(4)))
    with standing(engine, sae):
        steered = engine.latent_influence(question, ANSWER, sae.info.name, steering=steering)
        plain_one = engine.latent_influence(question, ANSWER, sae.info.name)
    asked = engine.steer(question, ANSWER, steering)
    assert steered.value == pytest.approx(sum(asked.original_under_steered), abs=1e-4)
    assert abs(steered.value - plain_one.value) > 1e-3


def test_answers_without_latents_equal_greedy_decoding_with_a_plain_hook(
    model: Loaded, engine: LocalEngine, question: Question
) -> None:
    """With the cache and without it, each step a whole run."""
    sae = random_sae(model, 1, "residual", "topk")
    prompt = build_prompt(model, question)
    gone = list(range(0, N, 2))

    def change(_module: Any, _args: Any, result: Any) -> Any:
        given = result[0] if isinstance(result, tuple) else result
        H = sigma(sae, given[0])
        H[:, gone] = 0
        made = torch.cat([given[0, :1], (H @ sae.W_dec + sae.b_dec)[1:]])[None]
        return (made, *result[1:]) if isinstance(result, tuple) else made

    handle = place(model.model, sae.info).register_forward_hook(change)
    try:
        expected, _ = tiny.greedy(model.model, prompt, 5)
    finally:
        handle.remove()
    with standing(engine, sae):
        settings = saes.Settings(keep_error=False)
        whole, without = engine.latent_answers(question, sae.info.name, [[], gone], settings)
        kept, _ = engine.latent_answers(question, sae.info.name, [[], gone])
    assert [token.id for token in without.tokens] == expected
    assert [token.id for token in whole.tokens] != expected
    assert [token.id for token in kept.tokens] == tiny.greedy(model.model, prompt, 5)[0]


def test_no_hook_stays_after_an_error(
    model: Loaded, engine: LocalEngine, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    before = tiny.logits(model.model, build_prompt(model, question), ANSWER)
    for error in (RuntimeError, KeyboardInterrupt):

        def fail(*_arguments: object, kind: type[BaseException] = error) -> Any:
            raise kind

        with standing(engine, sae), monkeypatch.context() as patch:
            patch.setattr(Sae, "encode", fail)
            for call in (engine.latent_influence, lambda *a: engine.latent_ablation(*a, [0])):
                with pytest.raises(error):
                    call(question, ANSWER, sae.info.name)
            with pytest.raises(error):
                engine.latent_answers(question, sae.info.name, [[0]])
    with standing(engine, sae), pytest.raises(Cancelled):
        engine.latent_ablation(question, ANSWER, sae.info.name, list(range(N)), cancelled=lambda: True)
    assert tiny.all_hooks(model.model) == 0
    assert torch.equal(tiny.logits(model.model, build_prompt(model, question), ANSWER), before)


def test_warnings_say_what_is_out_of_range(model: Loaded, engine: LocalEngine, question: Question) -> None:
    sae = random_sae(model, 1, "residual", "topk")
    card = {"explained_variance": 0.9, "l0": 60.0}
    other = dataclasses.replace(sae, info=dataclasses.replace(sae.info, card=card, model_revision="another"))
    with standing(engine, other):
        fit = engine.latent_influence(question, ANSWER, sae.info.name).fit
    assert fit.explained_variance < 0.5
    assert len(fit.warnings) == 3
    share = f"explains only {100 * fit.explained_variance:.0f} % of"
    assert "explains nothing" in fit.warnings[0] if fit.explained_variance < 0 else share in fit.warnings[0]
    assert "its card says 60" in fit.warnings[1]
    assert "another" in fit.warnings[2]


def test_an_sae_that_does_not_fit_is_refused_with_the_reason(engine: LocalEngine, question: Question) -> None:
    sae = random_sae(engine.loaded, 1, "residual", "topk")
    unfit = dataclasses.replace(sae, info=dataclasses.replace(sae.info, fits="It belongs to other weights."))
    with standing(engine, unfit), pytest.raises(RequestError, match="other weights"):
        engine.latent_influence(question, ANSWER, sae.info.name)
