"""Gradient × input of the embeddings against plain autograd, and against scaling a patch's features on every family."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from engine.attribution.effects import subject_of
from engine.attribution.input_heat import DEEPSTACK, QUERIES, input_scores
from engine.contract import APART, MODALITIES, Question, RequestError, Target
from engine.features import Seen
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.running import embed, forward, picture_features, with_answer
from engine.targets import Part
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

ANSWER = [700, 701]
FAMILIES = {**kits.TEXT, **seeing.SEEING}


# Plain autograd: the model's own forward pass from pixels, leaves at the projector's and the word embeddings' outputs


def by_autograd(loaded: Loaded, prompt: Prompt, start: int, end: int) -> tuple[np.ndarray, float]:
    """⟨x_p, ∂S/∂x_p⟩ at every position of prompt + answer, and S."""
    leaves: list[torch.Tensor] = []

    def cut(_module: torch.nn.Module, _args: object, result: torch.Tensor) -> torch.Tensor:
        leaves.append(result.detach().requires_grad_(True))
        return leaves[-1]

    model: Any = loaded.model
    modules = (model.get_input_embeddings(), model.model.multi_modal_projector)
    handles = [module.register_forward_hook(cut) for module in modules]
    try:
        rows = model(**tiny.inputs(prompt, ANSWER), use_cache=False).logits[0]
        target = tiny.span_logprob(rows, prompt, ANSWER, start, end)
        slopes = torch.autograd.grad(target, leaves)
    finally:
        for handle in handles:
            handle.remove()
    words, patches = (
        (leaf.double() * slope.double()).sum(-1).flatten() for leaf, slope in zip(leaves, slopes, strict=True)
    )
    words[prompt.image_positions] = patches.detach()
    return words.detach().numpy(), target.item()


@pytest.mark.parametrize(("start", "end"), [(0, 2), (1, 2)])
def test_it_equals_plain_autograd_at_the_projectors_output(
    any_model: Loaded, any_engine: LocalEngine, question: Question, start: int, end: int
) -> None:
    prompt = build_prompt(any_model, question)
    expected, value = by_autograd(any_model, prompt, start, end)
    found = any_engine.input_heat(question, ANSWER, Target(start, end))
    assert found.grid is not None
    shape = (found.grid.rows, found.grid.cols)
    largest = np.abs(expected).max()
    assert np.abs(found.heat - expected[prompt.image_positions].reshape(shape)).max() < 1e-4 * largest
    kinds = np.array([*prompt.modality, "answer", "answer"])
    sums = [expected[kinds == kind].sum() for kind in MODALITIES]
    assert np.abs(np.subtract(found.by_modality, sums)).max() < 1e-4 * np.abs(expected).sum()
    assert found.value == pytest.approx(value, abs=1e-4)
    assert tiny.all_hooks(any_model.model) == 0


def test_positions_left_out_are_zero_in_the_map(
    model: Loaded, engine: LocalEngine, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = build_prompt(model, question)
    left = tuple(prompt.image_positions[k] for k in (0, 5))
    monkeypatch.setattr("engine.local.high_norm_positions", lambda *_: left)
    whole = engine.input_heat(question, ANSWER, Target())
    found = engine.input_heat(question, ANSWER, Target(leave_out=APART))
    assert whole.heat is not None
    assert found.heat is not None
    expected = whole.heat.copy()
    expected.flat[[0, 5]] = 0
    assert np.allclose(found.heat, expected, atol=1e-6)
    assert whole.heat.flat[0] != 0
    assert found.by_modality[0] == pytest.approx(float(expected.sum()), abs=1e-5)


# Every family: scaling the features that image positions are given


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return kits.make(tmp_path_factory.mktemp(request.param), FAMILIES[request.param]())


def asked(loaded: Loaded) -> Question:
    return Question(tiny.picture(height=60, width=80) if loaded.sees else None, "what is on the left?", 3)


def scaled(seen: Seen, factors: torch.Tensor, deepstack: float = 1.0) -> Seen:
    """The picture with position p's features multiplied by factors[p], and all deeper features by `deepstack`."""
    features = seen.features * factors[:, None]
    if seen.output is None:
        return dataclasses.replace(seen, features=features)
    given = {name: seen.output[name] for name in seen.output}
    pooled = given["pooler_output"]
    given["pooler_output"] = (features,) if isinstance(pooled, tuple | list) else features.reshape(pooled.shape)
    if given.get("deepstack_features"):
        given["deepstack_features"] = [
            [part * deepstack for part in layer] if isinstance(layer, tuple | list) else layer * deepstack
            for layer in given["deepstack_features"]
        ]
    return dataclasses.replace(seen, features=features, output=type(seen.output)(**given))


def value_of(loaded: Loaded, prompt: Prompt, seen: Seen | None, words: torch.Tensor | None = None) -> float:
    """S = Σ log p of ANSWER; with `words`, every position's word embedding is multiplied by its own."""
    with torch.no_grad():
        inputs = embed(loaded, with_answer(prompt, ANSWER), seen)
        if words is not None:
            embeddings = loaded.anatomy.embedding(inputs.ids) * words[None, :, None]
            inputs = dataclasses.replace(inputs, embeddings=embeddings)
        rows = forward(loaded, inputs, 3)[0].double().log_softmax(-1)
    return float(rows[0, ANSWER[0]] + rows[1, ANSWER[1]])


def test_it_is_the_slope_of_scaling_what_the_decoder_is_given(family: Loaded) -> None:
    """Central differences at the patches' features (words, in a text model): all positions at once with random
    weights, and the one of largest value alone."""
    prompt = build_prompt(family, asked(family))
    seen = picture_features(family, prompt.pixels) if family.sees else None
    part = Part(1, tuple(ANSWER), Target(0, 2))
    scores = input_scores(subject_of(family, prompt, seen, (part,))).scores[0][:, 0].double()
    values = scores[prompt.image_positions] if family.sees else scores
    assert count_hooks(family.model) == 0
    weights = torch.randn(len(values), generator=torch.Generator().manual_seed(3)).double()
    alone = torch.zeros_like(weights)
    alone[int(values.abs().argmax())] = 1.0
    h = 0.01

    def at(factors: torch.Tensor) -> float:
        if seen is None:
            return value_of(family, prompt, None, factors)
        return value_of(family, prompt, scaled(seen, factors))

    for direction in (weights, alone):
        up, down = (at((1 + sign * h * direction).float()) for sign in (1, -1))
        expected = float((direction * values).sum())
        assert (up - down) / (2 * h) == pytest.approx(expected, abs=0.02 * float((direction * values).abs().sum()))


def test_its_map_holds_what_the_image_positions_hold(family: Loaded) -> None:
    question = asked(family)
    engine = LocalEngine(family)
    found = engine.input_heat(question, ANSWER, Target())
    attribution = engine.attribute(question, ANSWER, Target(), top=20)
    scale = sum(abs(part) for part in found.by_modality)
    assert scale > 1e-4
    assert found.value == pytest.approx(attribution.value, abs=1e-3)
    if not family.sees:
        assert found.heat is None
        return
    assert found.grid == engine.grid(question)
    assert found.heat is not None
    assert np.ptp(found.heat) > 0
    assert float(found.heat.sum()) == pytest.approx(found.by_modality[0], abs=1e-4 * scale)
    assert (QUERIES in found.note) == hasattr(family.model.config, "num_query_tokens")
    assert attribution.layer_heats is not None
    assert attribution.heat is not None
    assert np.abs(attribution.layer_heats.sum(0) - attribution.heat).max() < 1e-5
    for neuron in attribution.neurons:
        assert neuron.activation is not None
        assert neuron.activation.shape == found.heat.shape
        assert np.abs(neuron.activation).max() <= abs(neuron.peak) + 1e-5


def test_deepstack_features_are_no_part_of_it_and_the_note_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Scaling the deeper features too moves the target further than the map tells; holding them, it is exact."""
    loaded = kits.make(tmp_path_factory.mktemp("deep"), seeing.qwen3_vl())
    prompt = build_prompt(loaded, asked(loaded))
    seen = picture_features(loaded, prompt.pixels)
    found = LocalEngine(loaded).input_heat(asked(loaded), ANSWER, Target())
    assert DEEPSTACK in found.note
    ones, h = torch.ones(len(seen.features)), 0.01
    slopes = []
    for deeper in (False, True):
        up, down = (
            value_of(loaded, prompt, scaled(seen, ones * (1 + s * h), 1 + s * h if deeper else 1.0)) for s in (1, -1)
        )
        slopes.append((up - down) / (2 * h))
    assert found.heat is not None
    assert slopes[0] == pytest.approx(float(found.heat.sum()), abs=0.02 * float(np.abs(found.heat).sum()))
    assert abs(slopes[1] - slopes[0]) > 0.1 * float(np.abs(found.heat).sum())


def test_a_model_without_gradients_refuses_with_the_reason(model: Loaded, question: Question) -> None:
    without = dataclasses.replace(model, no_gradient="its weights are 4-bit.")
    subject = subject_of(without, build_prompt(model, question), None, ())
    with pytest.raises(RequestError, match="4-bit"):
        input_scores(subject)


def test_a_model_without_deepstack_does_not_speak_of_it(engine: LocalEngine, question: Question) -> None:
    note = engine.input_heat(question, ANSWER, Target()).note
    assert "deepstack" not in note
    assert "query" not in note
