"""Models whose layers lie in several places, in another number type, or packed: the same answers, the same scores.

Without a second accelerator layers are spread over CPU memory and the disk, which accelerate runs by the same hooks."""

import dataclasses
import gc
import importlib.util
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from engine.attribution.noise import in_dtype
from engine.contract import METHODS, ModelRefused, NeuronTurn, Question, RequestError, Steering, Target
from engine.hooks import count_hooks
from engine.loading import Loaded, known_device, load
from engine.local import LocalEngine, check_model
from engine.running import answer_ids
from engine.selfcheck import checks_of, why_no_gradient
from engine.weights import device_of, parameter
from tests.engine import tiny

needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
# disk offload reads each weight through a file's memory, and bitsandbytes tells of its casts
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def places(model: Any, on_disk: str) -> dict[str, str]:
    """A device map: every module that holds weights lies on the CPU, or on disk where its name has `on_disk` in it."""
    decoder = "model.language_model"
    names = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    names += [f"{decoder}.{part}" for part in ("embed_tokens", "rotary_emb", "norm")]
    names += [f"{decoder}.layers.{layer}" for layer in range(len(tiny.decoder_of(model).layers))]
    return {name: "disk" if any(part in name for part in on_disk.split()) else "cpu" for name in names}


@pytest.fixture(params=["layers.1 norm", "embed layers.0 layers.2 lm_head projector"])
def spread(request: pytest.FixtureRequest, model: Loaded) -> Loaded:
    """The tiny models again, parts of them on disk: some layers and the final norm; the ends of the model."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    return load(str(model.folder), device=places(model.model, request.param))


def test_a_spread_model_gives_what_the_whole_one_gives(model: Loaded, spread: Loaded, question: Question) -> None:
    assert any(weight.is_meta for weight in spread.model.parameters())
    assert spread.devices == "cpu, disk"
    assert (spread.device, spread.whole) == (torch.device("cpu"), False)
    assert spread.revision == model.revision
    one, other = LocalEngine(model), LocalEngine(spread)
    answer = one.ask(question).answer
    assert other.ask(question).answer == answer
    for method in METHODS:
        scores = [engine.attribute(question, answer_ids(answer), Target(), method).scores for engine in (one, other)]
        assert np.abs(scores[0]).max() > 0
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-6 * np.abs(scores[0]).max(), err_msg=method)
    steering = Steering(neurons=(NeuronTurn(1, 3, "set", 9.0), NeuronTurn(2, 5, "scale", -4.0)), positions="image")
    steered = [engine.steer(question, answer_ids(answer), steering) for engine in (one, other)]
    assert steered[0] == steered[1]
    assert [band.against for band in other.noise(question, answer_ids(answer), Target())] == ["a batch of two"]
    assert count_hooks(spread.model) == 0


def test_a_weight_on_disk_is_read_and_its_shell_left_empty(model: Loaded, spread: Loaded) -> None:
    for layer, down in enumerate(spread.anatomy.downs):
        assert torch.equal(spread.anatomy.write_vectors(layer), model.anatomy.write_vectors(layer))
        assert parameter(down, "bias") is None
    assert device_of(spread.anatomy.unembedding) == torch.device("cpu")
    shells = [weight.is_meta for weight in spread.model.parameters()]
    checks_of(spread)
    assert [weight.is_meta for weight in spread.model.parameters()] == shells


def test_a_siglip_tower_on_disk_sees_as_the_whole_one_does(resizing: Loaded, question: Question) -> None:
    """Its pooling head is a MultiheadAttention, which reads weights of a module that never runs."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    spread = load(str(resizing.folder), device=places(resizing.model, "vision_tower"))
    attention = [m for m in spread.model.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    assert attention
    assert all(weight.is_meta for module in attention for weight in module.parameters())
    answers = [LocalEngine(loaded).ask(question).answer for loaded in (resizing, spread)]
    assert answers[0] == answers[1]
    assert all(weight.is_meta for module in attention for weight in module.parameters()), "nothing is left behind"


def test_a_closed_spread_model_is_let_go(model: Loaded) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    engine = LocalEngine(load(str(model.folder), device=places(model.model, "layers.1")))
    engine.ask(Question(tiny.picture(), "what?", 2))
    gone = weakref.ref(engine.loaded.anatomy.downs[0])
    engine.close()
    gc.collect()
    assert gone() is None


@needs_accelerate
def test_auto_is_every_device_there_is(model: Loaded) -> None:
    info = check_model(str(model.folder), "auto", "float32")
    assert info.holds
    assert set(info.device.split(", ")) <= {"cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_number_type_is_what_the_model_computes_in(model: Loaded, dtype: str) -> None:
    info = check_model(str(model.folder), "cpu", dtype)
    assert (info.dtype, info.holds, info.no_gradient) == (dtype, True, "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": "tpu"}, "tpu is no device. Choose one of cpu, auto"),
        ({"device": "cuda:99"}, "cuda:99 is"),
        ({"dtype": "float8"}, "float8 is not possible. Choose one of auto, float32, bfloat16, float16"),
        ({"quantize": 3}, "8 or 4 bits, not in 3"),
    ],
)
def test_a_wrong_choice_names_the_possible_ones(model: Loaded, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelRefused, match=words):
        load(str(model.folder), **given)


@pytest.mark.parametrize(
    ("missing", "given"), [("accelerate", {"device": "auto"}), ("bitsandbytes", {"device": "cpu", "quantize": 4})]
)
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, model: Loaded, missing: str, given: dict[str, Any]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "engine.loading.importlib.util.find_spec",
        lambda name, *rest: None if name == missing else torch.__spec__ if name == "accelerate" else found(name, *rest),
    )
    with pytest.raises(ModelRefused, match=rf"package {missing} is needed.*pip install {missing}"):
        load(str(model.folder), **given)


def test_the_device_is_the_cpu_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert known_device(None) == "cpu"
    with pytest.raises(ModelRefused, match=r"cuda is not there.*Choose one of cpu, auto"):
        known_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [known_device(name) for name in (None, "cuda", "cuda:1")] == ["cuda", "cuda", "cuda:1"]
    with pytest.raises(ModelRefused, match=r"cuda:2 is none\. Choose one of cpu, auto, cuda, cuda:0, cuda:1"):
        known_device("cuda:2")


@needs_bitsandbytes
@pytest.mark.parametrize("bits", [4, 8])
def test_a_packed_model_passes_its_self_check(model: Loaded, bits: int) -> None:
    """What holds on packed weights: every line, in float32 to 1e-4 but for the 8-bit model's cached steps."""
    packed = load(str(model.folder), device="cpu", quantize=bits)
    assert {type(module).__name__ for module in packed.model.modules()} >= {
        "Linear4bit" if bits == 4 else "Linear8bitLt"
    }
    assert [f"{check.name}: {check.detail}" for check in checks_of(packed) if not check.holds] == []
    assert (packed.bits, packed.number_type) == (bits, f"float32, {bits}-bit weights")
    engine = LocalEngine(packed)
    assert engine.info().no_gradient == ""
    assert engine.info().n_parameters == model.model.num_parameters()
    asked = engine.ask(Question(tiny.picture(), "what?", 3))
    assert np.abs(asked.attribution.scores).max() > 0
    exact = type(packed.anatomy.downs[0]) is torch.nn.Linear
    assert exact == (bits == 8)


class Rounding(torch.autograd.Function):
    """Rounds, and has no backward of its own worth the name."""

    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return (value * 64).round() / 64

    @staticmethod
    def backward(_context: Any, *slopes: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no way back")


class Misleading(Rounding):
    """A backward that says the opposite."""

    @staticmethod
    def backward(_context: Any, *slopes: torch.Tensor) -> torch.Tensor:
        return -slopes[0]


@pytest.mark.parametrize(
    ("function", "words"),
    [(Rounding.apply, "impossible: no way back"), (Misleading.apply, "do not tell"), (torch.detach, "impossible")],
)
def test_a_model_without_true_gradients_is_told_so_and_still_answers(
    model: Loaded, question: Question, function: Any, words: str
) -> None:
    assert why_no_gradient(model) == ""
    broken = tiny.changed(model)
    tiny.decoder_of(broken.model).norm.register_forward_hook(lambda _module, _args, result: function(result))
    reason = why_no_gradient(broken)
    assert words in reason
    engine = LocalEngine(model)
    engine._loaded = dataclasses.replace(broken, no_gradient=reason)
    for method in ("gradient", "integrated"):
        with pytest.raises(RequestError, match=r"has no gradients.*Choose direct"):
            engine.ask(question, method)
    asked = engine.ask(question, "direct")
    ids = answer_ids(asked.answer)
    with pytest.raises(RequestError, match="has no gradients"):
        engine.noise(question, ids, Target())
    ablated = engine.attribute(question, ids, Target(), "ablation")
    assert np.abs(ablated.scores).max() > 0
    assert engine.steer(question, ids, Steering(neurons=(NeuronTurn(0, 0, "scale", 0.5),))).answer.tokens


def test_a_certain_answers_gradient_survives_float16(model: Loaded, question: Question) -> None:
    """Its slope at the logits is far below what float16 can hold."""
    sure = tiny.changed(model)
    for _ in range(20):
        with torch.no_grad():
            sure.model.lm_head.weight.mul_(1.2)
        one = LocalEngine(sure)
        answer = one.ask(question).answer
        index = int(np.argmax([token.logprob for token in answer.tokens]))
        if answer.tokens[index].logprob > -1e-3:
            break
    assert -1e-3 < answer.tokens[index].logprob < -1e-7
    other = LocalEngine(in_dtype(sure, torch.float16))
    target = Target(index, index + 1)
    exact, half = (engine.attribute(question, answer_ids(answer), target).scores for engine in (one, other))
    assert np.abs(half - exact).max() < 0.1 * np.abs(exact).max()
