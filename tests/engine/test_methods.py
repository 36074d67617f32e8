"""`pan`, `logprob_increase`, `integrated` and `ablation`, each against plain torch on the model's own forward pass."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine.attribution import ablation as ablating
from engine.attribution.effects import subject_of
from engine.attribution.integrated import COMPLETE, integrated
from engine.contract import METHODS, Cancelled, NeuronTurn, Question, RequestError, Steering, Target
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.running import embed, picture_features, with_answer
from engine.targets import Part
from tests.engine import tiny

ANSWER = [700, 701, 686]
LINEAR = [method for method in METHODS if method not in ("pan", "ablation")]
"""Methods whose score of a span is the sum over its tokens."""


@pytest.fixture(scope="module")
def prompt(model: Loaded, question: Question) -> Prompt:
    return build_prompt(model, question)


@pytest.fixture(scope="module")
def picturing(builtin_engine: LocalEngine) -> tuple[LocalEngine, Question, list[int]]:
    question = Question(tiny.picture(), "what is on the left?", 4)
    return builtin_engine, question, [token.id for token in builtin_engine.ask(question).answer.tokens]


def run(loaded: Loaded, prompt: Prompt, answer: list[int]) -> dict[str, list[torch.Tensor]]:
    """What this file's hooks see in one pass: embedding, attention, mlp, activation, final; each (pos, width)."""
    seen: dict[str, list[torch.Tensor]] = {}

    def keep(name: str, value: object) -> None:
        tensor = value[0] if isinstance(value, tuple) else value
        assert isinstance(tensor, torch.Tensor)
        seen.setdefault(name, []).append(tensor.reshape(-1, tensor.shape[-1]).detach().double())

    decoder = tiny.decoder_of(loaded.model)
    handles = [decoder.norm.register_forward_pre_hook(lambda _m, args: keep("final", args[0]))]
    handles.append(
        decoder.layers[0].register_forward_pre_hook(
            lambda _m, args, kwargs: keep("embedding", args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    )
    for layer in decoder.layers:
        handles.append(layer.self_attn.register_forward_hook(lambda _m, _a, out: keep("attention", out)))
        handles.append(layer.mlp.register_forward_hook(lambda _m, _a, out: keep("mlp", out)))
        handles.append(layer.mlp.down_proj.register_forward_pre_hook(lambda _m, args: keep("activation", args[0])))
    tiny.logits(loaded.model, prompt, answer)
    for handle in handles:
        handle.remove()
    return seen


def spoken(loaded: Loaded, prompt: Prompt, answer: list[int], start: int = 0, end: int | None = None) -> float:
    """S of a span, in float64 behind the model's own float32 logits."""
    rows = tiny.logits(loaded.model, prompt, answer).double().log_softmax(-1)
    first = prompt.length - 1
    return float(sum(rows[first + k, answer[k]] for k in range(start, len(answer) if end is None else end)))


def test_pan_is_the_first_tokens_product_with_the_unembedding(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    result = engine.attribute(question, ANSWER, Target(1), "pan")
    seen, at = run(model, prompt, ANSWER), prompt.length
    towards = model.model.lm_head.weight[ANSWER[1]].double()
    for number, layer in enumerate(tiny.decoder_of(model.model).layers):
        expected = seen["activation"][number][at] * (layer.mlp.down_proj.weight.double().T @ towards)
        assert np.abs(result.scores[number] - expected.detach().numpy()).max() < 1e-4 * float(expected.abs().max())
    parts = [part[at] @ towards for kind in ("embedding", "attention", "mlp") for part in seen[kind]]
    assert result.value == pytest.approx(float(sum(parts)), rel=1e-4)
    assert not np.delete(result.positions, at, axis=1).any()
    first = engine.attribute(question, ANSWER, Target(1, 2), "pan")
    assert np.array_equal(result.scores, first.scores)


def test_logprob_increase_is_exact_for_each_neuron_alone(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    result = engine.attribute(question, ANSWER, Target(0, 2), "logprob_increase")
    assert result.value == pytest.approx(spoken(model, prompt, ANSWER, 0, 2), abs=1e-4)
    seen, decoder = run(model, prompt, ANSWER), tiny.decoder_of(model.model)
    head, gain = model.model.lm_head.weight.detach().double(), decoder.norm.weight.detach().double()
    largest = np.abs(result.scores).max()
    assert largest > 1e-3
    for number, index in [(n.layer, n.index) for n in result.neurons[:5]] + [(0, 3), (1, 9), (2, 40)]:
        total = 0.0
        for k in range(2):
            at = prompt.length - 1 + k
            rho = (seen["final"][0][at].pow(2).mean() + decoder.norm.variance_epsilon).sqrt()
            before = seen["embedding"][0][at] + sum(part[at] for part in seen["attention"][: number + 1])
            before = before + sum((part[at] for part in seen["mlp"][:number]), torch.zeros(32).double())
            vector = decoder.layers[number].mlp.down_proj.weight[:, index].detach().double()
            after = before + seen["activation"][number][at, index] * vector
            one, other = ((head @ (stream * gain / rho)).log_softmax(-1)[ANSWER[k]] for stream in (after, before))
            total += float(one - other)
        assert float(result.scores[number, index]) == pytest.approx(total, abs=2e-4 * float(largest))


def test_logprob_increase_explains_no_logits(engine: LocalEngine, question: Question) -> None:
    with pytest.raises(RequestError, match="log-probabilities"):
        engine.attribute(question, ANSWER, Target(quantity="logit"), "logprob_increase")


def gated(loaded: Loaded, prompt: Prompt, answer: list[int], alpha: float) -> tuple[float, torch.Tensor]:
    """(S, ∂S/∂gate (n_layers, pos, d_mlp)) with every activation multiplied by a gate of value α."""
    gates = [torch.full((prompt.length + len(answer), 48), alpha, requires_grad=True) for _ in range(3)]

    @contextlib.contextmanager
    def gating() -> Iterator[None]:
        with tiny.edited(loaded.model, lambda number, activation: activation * gates[number]):
            yield

    with gating():
        rows = loaded.model(**tiny.inputs(prompt, answer), use_cache=False).logits[0]
    value = tiny.span_logprob(rows, prompt, answer, 0, len(answer))
    return float(value.detach()), torch.stack(torch.autograd.grad(value, gates))


def test_integrated_is_the_integral_over_all_gates(model: Loaded, question: Question, prompt: Prompt) -> None:
    """Against a midpoint rule with many more steps on gates of this test's own."""
    inputs = embed(model, with_answer(prompt, ANSWER), picture_features(model, prompt.pixels))
    ours = integrated(model, inputs, ANSWER, Target(), steps=24)
    steps = 160
    mean = sum(gated(model, prompt, ANSWER, (k + 0.5) / steps)[1] for k in range(steps)) / steps
    assert isinstance(mean, torch.Tensor)
    assert float((torch.stack(ours.scores) - mean).abs().max()) < 0.02 * float(mean.abs().max())
    given = gated(model, prompt, ANSWER, 1.0)[0] - gated(model, prompt, ANSWER, 0.0)[0]
    assert sum(float(layer.sum()) for layer in ours.scores) == pytest.approx(given, rel=0.02, abs=0.02)
    (check,) = [check for check in ours.checks if check.name == COMPLETE]
    assert check.holds
    coarse = integrated(model, inputs, ANSWER, Target(), steps=1)
    assert abs(sum(float(layer.sum()) for layer in coarse.scores) - given) > abs(
        sum(float(layer.sum()) for layer in ours.scores) - given
    )


def test_integrated_at_one_is_gradient(model: Loaded, prompt: Prompt, engine: LocalEngine, question: Question) -> None:
    """The gates' derivative at α = 1, by this test's autograd, is the `gradient` score."""
    slopes = gated(model, prompt, ANSWER, 1.0)[1].sum(1).numpy()
    assert np.abs(engine.attribute(question, ANSWER, Target()).scores - slopes).max() < 1e-4 * np.abs(slopes).max()


def test_ablation_is_weight_surgery(model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt) -> None:
    result = engine.attribute(question, ANSWER, Target(), "ablation", top=144)
    whole = spoken(model, prompt, ANSWER)
    assert result.value == pytest.approx(whole, abs=1e-4)
    for neuron in [*result.neurons[:6], *result.neurons[-2:]]:
        column = tiny.decoder_of(model.model).layers[neuron.layer].mlp.down_proj.weight[:, neuron.index]
        kept = column.clone()
        with torch.no_grad():
            column.zero_()
            lost = whole - spoken(model, prompt, ANSWER)
            column.copy_(kept)
        assert neuron.score == pytest.approx(lost, abs=2e-4)
        assert sum(neuron.by_modality) == pytest.approx(neuron.score, abs=1e-5)
    assert abs(result.neurons[0].score) > 0.01
    assert count_hooks(model.model) == 0


def test_ablations_parts_are_growing_sets_of_positions(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    result = engine.attribute(question, ANSWER, Target(), "ablation")
    best = max(result.neurons, key=lambda neuron: abs(neuron.by_modality[0]))
    whole, image = spoken(model, prompt, ANSWER), torch.tensor(prompt.image_positions)

    def edit(layer: int, activation: torch.Tensor) -> torch.Tensor:
        changed = activation.clone()
        if layer == best.layer:
            changed[:, image, best.index] = 0
        return changed

    with tiny.edited(model.model, edit):
        lost = whole - spoken(model, prompt, ANSWER)
    assert best.by_modality[0] == pytest.approx(lost, abs=2e-4)
    assert abs(best.by_modality[0]) > 1e-3


def test_mean_ablation_and_a_chosen_few(model: Loaded, prompt: Prompt) -> None:
    features = picture_features(model, prompt.pixels)
    subject = subject_of(model, prompt, features, [Part(1, tuple(ANSWER), Target(0, 3))])
    scored = ablating.ablation(subject, [5, 100], to="mean", batch=3)
    totals = torch.stack([layer.sum(0) for layer in scored.scores])
    assert torch.nonzero(totals.flatten()).flatten().tolist() == [5, 100]
    mean = run(model, prompt, ANSWER)["activation"][2][:, 4].mean().float()

    def edit(layer: int, activation: torch.Tensor) -> torch.Tensor:
        changed = activation.clone()
        if layer == 2:
            changed[..., 4] = mean
        return changed

    whole = spoken(model, prompt, ANSWER)
    with tiny.edited(model.model, edit):
        assert float(totals[2, 4]) == pytest.approx(whole - spoken(model, prompt, ANSWER), abs=2e-4)


def test_candidates_are_the_strongest_and_some_others_always_the_same() -> None:
    totals = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    chosen = ablating.candidates(totals, 30, 10)
    strongest = totals.abs().flatten().topk(30).indices.tolist()
    assert len(set(chosen)) == 40
    assert set(strongest) <= set(chosen)
    assert chosen == sorted(chosen) == ablating.candidates(totals, 30, 10)
    assert ablating.candidates(torch.ones(2, 100)) == list(range(200))


@pytest.mark.parametrize("method", ["integrated", "ablation"])
def test_long_methods_stop_between_steps(engine: LocalEngine, question: Question, method: str) -> None:
    calls: list[int] = []

    def cancelled() -> bool:
        calls.append(1)
        return len(calls) > 3

    with pytest.raises(Cancelled):
        engine.attribute(question, ANSWER, Target(), method, cancelled=cancelled)
    assert len(calls) == 4
    assert count_hooks(engine.loaded.model) == 0


@pytest.mark.parametrize("method", LINEAR)
def test_the_score_of_a_span_is_the_sum_over_its_tokens(engine: LocalEngine, question: Question, method: str) -> None:
    whole = engine.attribute(question, ANSWER, Target(), method)
    parts = [engine.attribute(question, ANSWER, Target(k, k + 1), method).scores for k in range(len(ANSWER))]
    assert np.abs(whole.scores - np.sum(parts, axis=0)).max() < 1e-4 * np.abs(whole.scores).max()


@pytest.mark.parametrize("method", ["pan", "logprob_increase", "integrated", "ablation"])
def test_permuting_neurons_permutes_scores_and_one_that_writes_nothing_scores_nothing(
    model: Loaded, question: Question, method: str
) -> None:
    other = tiny.changed(model)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    mlp = tiny.decoder_of(other.model).layers[1].mlp
    with torch.no_grad():
        mlp.gate_proj.weight.copy_(mlp.gate_proj.weight[order])
        mlp.up_proj.weight.copy_(mlp.up_proj.weight[order])
        mlp.down_proj.weight.copy_(mlp.down_proj.weight[:, order])
    before = LocalEngine(model).attribute(question, ANSWER, Target(), method).scores
    after = LocalEngine(other).attribute(question, ANSWER, Target(), method).scores
    tolerance = 2e-4 * np.abs(before).max()
    assert np.abs(after[1] - before[1][order.numpy()]).max() < tolerance
    assert np.abs(after[1] - before[1]).max() > 10 * tolerance
    assert before[2, 5] != 0
    with torch.no_grad():
        tiny.decoder_of(other.model).layers[2].mlp.down_proj.weight[:, 5] = 0
    assert LocalEngine(other).attribute(question, ANSWER, Target(), method).scores[2, 5] == 0


@pytest.mark.parametrize("method", list(METHODS))
def test_methods_explain_the_steered_model_and_repeat_themselves(
    engine: LocalEngine, question: Question, method: str
) -> None:
    steering = Steering(neurons=(NeuronTurn(1, 3, "set", 0.0), NeuronTurn(0, 2, "scale", 2.0)))
    steered = engine.attribute(question, ANSWER, Target(), method, steering)
    again = engine.attribute(question, ANSWER, Target(), method, steering)
    assert np.array_equal(steered.scores, again.scores)
    assert steered.scores[1, 3] == 0
    assert engine.attribute(question, ANSWER, Target(), method).scores[1, 3] != 0
    assert count_hooks(engine.loaded.model) == 0


@pytest.mark.parametrize("method", ["pan", "logprob_increase", "integrated"])
def test_the_built_in_model_is_explained_by_every_method(
    picturing: tuple[LocalEngine, Question, list[int]], method: str
) -> None:
    engine, question, ids = picturing
    result = engine.attribute(question, ids, Target(0, 1), method)
    assert all(check.holds for check in result.checks)
    assert np.abs(result.scores).max() > 0
    assert (result.heat is not None) == (method == "integrated")
