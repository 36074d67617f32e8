"""Every format of SAE, from files made here: what H is by the format's own definition, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contract import NonFinite, Question, RequestError, UnknownName
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.sae import activations, loading
from engine.sae.activations import Asked
from engine.sae.loading import Place, place_of, read, write
from engine.sae.sae import fit_of
from tests.engine import tiny

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


def scope(folder: Path, weights: Tensors, dtype: Any = np.float32) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "params.npz", **{name: value.numpy().astype(dtype) for name, value in weights.items()})
    return folder


def scope2(folder: Path, weights: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    renamed = {{"W_enc": "w_enc", "W_dec": "w_dec"}.get(name, name): value for name, value in weights.items()}
    save_file(renamed, folder / "params.safetensors")
    return folder


def gated(folder: Path, **cfg: Any) -> Path:
    weights = {name: value for name, value in tensors().items() if name != "b_enc"}
    return saelens(folder, {**weights, **GATE}, architecture="gated", **cfg)


def topk(given: torch.Tensor, k: int) -> torch.Tensor:
    kept = given.topk(k, dim=-1)
    return torch.zeros_like(given).scatter(-1, kept.indices, kept.values).relu()


GATE = {
    name: torch.randn(N, generator=torch.Generator().manual_seed(6 + k))
    for k, name in enumerate(("b_gate", "b_mag", "r_mag"))
}
THRESHOLD = torch.rand(N, generator=torch.Generator().manual_seed(5)) * 4
W = tensors()
CENTRED = (stream() - W["b_dec"]) @ W["W_enc"] + W["b_enc"]
UNCENTRED = stream() @ W["W_enc"] + W["b_enc"]
JUMPED = UNCENTRED * (UNCENTRED > THRESHOLD)
NORMS = W["W_dec"].norm(dim=-1)


def opened(Z: torch.Tensor) -> torch.Tensor:
    """A gated SAE's H of Z, which has its b_dec taken off where it must be: gate × magnitude (Rajamanoharan et al.)."""
    gate = (Z @ W["W_enc"] + GATE["b_gate"] > 0).float()
    return gate * (Z @ (W["W_enc"] * GATE["r_mag"].exp()) + GATE["b_mag"]).relu()


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
    "saelens gated": (lambda p: gated(p / "a"), opened(stream() - W["b_dec"]), Place(1, "residual")),
    "saelens gated uncentred": (
        lambda p: gated(p / "a", apply_b_dec_to_input=False), opened(stream()), Place(1, "residual")
    ),
    "gemma scope 2": (
        lambda p: scope2(p / "resid_post" / "layer_2_width_16k_l0_medium", tensors(threshold=THRESHOLD)),
        JUMPED, Place(2, "residual"),
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


def test_what_saelens_does_beside_is_folded_into_the_weights(tmp_path: Path) -> None:
    rescaled = read(
        str(saelens(tmp_path / "r", tensors(), architecture="topk", k=4, rescale_acts_by_decoder_norm=True))
    )
    expected = topk(CENTRED * NORMS, 4)
    H = rescaled.encode(stream())
    assert torch.equal(H > 0, expected > 0)
    assert (H - expected).abs().max() < 1e-3
    assert (rescaled.decode(H) - (expected / NORMS @ W["W_dec"] + W["b_dec"])).abs().max() < 1e-3
    factor = torch.rand(N, generator=torch.Generator().manual_seed(9)) + 0.5
    for name in ("finetuning_scaling_factor", "scaling_factor"):
        tuned = read(str(saelens(tmp_path / name, tensors(**{name: factor}), finetuning_scaling_factor=True)))
        H = tuned.encode(stream())
        assert (H - CENTRED.relu()).abs().max() < 1e-4
        assert (tuned.decode(H) - (H * factor @ W["W_dec"] + W["b_dec"])).abs().max() < 1e-3
        unused = read(str(saelens(tmp_path / f"{name} 1", tensors(**{name: factor}))))
        assert torch.equal(unused.W_dec, W["W_dec"])


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
    "gated without a gate": (lambda p: saelens(p, tensors(), architecture="gated"), "lacks 'b_gate'"),
    "gated of another width": (lambda p: saelens(
        p, {"W_enc": W["W_enc"], "b_gate": torch.ones(3), "b_mag": torch.ones(3), "r_mag": torch.ones(3)},
        architecture="gated"), "do not fit each other"),
    "temporal": (lambda p: saelens(p, tensors(), architecture="temporal"), "architecture = 'temporal'"),
    "normalised": (lambda p: saelens(p, tensors(), normalize_activations="layer_norm"), "normalize_activations"),
    "heads": (lambda p: saelens(p, tensors(), reshape_activations="hook_z"), "reshape_activations = 'hook_z'"),
    "groups": (lambda p: sparsify(p / "layers.1", tensors(), activation="groupmax"), "activation = 'groupmax'"),
    "scope's transcoder": (
        lambda p: scope2(p / "transcoder_all" / "layer_1_width_16k", tensors(threshold=THRESHOLD)), "is no SAE"
    ),
    "attention scope 2": (
        lambda p: scope2(p / "attn_out" / "layer_1_width_16k", tensors(threshold=THRESHOLD)), "before the attention's"
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


def test_an_attached_one_is_tried_and_what_is_out_of_range_is_told(cropping: Loaded, tmp_path: Path) -> None:
    engine = LocalEngine(cropping)
    name = engine.attach_sae(str(saelens(tmp_path / "a", tensors())), name="as I call it").name
    assert name == "as-I-call-it"
    asked = Question(tiny.picture(1), "what is this?", 1)
    fit = engine.check_sae(name, [asked])
    Z = activations.values(cropping, [Asked(asked.picture, ((asked.text, ""),))], 1, "residual")
    explained, l0, active = fit_of(engine._sae(name), Z)
    assert (fit.explained_variance, fit.l0, fit.positions) == (explained, l0, len(Z))
    assert fit.dead_share == pytest.approx(1 - float(active.float().mean()))
    assert explained < 0.5, "its numbers are random"
    assert any("It explains nothing of the variance here" in warning for warning in fit.warnings)
    silent = engine.attach_sae(str(saelens(tmp_path / "b", tensors(b_enc=torch.full((N,), -1e6)))))
    assert "No latent is active here." in engine.check_sae(silent.id, [asked]).warnings
    with pytest.raises(RequestError, match="could not be tried"):
        engine.check_sae(name, [Question(None, "word " * 5000, 1)])
    assert count_hooks(cropping.model) == 0


def test_a_folder_of_several_names_them(tmp_path: Path) -> None:
    for layer in (10, 2):
        saelens(tmp_path / f"blocks.{layer}.hook_resid_post", tensors())
    scope(tmp_path / "gemma" / "layer_3" / "width_16k", tensors(threshold=THRESHOLD))
    words = r"blocks\.2\.hook_resid_post, .*blocks\.10\.hook_resid_post, .*gemma/layer_3/width_16k. Choose one"
    with pytest.raises(RequestError, match=words):
        read(str(tmp_path))


class Hub:
    """A hub of one repository with a folder for each layer, as huggingface_hub serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fetched = folder, [""]

    def snapshot_download(self, owner: str, allow_patterns: list[str]) -> str:
        assert owner == "somebody/saes"
        self.fetched = allow_patterns
        return str(self.folder)

    def list_repo_files(self, owner: str) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]


def test_one_folder_of_a_repository_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saelens(tmp_path / "blocks.2.hook_mlp_out", tensors(), hook_name="blocks.2.hook_mlp_out")
    hub = Hub(tmp_path)
    for name in ("snapshot_download", "list_repo_files"):
        monkeypatch.setattr(f"huggingface_hub.{name}", getattr(hub, name))
    assert read("somebody/saes/blocks.2.hook_mlp_out").info.layer == 2
    assert "blocks.2.hook_mlp_out/cfg.json" in hub.fetched
    assert not [name for name in hub.fetched if name.endswith((".pt", ".bin")) or "*" in name]
    with pytest.raises(RequestError, match=r"Folders that do: somebody/saes/blocks\.2\.hook_mlp_out"):
        read("somebody/saes")
    for name in ("somebody/saes/../../other", "somebody/saes//x", "somebody/../x"):
        with pytest.raises(RequestError, match="no name on a hub"):
            read(name)


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(RequestError, match="cannot be fetched from the hub"):
        read("nobody/nothing-at-all/layer_1")
