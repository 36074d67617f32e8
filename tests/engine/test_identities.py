"""The identities of METHODS.md §1, each against plain torch on the model's own forward pass."""

import numpy as np
import pytest
import torch

from engine.attribution.gradient import gradient
from engine.contract import Attribution, Question, Target
from engine.hooks import capture
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.running import answer_ids, embed, forward, picture_features, with_answer
from tests.engine import tiny


@pytest.fixture(scope="module")
def prompt(any_model: Loaded, question: Question) -> Prompt:
    return build_prompt(any_model, question)


@pytest.fixture(scope="module")
def answer(any_engine: LocalEngine, question: Question) -> list[int]:
    """The model's own answer, and one token more, so that there are always several."""
    return [*answer_ids(any_engine.ask(question).answer), 700]


@pytest.fixture(scope="module")
def gradient_scores(any_engine: LocalEngine, question: Question, answer: list[int]) -> Attribution:
    return any_engine.attribute(question, answer, Target(), top=10**6)


@pytest.fixture(scope="module")
def direct_scores(any_engine: LocalEngine, question: Question, answer: list[int]) -> Attribution:
    return any_engine.attribute(question, answer, Target(), "direct", top=10**6)


def mlp_gradients(loaded: Loaded, prompt: Prompt, answer: list[int]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """m_l(p) and g_l(p) = ∂S/∂m_l(p), each (n_layers, pos, d_model), and S: autograd at the MLPs' outputs."""
    outputs: list[torch.Tensor] = []

    def start(_module: torch.nn.Module, _args: object, result: torch.Tensor) -> torch.Tensor:
        return result.detach().requires_grad_(True)

    def keep(_module: torch.nn.Module, _args: object, result: torch.Tensor) -> None:
        result.retain_grad()
        outputs.append(result)

    handles = [loaded.model.get_input_embeddings().register_forward_hook(start)]
    handles += [layer.mlp.register_forward_hook(keep) for layer in tiny.decoder_of(loaded.model).layers]
    try:
        rows = loaded.model(**tiny.inputs(prompt, answer), use_cache=False).logits[0]
        target = tiny.span_logprob(rows, prompt, answer, 0, len(answer))
        target.backward()
    finally:
        for handle in handles:
            handle.remove()
    grads = [output.grad for output in outputs]
    assert all(grad is not None for grad in grads)
    return torch.cat([o.detach() for o in outputs]), torch.cat([g for g in grads if g is not None]), target.item()


def test_gradient_scores_of_a_layer_sum_to_what_its_mlp_gives_at_every_position(
    any_model: Loaded, prompt: Prompt, answer: list[int], gradient_scores: Attribution
) -> None:
    written, slopes, target = mlp_gradients(any_model, prompt, answer)
    whole = (written.double() * slopes.double()).sum(-1).numpy()
    assert np.abs(whole).max() > 0.01
    assert gradient_scores.positions.shape == whole.shape
    scale = np.abs(whole).max(axis=1, keepdims=True)
    assert np.abs(gradient_scores.positions - whole).max() < 1e-4 * scale.max()
    assert (np.abs(gradient_scores.positions - whole) / scale).max() < 1e-4
    assert gradient_scores.value == pytest.approx(target, abs=1e-4)


def test_the_gradient_of_a_neuron_is_its_write_vectors_product_with_the_mlps_gradient(
    any_model: Loaded, prompt: Prompt, answer: list[int], gradient_scores: Attribution
) -> None:
    """s = a · ⟨v, g⟩ per neuron, from activations that are recomputed from the MLP's input by its own weights."""
    _, slopes, _ = mlp_gradients(any_model, prompt, answer)
    entered: list[torch.Tensor] = []
    layers = tiny.decoder_of(any_model.model).layers
    handles = [layer.mlp.register_forward_pre_hook(lambda _m, args: entered.append(args[0][0])) for layer in layers]
    tiny.logits(any_model.model, prompt, answer)
    for handle in handles:
        handle.remove()
    for number, layer in enumerate(layers):
        mlp = layer.mlp
        activation = torch.nn.functional.silu(entered[number] @ mlp.gate_proj.weight.T) * (
            entered[number] @ mlp.up_proj.weight.T
        )
        expected = (activation * (slopes[number] @ mlp.down_proj.weight)).sum(0)
        ours = torch.from_numpy(gradient_scores.scores[number])
        assert float((ours - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_all_components_add_up_to_the_logit_and_neurons_to_their_mlps_share(
    any_model: Loaded, prompt: Prompt, answer: list[int], direct_scores: Attribution
) -> None:
    model = any_model.model
    decoder = tiny.decoder_of(model)
    parts: list[torch.Tensor] = []
    mlps: list[torch.Tensor] = []
    stream: list[torch.Tensor] = []

    def first(result: object) -> torch.Tensor:
        tensor = result[0] if isinstance(result, tuple) else result
        assert isinstance(tensor, torch.Tensor)
        return tensor[0] if tensor.ndim == 3 else tensor

    handles = [
        decoder.layers[0].register_forward_pre_hook(
            lambda _m, args, kwargs: parts.append((args[0] if args else kwargs["hidden_states"])[0]), with_kwargs=True
        ),
        decoder.norm.register_forward_pre_hook(lambda _m, args: stream.append(args[0][0])),
    ]
    for layer in decoder.layers:
        handles.append(layer.self_attn.register_forward_hook(lambda _m, _a, result: parts.append(first(result))))
        handles.append(layer.mlp.register_forward_hook(lambda _m, _a, result: mlps.append(first(result))))
    rows = tiny.logits(model, prompt, answer)
    for handle in handles:
        handle.remove()
    places = torch.arange(prompt.length - 1, prompt.length - 1 + len(answer))
    final = stream[0][places].double()
    rho = (final.pow(2).mean(-1, keepdim=True) + decoder.norm.variance_epsilon).sqrt()
    towards = model.lm_head.weight[answer].double() * decoder.norm.weight.double() / rho
    shares = [(part[places].double() * towards).sum(-1) for part in parts]
    from_mlps = [(part[places].double() * towards).sum(-1) for part in mlps]
    wanted = rows[places, answer].double()
    total = torch.stack(shares + from_mlps).sum(0)
    assert len(parts) == 1 + len(decoder.layers)
    assert float((total - wanted).abs().max()) < 1e-4 * float(torch.stack(shares + from_mlps).abs().max())
    assert direct_scores.value == pytest.approx(float(wanted.sum()), abs=1e-3)
    expected = torch.stack(from_mlps).numpy()
    measured = direct_scores.positions[:, places.numpy()]
    assert np.abs(measured - expected).max() < 1e-4 * np.abs(expected).max()
    outside = np.delete(direct_scores.positions, places.numpy(), axis=1)
    assert not outside.any()


@pytest.mark.parametrize("method", ["gradient", "direct"])
def test_the_score_of_a_span_is_the_sum_over_its_tokens(
    any_engine: LocalEngine, question: Question, answer: list[int], method: str
) -> None:
    whole = any_engine.attribute(question, answer, Target(), method)
    single = [any_engine.attribute(question, answer, Target(k, k + 1), method) for k in range(len(answer))]
    total = np.sum([one.scores for one in single], axis=0)
    assert np.abs(whole.scores - total).max() < 1e-4 * np.abs(total).max()
    assert whole.value == pytest.approx(sum(one.value for one in single), abs=1e-3)
    assert not np.allclose(single[0].scores, single[-1].scores)


@pytest.mark.parametrize("method", ["gradient", "direct"])
def test_permuting_neurons_permutes_scores(model: Loaded, question: Question, method: str) -> None:
    other = tiny.changed(model)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    mlp = tiny.decoder_of(other.model).layers[1].mlp
    with torch.no_grad():
        mlp.gate_proj.weight.copy_(mlp.gate_proj.weight[order])
        mlp.up_proj.weight.copy_(mlp.up_proj.weight[order])
        mlp.down_proj.weight.copy_(mlp.down_proj.weight[:, order])
    before = LocalEngine(model).attribute(question, [700, 701], Target(), method).scores
    after = LocalEngine(other).attribute(question, [700, 701], Target(), method).scores
    tolerance = 1e-4 * np.abs(before).max()
    assert np.abs(after[1] - before[1][order.numpy()]).max() < tolerance
    assert np.abs(after[[0, 2]] - before[[0, 2]]).max() < tolerance
    assert np.abs(after[1] - before[1]).max() > 10 * tolerance


@pytest.mark.parametrize("method", ["gradient", "direct"])
def test_a_neuron_that_writes_nothing_scores_nothing(model: Loaded, question: Question, method: str) -> None:
    other = tiny.changed(model)
    with torch.no_grad():
        tiny.decoder_of(other.model).layers[2].mlp.down_proj.weight[:, 5] = 0
    assert LocalEngine(model).attribute(question, [700, 701], Target(), method).scores[2, 5] != 0
    assert LocalEngine(other).attribute(question, [700, 701], Target(), method).scores[2, 5] == 0


def test_gradient_agrees_with_scaling_a_neurons_write_vector(
    any_model: Loaded, prompt: Prompt, answer: list[int], gradient_scores: Attribution
) -> None:
    """Central differences of S for v → (1 ± h) v, at the neurons of largest score and at a few that are not."""
    h = 0.05
    chosen = [(n.layer, n.index) for n in gradient_scores.neurons[:4]] + [(0, 7), (1, 7)]
    largest = abs(gradient_scores.neurons[0].score)
    measured, predicted = [], []
    for layer, index in chosen:
        column = tiny.decoder_of(any_model.model).layers[layer].mlp.down_proj.weight[:, index]
        kept = column.clone()
        values = []
        try:
            for factor in (1 + h, 1 - h):
                with torch.no_grad():
                    column.copy_(kept * factor)
                rows = tiny.logits(any_model.model, prompt, answer)
                values.append(float(tiny.span_logprob(rows.double(), prompt, answer, 0, len(answer))))
        finally:
            with torch.no_grad():
                column.copy_(kept)
        measured.append((values[0] - values[1]) / (2 * h))
        predicted.append(float(gradient_scores.scores[layer, index]))
    assert np.abs(np.array(measured) - np.array(predicted)).max() < 0.02 * largest


@pytest.mark.parametrize("method", ["gradient", "direct"])
def test_activations_taken_while_generating_equal_those_of_a_teacher_forced_pass(
    any_engine: LocalEngine, question: Question, method: str
) -> None:
    """`direct` reads activations off the generation, `gradient` runs once more: both equal what is asked for later."""
    asked = any_engine.ask(question, method)
    later = any_engine.attribute(question, answer_ids(asked.answer), Target(), method)
    scale = np.abs(later.scores).max()
    assert np.abs(asked.attribution.scores - later.scores).max() < 1e-4 * scale
    assert np.abs(asked.attribution.positions - later.positions).max() < 1e-4 * np.abs(later.positions).max()
    assert asked.attribution.value == pytest.approx(later.value, abs=1e-3)
    assert asked.attribution.modality_of_position == later.modality_of_position
    here = [(n.layer, n.index, n.peak) for n in asked.attribution.neurons[:5]]
    assert here == [(n.layer, n.index, pytest.approx(n.peak, abs=1e-3)) for n in later.neurons[:5]]


@pytest.mark.parametrize("likely_placeholder", [False, True])
def test_the_value_is_the_sum_of_the_tokens_own_log_probabilities(
    model: Loaded, question: Question, likely_placeholder: bool
) -> None:
    """Also where the model would like to write the picture's placeholder, which generation leaves out."""
    other = tiny.changed(model)
    if likely_placeholder:
        with torch.no_grad():
            other.model.lm_head.weight[tiny.IMAGE_ID] = other.model.lm_head.weight[[686, 700, 1392]].mean(0) * 2
    asked = LocalEngine(other).ask(question)
    assert asked.attribution.value == pytest.approx(sum(token.logprob for token in asked.answer.tokens), abs=1e-4)
    assert all(other.id != tiny.IMAGE_ID for token in asked.answer.tokens for other in token.alternatives)


def test_peak_is_the_activation_of_largest_magnitude(model: Loaded, question: Question) -> None:
    prompt, answer = build_prompt(model, question), [700, 701]
    embeddings = embed(model, with_answer(prompt, answer), picture_features(model, prompt.pixels))
    scored = gradient(model, embeddings, answer, Target())
    with capture(model.anatomy) as captured:
        forward(model, embeddings, 1)
    for layer, activation in enumerate(captured.layers()):
        values = activation[0].numpy()
        where = np.abs(values).argmax(0)
        assert np.allclose(scored.peaks[layer].numpy(), values[where, np.arange(48)], atol=1e-5)
