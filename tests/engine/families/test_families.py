"""Each family, tiny and random, through loading, the self-check, a question and both methods."""

import numpy as np
import pytest
import torch

from engine.attribution.direct import directions
from engine.contract import NeuronTurn, Question, RequestError, Steering, Target
from engine.hooks import capture_writes
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import answer_ids, embed, forward, picture_features, with_answer
from engine.selfcheck import checks_of
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor


@pytest.fixture(scope="module", params=list(kits.TEXT))
def text_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return kits.make(tmp_path_factory.mktemp(request.param), kits.TEXT[request.param]())


def holds(loaded: Loaded) -> list[str]:
    """What does not hold, in words."""
    return [f"{check.name}: {check.detail}" for check in checks_of(loaded) if not check.holds]


def test_a_text_model_passes_its_self_check_and_answers(text_model: Loaded) -> None:
    assert holds(text_model) == []
    assert len(checks_of(text_model)) == 6
    engine = LocalEngine(text_model)
    asked = engine.ask(Question(None, "what is this?", 3), "direct", top=5)
    later = engine.attribute(Question(None, "what is this?", 3), answer_ids(asked.answer), Target(), "direct", top=5)
    assert np.allclose(asked.attribution.scores, later.scores, atol=1e-4 * np.abs(later.scores).max())
    assert engine.grid(Question(None, "what?")) is None
    with pytest.raises(RequestError, match="reads text only"):
        engine.ask(Question(tiny.picture(), "what?"))


@pytest.fixture(scope="module", params=list(seeing.SEEING))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return kits.make(tmp_path_factory.mktemp(request.param), seeing.SEEING[request.param]())


@pytest.fixture(scope="module")
def engine(model: Loaded) -> LocalEngine:
    return LocalEngine(model)


def test_a_seeing_model_passes_its_self_check(model: Loaded) -> None:
    assert holds(model) == []
    assert len(checks_of(model)) == 7


@pytest.mark.parametrize(("height", "width"), [(70, 90), (60, 200), (200, 60)])
def test_a_heat_map_holds_what_the_image_positions_hold(engine: LocalEngine, height: int, width: int) -> None:
    question = Question(tiny.picture(height=height, width=width), "what is on the left?", 3)
    asked = engine.ask(question, top=3)
    attribution = asked.attribution
    grid = engine.grid(question)
    assert attribution.heat is not None
    assert grid == attribution.grid
    assert attribution.heat.shape == (grid.rows, grid.cols)
    on_image = [kind == "image" for kind in attribution.modality_of_position]
    whole = float(attribution.positions[:, on_image].sum())
    scale = float(np.abs(attribution.scores).max())
    assert float(attribution.heat.sum()) == pytest.approx(whole, abs=1e-4 * scale)
    assert bool(attribution.heat.any()) == (len(attribution.checks) == 1)  # a second one says why the net map is empty
    for neuron in attribution.neurons:
        assert neuron.heat is not None
        assert float(neuron.heat.sum()) == pytest.approx(neuron.by_modality[0], abs=1e-4 * scale)
    prompt = build_prompt(engine.loaded, question)
    asked_ids = prompt.ids[[kind == "question" for kind in prompt.modality]]
    assert engine.loaded.processor.tokenizer.decode(asked_ids).strip() == "what is on the left?"


@pytest.mark.parametrize("method", ["gradient", "direct"])
def test_what_is_read_off_the_generation_equals_a_later_pass(engine: LocalEngine, method: str) -> None:
    question = Question(tiny.picture(), "what is this?", 4)
    asked = engine.ask(question, method)
    later = engine.attribute(question, answer_ids(asked.answer), Target(), method)
    assert np.abs(asked.attribution.scores - later.scores).max() < 1e-4 * np.abs(later.scores).max()
    assert asked.attribution.value == pytest.approx(later.value, abs=1e-3)
    if method == "gradient":
        assert later.value == pytest.approx(sum(token.logprob for token in asked.answer.tokens), abs=1e-3)


def test_gradient_is_the_slope_of_scaling_a_neuron(engine: LocalEngine) -> None:
    """Central differences by steering: text.l.i × (1 ± h), at the neurons of largest score."""
    question, h = Question(tiny.picture(), "what is this?", 3), 0.02
    answer = answer_ids(engine.ask(question).answer)
    attribution = engine.attribute(question, answer, Target(), top=3)
    for neuron in attribution.neurons:
        values = [
            engine.attribute(
                question, answer, Target(), "gradient",
                Steering(neurons=(NeuronTurn(neuron.layer, neuron.index, "scale", factor),)),
            ).value
            for factor in (1 + h, 1 - h)
        ]  # fmt: skip
        slope = (values[0] - values[1]) / (2 * h)
        assert slope == pytest.approx(neuron.score, abs=0.05 * abs(attribution.neurons[0].score))


def test_direct_is_what_a_neuron_writes_into_the_logit(model: Loaded, engine: LocalEngine) -> None:
    """Σ over all neurons of a layer = the MLP's share by the bookkeeping of writes (where it has no bias)."""
    question = Question(tiny.picture(), "what is this?", 1)
    ids = [700]
    attribution = engine.attribute(question, ids, Target(), "direct")
    prompt = build_prompt(model, question)
    inputs = embed(model, with_answer(prompt, ids), picture_features(model, prompt.pixels))
    with torch.no_grad(), capture_writes(model.anatomy) as writes:
        forward(model, inputs, 1)
    at = prompt.length - 1
    towards = directions(model, writes["final"][0][0, at : at + 1], ids)[0]
    biases = [getattr(down, "bias", None) for down in model.anatomy.downs]
    written = [write[0, at] - (0 if bias is None else bias) for write, bias in zip(writes["mlp"], biases, strict=True)]
    shares = torch.stack([part @ towards for part in written]).numpy()
    assert np.abs(shares).max() > 0.01
    assert np.abs(attribution.scores.sum(1) - shares).max() < 1e-4 * np.abs(shares).max()


def test_gradient_scores_of_a_layer_sum_to_what_its_mlp_gives(model: Loaded, engine: LocalEngine) -> None:
    """Σ_i s = ⟨m_l(p), ∂S/∂m_l(p)⟩ (less the bias) at every layer and position, with autograd at the MLPs' outputs."""
    ids = [700, 701]
    question = Question(tiny.picture(), "what is this?", 2)
    attribution = engine.attribute(question, ids, Target())
    prompt = build_prompt(model, question)
    inputs = embed(model, with_answer(prompt, ids), picture_features(model, prompt.pixels))
    outputs: list[torch.Tensor] = []

    def start(_module: object, args: tuple[torch.Tensor, ...], kwargs: dict[str, object]) -> object:
        if args:
            return (args[0].detach().requires_grad_(True), *args[1:]), kwargs
        hidden = kwargs["hidden_states"]
        assert isinstance(hidden, torch.Tensor)
        return args, {**kwargs, "hidden_states": hidden.detach().requires_grad_(True)}

    def keep(_module: object, _args: object, result: torch.Tensor) -> None:
        result.retain_grad()
        outputs.append(result)

    handles = [model.anatomy.layers[0].register_forward_pre_hook(start, with_kwargs=True)]
    handles += [mlp.register_forward_hook(keep) for mlp in model.anatomy.mlps]
    try:
        rows = forward(model, inputs, 3)[0]
        tiny.span_logprob(
            torch.cat([rows.new_zeros(prompt.length - 1, rows.shape[1]), rows]), prompt, ids, 0, 2
        ).backward()
    finally:
        for handle in handles:
            handle.remove()
    scale = np.abs(attribution.scores).max()
    for layer, output in enumerate(outputs):
        assert output.grad is not None
        bias = getattr(model.anatomy.downs[layer], "bias", None)
        neurons = output.detach() - (0 if bias is None else bias)
        whole = (neurons.double() * output.grad.double()).sum(-1).flatten().numpy()
        assert np.abs(attribution.positions[layer] - whole).max() < 1e-4 * scale


def test_a_text_question_after_a_picture_is_the_models_own(model: Loaded, engine: LocalEngine) -> None:
    """Nothing that a picture left on the model (rotary offsets) reaches the next question."""
    question = Question(None, "what lives on ice?", 3)
    first = engine.ask(question, "direct").answer
    engine.ask(Question(tiny.picture(), "what?", 3), "direct")
    assert engine.ask(question, "direct").answer == first
    prompt = build_prompt(model, question)
    with torch.no_grad():
        theirs = model.anatomy.runner(input_ids=prompt.ids[None], use_cache=False).logits
        ours = forward(model, embed(model, prompt.ids, None), prompt.length)
    assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())


def test_two_rows_are_one_row_twice(model: Loaded) -> None:
    prompt = build_prompt(model, Question(tiny.picture(), "what is this?"))
    row = embed(model, prompt.ids, picture_features(model, prompt.pixels))
    with torch.no_grad():
        one, two = forward(model, row, 2), forward(model, row.repeat(2, 1, 1), 2)
    assert float((two - one).abs().max()) < 1e-4 * float(one.abs().max())


@pytest.mark.parametrize("positions", ["image", "question", "answer"])
def test_a_steering_acts_at_the_same_positions_with_and_without_the_cache(
    model: Loaded, engine: LocalEngine, positions: str
) -> None:
    """Positions are counted, not read from rotary ids: cached generation and one pass agree, and the steering acts."""
    turns = tuple(NeuronTurn(0, index, "add", 2.0) for index in range(0, kits.D_MLP, 3))
    steering = Steering(neurons=turns, positions=positions)
    question = Question(tiny.picture(), "what is this?", 4)
    asked = engine.ask(question, steering=steering, top=1)
    assert asked.attribution.value == pytest.approx(sum(token.logprob for token in asked.answer.tokens), abs=1e-3)
    plain = engine.attribute(question, answer_ids(asked.answer), Target(), top=1)
    assert abs(plain.value - asked.attribution.value) > 1e-4
    assert tiny.all_hooks(model.model) == 0
