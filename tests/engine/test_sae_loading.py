"""Every format of SAE, from files made here: what H is by the format's own definition, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contract import NonFinite, RequestError, UnknownName
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.sae import loading
from engine.sae.loading import Place, place_of, read, write

D, N = 32, 24
Tensors = dict[str, torch.Tensor]


def tensors(**more: torch.Tensor) -> Tensors:
    g = torch.Generator().manual_seed(3)
    made = {name: torch.randn(*shape, generator=g) for name, shape in
            {"W_enc": (D, N), "W_dec": (N, D), "b_enc": (N,), "b_dec": (D,)}.items()}  # fmt: skip
    return {**made, **more}


def stream() -> torch.Tensor:
    return torch.randn(20, D, generator=torch.Generator().manual_seed(4))


def saelens(folder: Path, weights: Tensors, **cfg: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "sae_weights.safetensors")
    whole = {"d_in": D, "d_sae": N, "architecture": "standard", "hook_name": "blocks.1.hook_resid_post",
             "model_name": "tiny", "normalize_activations": "none", "apply_b_dec_to_input": True, **cfg}  # fmt: skip
    (folder / "cfg.json").write_text(json.dumps(whole))
    return folder


def sparsify(folder: Path, weights: Tensors, **cfg: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    renamed = {**weights, "encoder.weight": weights["W_enc"].T.contiguous(), "encoder.bias": weights["b_enc"]}
    save_file({name: value for name, value in renamed.items() if name not in ("W_enc", "b_enc")},
              folder / "sae.safetensors")  # fmt: skip
    (folder / "cfg.json").write_text(json.dumps({"activation": "topk", "k": 5, "d_in": D, "transcode": False, **cfg}))
    return folder


def scope(folder: Path, weights: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "params.npz", **{name: value.numpy() for name, value in weights.items()})
    return folder


def topk(given: torch.Tensor, k: int) -> torch.Tensor:
    kept = given.topk(k, dim=-1)
    return torch.zeros_like(given).scatter(-1, kept.indices, kept.values).relu()


THRESHOLD = torch.rand(N, generator=torch.Generator().manual_seed(5)) * 4
W = tensors()
CENTRED = (stream() - W["b_dec"]) @ W["W_enc"] + W["b_enc"]
UNCENTRED = stream() @ W["W_enc"] + W["b_enc"]
JUMPED = UNCENTRED * (UNCENTRED > THRESHOLD)

FORMATS: dict[str, tuple[Callable[[Path], Path], torch.Tensor, Place]] = {
    "saelens": (lambda p: saelens(p / "a", tensors()), CENTRED.relu(), Place(1, "residual")),
    "saelens uncentred": (
        lambda p: saelens(p / "a", tensors(), apply_b_dec_to_input=False, hook_name="blocks.2.hook_mlp_out"),
        UNCENTRED.relu(), Place(2, "mlp"),
    ),
    "saelens topk, old": (
        lambda p: saelens(p / "a", tensors(), activation_fn_str="topk", activation_fn_kwargs={"k": 4}),
        topk(CENTRED, 4), Place(1, "residual"),
    ),
    "saelens topk, version 6": (
        lambda p: saelens(p / "a", tensors(), architecture="topk", k=4, hook_name=None,
                          metadata={"hook_name": "blocks.1.hook_attn_out", "model_name": "tiny"}),
        topk(CENTRED, 4), Place(1, "attention"),
    ),
    "saelens jumprelu": (
        lambda p: saelens(p / "a", tensors(threshold=THRESHOLD), architecture="jumprelu", apply_b_dec_to_input=False,
                          hook_name="blocks.1.hook_resid_pre"),
        JUMPED, Place(0, "residual"),
    ),
    "gemma scope": (
        lambda p: scope(p / "gemma-scope-2b-pt-res" / "layer_2" / "width_16k", tensors(threshold=THRESHOLD)),
        JUMPED, Place(2, "residual"),
    ),
    "sparsify": (lambda p: sparsify(p / "layers.1.mlp", tensors()), topk(CENTRED, 5), Place(1, "mlp")),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FORMATS))
def test_each_format_encodes_as_it_defines(name: str, tmp_path: Path, cropping: Loaded) -> None:
    files, expected, place = FORMATS[name]
    sae = loading.attach(cropping, str(files(tmp_path)))
    assert Place(sae.info.layer, sae.info.site) == place
    assert (sae.info.d_model, sae.info.n_latents) == (D, N)
    H = sae.encode(stream())
    assert (H - expected).abs().max() < 1e-4
    assert torch.equal(H > 0, expected > 0)
    assert (sae.decode(H) - (expected @ W["W_dec"] + W["b_dec"])).abs().max() < 1e-3
    assert len(sae.info.id) == 16
    again = read(str(files(tmp_path)))
    assert again.info.id == sae.info.id


def test_our_own_format_comes_back_as_written(tmp_path: Path) -> None:
    sae = read(str(FORMATS["gemma scope"][0](tmp_path)))
    write(sae, tmp_path / "own")
    back = read(str(tmp_path / "own"))
    assert {value.dtype for value in load_file(tmp_path / "own" / "sae.safetensors").values()} == {torch.float16}
    assert (back.info.layer, back.info.site, back.info.architecture) == (2, "residual", "jumprelu")
    assert (back.encode(stream()) - JUMPED).abs().max() < 0.05
    write(back, tmp_path / "twice")
    assert read(str(tmp_path / "twice")).info.id == back.info.id


def test_a_person_says_layer_and_site_where_files_do_not(tmp_path: Path) -> None:
    folder = scope(tmp_path / "somewhere", tensors(threshold=THRESHOLD))
    with pytest.raises(RequestError, match="at which layer"):
        read(str(folder))
    with pytest.raises(RequestError, match="at which site"):
        read(str(folder / "params.npz"), layer=1)
    info = read(str(folder), 1, "mlp").info
    assert (info.layer, info.site) == (1, "mlp")
    odd = saelens(tmp_path / "odd", tensors(), hook_name="transformer.wte")
    with pytest.raises(RequestError, match="names no layer"):
        read(str(odd))
    assert read(str(odd), 0, "residual").info.layer == 0


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "gated": (lambda p: saelens(p, tensors(), architecture="gated"), "architecture = 'gated'"),
    "normalised": (lambda p: saelens(p, tensors(), normalize_activations="layer_norm"), "normalize_activations"),
    "rescaled": (
        lambda p: saelens(p, tensors(), architecture="topk", k=4, rescale_acts_by_decoder_norm=True), "rescale_acts"
    ),
    "no k": (lambda p: saelens(p, tensors(), architecture="topk"), "no whole k"),
    "k too large": (lambda p: saelens(p, tensors(), architecture="topk", k=N + 1), f"between 1 and its {N}"),
    "other site": (lambda p: saelens(p, tensors(), hook_name="blocks.1.attn.hook_z"), "no site that can be used"),
    "embedding": (lambda p: saelens(p, tensors(), hook_name="blocks.0.hook_resid_pre"), "is the embedding"),
    "no threshold": (lambda p: saelens(p, tensors(), architecture="jumprelu"), "lacks threshold"),
    "more tensors": (lambda p: saelens(p, tensors(W_skip=torch.ones(D, D))), "also holds W_skip"),
    "wrong shape": (lambda p: saelens(p, tensors(W_dec=torch.ones(D, N))), "beside its W_enc"),
    "transcoder": (lambda p: sparsify(p / "layers.1", tensors(), transcode=True), "transcode = True"),
    "attention scope": (
        lambda p: scope(p / "gemma-scope-2b-pt-att" / "layer_1", tensors(threshold=THRESHOLD)), "before the attention's"
    ),
    "nothing": (lambda p: p, "holds no SAE that is known"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_understood_is_refused(name: str, tmp_path: Path) -> None:
    files, words = REFUSED[name]
    with pytest.raises(RequestError, match=words):
        read(str(files(tmp_path)))


def test_nan_is_refused(tmp_path: Path) -> None:
    bad = tensors()
    bad["W_dec"][3, 4] = torch.nan
    with pytest.raises(NonFinite, match="W_dec"):
        read(str(saelens(tmp_path, bad)))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "burst",))

    torch.save({"W_enc": Bomb()}, tmp_path / "sae.pt")
    with pytest.raises(RequestError, match="Pickled weights"):
        read(str(tmp_path))
    np.savez(tmp_path / "params.npz", W_enc=np.array([Bomb()], dtype=object))
    with pytest.raises(RequestError, match="cannot be read"):
        read(str(tmp_path), 1, "mlp")
    (tmp_path / "params.npz").write_bytes(b"PK no zip")
    with pytest.raises(RequestError, match="cannot be read"):
        read(str(tmp_path), 1, "mlp")
    assert not (tmp_path / "burst").exists()


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = saelens(tmp_path, tensors())
    (folder / "sae_weights.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(RequestError, match=r"sae_weights\.safetensors cannot be read"):
        read(str(folder))
    (folder / "cfg.json").write_text("[1")
    with pytest.raises(RequestError, match=r"cfg\.json cannot be read"):
        read(str(folder))
    own = tmp_path / "own"
    own.mkdir()
    (own / "card.json").write_text('{"format": "sfumato-sae-1", "name": "x"}')
    with pytest.raises(RequestError, match="lacks"):
        read(str(own))
    (own / "card.json").write_text('{"format": "other"}')
    with pytest.raises(RequestError, match="of the format"):
        read(str(own))


@pytest.mark.parametrize(
    ("hook", "place"),
    [
        ("blocks.12.hook_resid_post", Place(12, "residual")),
        ("blocks.12.hook_resid_pre", Place(11, "residual")),
        ("blocks.3.hook_mlp_out", Place(3, "mlp")),
        ("blocks.3.hook_attn_out", Place(3, "attention")),
        ("model.layers.9", Place(9, "residual")),
        ("model.language_model.layers.9.mlp", Place(9, "mlp")),
        ("layers.10.self_attn", Place(10, "attention")),
        ("transformer.h.2", Place(2, "residual")),
    ],
)
def test_names_of_hooks(hook: str, place: Place) -> None:
    assert place_of(hook) == place


def test_attaching(cropping: Loaded, tmp_path: Path) -> None:
    engine = LocalEngine(cropping)
    assert engine.saes() == ()
    first = engine.attach_sae(str(saelens(tmp_path / "one", tensors())))
    assert engine.attach_sae(str(tmp_path / "one")) == first
    twin = engine.attach_sae(str(saelens(tmp_path / "two" / "one", tensors(b_dec=torch.zeros(D)))))
    assert [sae.name for sae in engine.saes()] == ["one", "one-2"]
    assert engine.latent_lens(twin.id, 0).promoted
    strange = engine.attach_sae(str(saelens(tmp_path / "<b> x", tensors(b_enc=torch.zeros(N)))))
    assert strange.name == "b-x"
    engine.detach_sae("one")
    assert [sae.name for sae in engine.saes()] == ["one-2", "b-x"]
    for layer, site, error, words in (
        (9, "residual", RequestError, "layers go from 0 to 2"),
        (-1, "residual", RequestError, "layers go from 0 to 2"),
        (1, "embedding", RequestError, "embedding"),
    ):
        with pytest.raises(error, match=words):
            engine.attach_sae(str(tmp_path / "one"), layer, site)
    wide = {
        "W_enc": torch.ones(D + 1, N),
        "W_dec": torch.ones(N, D + 1),
        "b_enc": torch.ones(N),
        "b_dec": torch.ones(D + 1),
    }
    with pytest.raises(RequestError, match=f"{D + 1} numbers; this model's stream has {D}"):
        engine.attach_sae(str(saelens(tmp_path / "wide", wide)))
    with pytest.raises(RequestError, match="no such folder"):
        engine.attach_sae("./nowhere")
    with pytest.raises(UnknownName, match="no SAE"):
        engine.detach_sae("one")
    assert count_hooks(cropping.model) == 0


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(RequestError, match="cannot be fetched from the hub"):
        read("nobody/nothing-at-all/layer_1")
