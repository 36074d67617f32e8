"""Which models are taken, which are refused, and what two models have in common when their revision is the same."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from engine.anatomy import find_anatomy, norm_map
from engine.builtin import scenes
from engine.contract import ModelRefused, Question
from engine.loading import BUILTIN_FOLDER, Loaded, load
from engine.local import LocalEngine, load_engine
from engine.selfcheck import self_check
from tests.engine import tiny


def test_the_anatomy_is_the_models_own_modules(any_model: Loaded) -> None:
    anatomy, decoder = any_model.anatomy, tiny.decoder_of(any_model.model)
    config = any_model.model.config.text_config
    assert anatomy.decoder is decoder
    assert anatomy.final_norm is decoder.norm
    assert [*anatomy.layers] == [*decoder.layers]
    assert [*anatomy.downs] == [layer.mlp.down_proj for layer in decoder.layers]
    assert [*anatomy.attentions] == [layer.self_attn for layer in decoder.layers]
    assert (anatomy.n_layers, anatomy.d_mlp, anatomy.d_model) == (
        config.num_hidden_layers,
        config.intermediate_size,
        config.hidden_size,
    )
    assert anatomy.image_token_id == tiny.IMAGE_ID
    assert anatomy.max_positions == config.max_position_embeddings
    assert torch.equal(anatomy.write_vectors(1)[5], decoder.layers[1].mlp.down_proj.weight[:, 5])


def test_a_plain_mlp_with_transposed_weights_is_understood() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32))
    anatomy = find_anatomy(model)
    assert (anatomy.n_layers, anatomy.d_mlp, anatomy.d_model) == (2, 64, 16)
    assert anatomy.write_vectors(1).shape == (64, 16)
    assert torch.equal(anatomy.write_vectors(1), model.transformer.h[1].mlp.c_proj.weight)
    assert anatomy.final_norm is model.transformer.ln_f


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_final_norm_is_linear_once_its_scale_is_held(model: Loaded, norm: str) -> None:
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)) * 3
    module = tiny.decoder_of(model.model).norm if norm == "rms" else nn.LayerNorm(32)
    if norm == "layer":
        with torch.no_grad():
            module.weight.copy_(torch.linspace(0.5, 2, 32))
    gain, centred = norm_map(module, rows)
    centre = rows - rows.mean(-1, keepdim=True) if centred else rows
    with torch.no_grad():
        assert torch.allclose(centre * gain, module(rows), atol=1e-5)
    assert centred == (norm == "layer")


def test_a_revision_is_of_what_decides_the_numbers(tmp_path: Path, cropping: Loaded) -> None:
    assert cropping.folder is not None
    folder = tmp_path / "copy"
    shutil.copytree(cropping.folder, folder)
    (folder / "figures.json").write_text("{}")
    (folder / "README.md").write_text("words")
    assert load(str(folder), device="cpu").revision == cropping.revision
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 1e-5
    (folder / "config.json").write_text(json.dumps(config))
    assert load(str(folder), device="cpu").revision != cropping.revision


def test_a_loaded_model_asks_for_no_gradient_and_is_in_evaluation_mode(any_model: Loaded) -> None:
    assert not any_model.model.training
    assert not any(parameter.requires_grad for parameter in any_model.model.parameters())
    assert any_model.model.dtype == torch.float32
    assert "Pil" in type(any_model.processor.image_processor).__name__


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/none", "a/b/c"])
def test_a_folder_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ModelRefused, match="There is no folder"):
        load(name)


def test_a_folder_without_a_model_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelRefused, match=r"could not be loaded.*safetensors weights"):
        load(str(tmp_path), device="cpu")


def test_weights_that_run_code_are_not_read(tmp_path: Path, cropping: Loaded) -> None:
    """A pickle beside the configuration is no model: only safetensors weights are."""
    assert cropping.folder is not None
    shutil.copytree(cropping.folder, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(cropping.model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match="could not be loaded"):
        load(str(tmp_path / "pickled"), device="cpu")


def test_the_self_check_refuses_a_model_whose_parts_do_not_add_up(model: Loaded) -> None:
    """Each line must be able to fail: an MLP output that is not its neurons' sum, and a prompt without a BOS."""
    assert [check.holds for check in self_check(model)] == [True] * 7
    scaled = tiny.changed(model)
    down = tiny.decoder_of(scaled.model).layers[1].mlp
    handle = down.register_forward_hook(lambda _module, _args, result: result * 1.01)
    with pytest.raises(ModelRefused, match="neurons are the MLP"):
        LocalEngine(scaled)
    handle.remove()
    twice = tiny.changed(model)
    bare = tiny.processor(tiny.Kind(crop=model.processor.image_processor.do_center_crop, template=tiny.NO_BOS))
    if model.processor.num_additional_image_tokens:
        object.__setattr__(twice, "processor", bare)
        with pytest.raises(ModelRefused, match="one beginning-of-sequence token"):
            LocalEngine(twice)


def test_a_checkpoints_own_generation_settings_change_nothing(tmp_path: Path) -> None:
    """Penalties and suppressed tokens in generation_config.json would bend the probabilities that are shown."""
    folder = tmp_path / "bent"
    shutil.copytree(BUILTIN_FOLDER, folder)
    drawn = scenes.render(scenes.make_scene(scenes.seeded("loading"), ["penguin"]))
    question = Question(drawn.pixels, "what is this?", 3)
    plain = load_engine(str(folder)).ask(question).answer
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"repetition_penalty": 3.0, "suppress_tokens": [plain.tokens[0].id], "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    bent = load_engine(str(folder)).ask(question).answer
    assert [(token.id, token.logprob) for token in bent.tokens] == [(token.id, token.logprob) for token in plain.tokens]
