"""Files that the SAELens library itself writes (`pip install sfumato[saes]`): H and Ẑ as the library computes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contract import RequestError
from engine.sae.loading import Place, read

sae_lens = pytest.importorskip("sae_lens", reason="sae-lens is not installed: pip install sfumato[saes]")
D, N = 32, 48
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "standard": ("StandardSAE", {}),
    "standard uncentred": ("StandardSAE", {"apply_b_dec_to_input": False}),
    "topk": ("TopKSAE", {"k": 5}),
    "topk by decoder norms": ("TopKSAE", {"k": 5, "rescale_acts_by_decoder_norm": True}),
    "jumprelu": ("JumpReLUSAE", {"apply_b_dec_to_input": False}),
    "jumprelu centred": ("JumpReLUSAE", {}),
    "gated": ("GatedSAE", {}),
    "gated uncentred": ("GatedSAE", {"apply_b_dec_to_input": False}),
}


def made(kind: str, hook: str = "blocks.1.hook_mlp_out", **more: Any) -> Any:
    """One of the library's SAEs with every parameter drawn at random."""
    name, options = KINDS[kind]
    config = getattr(sae_lens, f"{name}Config")(d_in=D, d_sae=N, device="cpu", **options, **more)
    config.metadata.hook_name, config.metadata.model_name = hook, "tiny"
    sae = getattr(sae_lens, name)(config)
    drawn = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter_name, parameter in sorted(sae.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=drawn) * 0.5)
            if parameter_name == "threshold":
                parameter.abs_()
    return sae


def same(sae: Any, folder: Path) -> None:
    Z = torch.randn(64, D, generator=torch.Generator().manual_seed(12))
    ours = read(str(folder))
    with torch.no_grad():
        H = sae.encode(Z)
        back = sae.decode(H)
    found = ours.encode(Z)
    assert float((H > 0).float().mean()) > 0.05
    assert torch.equal(found > 0, H > 0)
    assert (found - H).abs().max() < 1e-4 * float(H.abs().max())
    assert (ours.decode(found) - back).abs().max() < 1e-4 * float(back.abs().max())
    assert Place(ours.info.layer, ours.info.site) == Place(1, "mlp")


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_the_library_saves_gives_what_the_library_gives(kind: str, tmp_path: Path) -> None:
    sae = made(kind)
    sae.save_model(str(tmp_path))
    same(sae, tmp_path)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_layout_before_version_6_gives_what_the_library_reads_in_it(kind: str, tmp_path: Path) -> None:
    """All entries at the top of cfg.json, as they were; the library's own loader upgrades them."""
    sae = made(kind)
    sae.save_model(str(tmp_path))
    told = json.loads((tmp_path / "cfg.json").read_text())
    flat = {**told.pop("metadata"), **told, "sae_lens_training_version": "3.22.0"}
    flat.pop("sae_lens_version", None)
    if flat["architecture"] == "topk":
        flat |= {"architecture": "standard", "activation_fn_str": "topk", "activation_fn_kwargs": {"k": flat.pop("k")}}
    (tmp_path / "cfg.json").write_text(json.dumps(flat))
    same(sae_lens.SAE.load_from_disk(str(tmp_path), device="cpu"), tmp_path)


@pytest.mark.parametrize("scale", ["layer_norm", "constant_norm_rescale", "expected_average_only_in"])
def test_activations_that_are_scaled_by_themselves_are_refused(scale: str, tmp_path: Path) -> None:
    made("standard", normalize_activations=scale).save_model(str(tmp_path))
    with pytest.raises(RequestError, match=f"normalize_activations = '{scale}'"):
        read(str(tmp_path))


def test_heads_one_by_one_are_refused(tmp_path: Path) -> None:
    made("standard", "blocks.1.attn.hook_z", reshape_activations="hook_z").save_model(str(tmp_path))
    with pytest.raises(RequestError, match="reshape_activations = 'hook_z'"):
        read(str(tmp_path))


def test_scales_that_the_library_folds_in_are_read(tmp_path: Path) -> None:
    sae = made("standard", normalize_activations="expected_average_only_in")
    sae.fold_activation_norm_scaling_factor(1.7)
    sae.save_model(str(tmp_path))
    same(sae, tmp_path)


def test_stored_numbers_in_half_precision_are_widened(tmp_path: Path) -> None:
    sae = made("jumprelu")
    sae.save_model(str(tmp_path))
    weights = {
        name: value.to(torch.bfloat16) for name, value in load_file(tmp_path / "sae_weights.safetensors").items()
    }
    save_file(weights, tmp_path / "sae_weights.safetensors")
    with torch.no_grad():
        for name, parameter in sae.named_parameters():
            parameter.copy_(weights[name].float())
    same(sae, tmp_path)
