"""SAEs from files, by format; never by a pickle, and never by guessing at an option that changes the numbers.

- *Sfumato's*: `sae.safetensors` (W_enc, W_dec, b_enc, b_dec, threshold) and `card.json`.
- *SAELens*: `sae_weights.safetensors` (W_enc (d_in, d_sae), W_dec, b_enc, b_dec, threshold) and `cfg.json`; before its
  version 6 all entries stand at the top of cfg.json, since then what names the model stands in `metadata`. Where
  `apply_b_dec_to_input`, Z − b_dec is encoded: b_enc takes −b_dec W_enc. Decoder norms that a topk SAE chooses by, and
  a factor of finetuning, are folded into the weights. Gated ones (b_gate, b_mag, r_mag in b_enc's place), whose gate
  and magnitude share W_enc, are JumpReLU: W_enc exp(r_mag), b_mag, θ = b_mag − exp(r_mag) b_gate.
- *Gemma Scope*: `params.npz` (W_enc, W_dec, b_enc, b_dec, threshold), JumpReLU; layer and site are in its path
  (`gemma-scope-2b-pt-res/layer_20/…`). Its attention SAEs stand before the attention's output map: another width, and
  refused. *Gemma Scope 2*: `params.safetensors` (w_enc, w_dec, …), in `resid_post/layer_9_…` or `mlp_out/…`.
- *sparsify* (EleutherAI): `sae.safetensors` (encoder.weight (d_sae, d_in), encoder.bias, W_dec, b_dec) and `cfg.json`
  with k; the folder is named after the hook (`layers.10.mlp`). Z − b_dec is encoded.

Names of hooks are TransformerLens's (`blocks.12.hook_resid_post`, `hook_mlp_out`, `hook_attn_out`; `hook_resid_pre` of
layer l is the residual after l − 1) or those of modules (`model.layers.9`, `layers.9.mlp`, `layers.9.self_attn`).
"""

import contextlib
import dataclasses
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from engine.contract import RequestError, UnknownName
from engine.loading import Loaded
from engine.sae.contract import SITES, SaeInfo
from engine.sae.sae import Sae, make

FORMAT = "sfumato-sae-1"
FILES = ("card.json and sae.safetensors, cfg.json and sae_weights.safetensors, params.npz, params.safetensors, or "
         "cfg.json and sae.safetensors")  # fmt: skip
WEIGHTS = ("sae_weights.safetensors", "sae.safetensors", "params.npz", "params.safetensors")
FETCHED = (*WEIGHTS, "cfg.json", "card.json", "config.json")
"""Of a folder on a hub."""
_ENDS = {
    "": "residual", "hook_resid_post": "residual", "hook_mlp_out": "mlp", "hook_attn_out": "attention", "mlp": "mlp",
    "self_attn": "attention", "attn": "attention", "attention": "attention",
}  # fmt: skip
_SCOPE = {"res": "residual", "mlp": "mlp", "resid_post": "residual", "mlp_out": "mlp"}
_SHOWN = 8
_TOLD = 200


@dataclasses.dataclass(frozen=True)
class Place:
    """Where its files say that an SAE stands; None = they do not."""

    layer: int | None = None
    site: str | None = None


def place_of(hook: str) -> Place:
    """The place that a hook's name means. Raises RequestError for one that no site here is."""
    found = re.search(r"(?:^|\.)(?:blocks|layers|h|layer)\.(\d+)(?:\.(.*))?$", hook.strip("."))
    if not found:
        raise RequestError(f"The hook “{hook}” names no layer. Say layer and site yourself.")
    layer, end = int(found[1]), found[2] or ""
    if end == "hook_resid_pre":
        if layer == 0:
            raise RequestError(f"“{hook}” is the embedding, which is no site here. Choose an SAE after a layer.")
        return Place(layer - 1, "residual")
    if end not in _ENDS:
        raise RequestError(
            f"The hook “{hook}” is at no site that can be used ({', '.join(SITES)}). Choose another SAE."
        )
    return Place(layer, _ENDS[end])


def check_place(loaded: Loaded, layer: int, site: str, d_model: int, name: str) -> None:
    """Raises RequestError or UnknownName where an SAE of this width cannot stand there."""
    anatomy = loaded.anatomy
    if site not in SITES:
        raise UnknownName(f"There is no site “{site}”. Sites: {', '.join(SITES)}.")
    if not 0 <= layer < anatomy.n_layers:
        raise RequestError(
            f"{name} stands at layer {layer}; this model's layers go from 0 to {anatomy.n_layers - 1}. "
            "Choose an SAE of this model, or say its layer."
        )
    if d_model != anatomy.d_model:
        raise RequestError(
            f"{name} reads vectors of {d_model} numbers; this model's stream has {anatomy.d_model}. "
            "Choose an SAE that was trained on this model."
        )
    anatomy.site(layer, site)


def _json(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path.name} cannot be read: {error}.") from error
    if not isinstance(told, dict):
        raise RequestError(f"{path.name} holds no JSON object.")
    return told


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """In float32."""
    try:
        return {key: _real(value, f"{key} in {path.name}") for key, value in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise RequestError(f"{path.name} cannot be read as safetensors: {error}. Fetch it again.") from error


def _real(tensor: torch.Tensor, what: str) -> torch.Tensor:
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise RequestError(f"{what} holds numbers of the kind {kind}, which no SAE's are. Choose other files.")
    return tensor.float()


def _info(name: str, place: Place, architecture: str, k: int | None, source: Path, **more: Any) -> SaeInfo:
    if place.layer is None or place.site is None:
        what = "layer" if place.layer is None else "site"
        raise RequestError(f"The files of “{name}” do not say at which {what} it stands. Say it (--{what}).")
    return SaeInfo("", name, place.layer, place.site, architecture, 0, 0, k, more.get("model_revision", ""),
                   str(source), more.get("card", {}))  # fmt: skip


def _required(options: dict[str, Any], allowed: dict[str, tuple[Any, ...]], name: str) -> None:
    """Refuse an option whose value would change the numbers in a way that is not done here."""
    for option, values in allowed.items():
        if option in options and options[option] not in values:
            raise RequestError(
                f"“{name}” has {option} = {options[option]!r}, which is not supported "
                f"(only {', '.join(map(repr, values))}). Choose another SAE, or fold it into the weights."
            )


def _own(folder: Path, given: Place) -> Sae:
    card = _json(folder / "card.json")
    if card.get("format") != FORMAT:
        raise RequestError(f"card.json is of the format {card.get('format')!r}; this version reads {FORMAT!r}.")
    try:
        info = _info(
            str(card["name"]), _with(given, Place(int(card["layer"]), str(card["site"]))), str(card["architecture"]),
            None if card["k"] is None else int(card["k"]), folder,
            model_revision=str(card["model_revision"]), card=dict(card["measured"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"card.json lacks, or has a wrong value of, {error}.") from error
    return make(info, _tensors(folder / "sae.safetensors"))


def write(sae: Sae, folder: Path) -> None:
    """Sfumato's own format, in float16, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {"W_enc": sae.W_enc, "W_dec": sae.W_dec, "b_enc": sae.b_enc, "b_dec": sae.b_dec, "threshold": sae.threshold}
    save_file({name: value.half().contiguous() for name, value in named.items() if value is not None},
              folder / "sae.safetensors", {"format": FORMAT})  # fmt: skip
    told = dataclasses.asdict(sae.info)
    kept = ("name", "layer", "site", "architecture", "d_model", "n_latents", "k", "model_revision")
    card = {"format": FORMAT, **{name: told[name] for name in kept}, "measured": sae.info.card}
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _with(given: Place, said: Place) -> Place:
    """What a person says comes before what files say."""
    return Place(said.layer if given.layer is None else given.layer, given.site or said.site)


def _said(hook: object, given: Place) -> Place:
    """The place by a hook's name, which may be senseless where the person says both."""
    if given.layer is not None and given.site is not None:
        return given
    return _with(given, place_of(str(hook))) if hook else given


def _saelens(folder: Path, given: Place) -> Sae:
    cfg = _json(folder / "cfg.json")
    metadata = cfg["metadata"] if isinstance(cfg.get("metadata"), dict) else {}
    hook = cfg.get("hook_name") or cfg.get("hook_point") or metadata.get("hook_name")
    name = folder.name
    activation = cfg.get("activation_fn_str") or cfg.get("activation_fn") or "relu"
    architecture = str(cfg.get("architecture", "standard"))
    if architecture == "standard" and activation == "topk":
        architecture = "topk"
    _required(
        cfg,
        {
            "architecture": ("standard", "topk", "jumprelu", "gated"),
            "activation_fn_str": ("relu", "topk"), "activation_fn": ("relu", "topk"),
            "normalize_activations": ("none", None, False), "reshape_activations": ("none", None),
            "hook_head_index": (None,), "scale_sparsity_penalty_by_decoder_norm": (False, True, None),
        },
        name,
    )  # fmt: skip
    arguments = cfg.get("activation_fn_kwargs") or {}
    k = cfg.get("k", arguments.get("k")) if architecture == "topk" else None
    if architecture == "topk" and type(k) is not int:
        raise RequestError(f"“{name}” is a topk SAE whose cfg.json says no whole k (it says {k!r}).")
    tensors = _tensors(folder / "sae_weights.safetensors")
    card = _known(cfg, metadata)
    try:
        if architecture == "gated":
            tensors, architecture, card = _as_jumprelu(tensors), "jumprelu", {**card, "converted_from": "gated"}
        tensors = _folded(tensors, cfg)
    except KeyError as error:
        raise RequestError(f"sae_weights.safetensors of “{name}” lacks {error}. Choose other files.") from error
    except RuntimeError as error:
        raise RequestError(f"The weights of “{name}” do not fit each other: {error}.") from error
    if cfg.get("apply_b_dec_to_input", True) and {"b_enc", "b_dec", "W_enc"} <= set(tensors):
        tensors = _centred(tensors, name)
    return make(_info(name, _said(hook, given), architecture, k, folder, card=card), tensors)


def _as_jumprelu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A gated SAE's weights: its gate is open where Z W_enc + b_gate > 0, that is, where the magnitude's own
    preactivation Z W_enc exp(r_mag) + b_mag is above θ. Raises KeyError, RuntimeError."""
    gate, magnitude, scale = tensors["b_gate"], tensors["b_mag"], tensors["r_mag"].exp()
    rest = {key: value for key, value in tensors.items() if key not in ("b_gate", "b_mag", "r_mag")}
    return {**rest, "W_enc": tensors["W_enc"] * scale, "b_enc": magnitude, "threshold": magnitude - scale * gate}


def _folded(tensors: dict[str, torch.Tensor], cfg: dict[str, Any]) -> dict[str, torch.Tensor]:
    """With what else SAELens does to activations folded into the weights. Raises KeyError, RuntimeError."""
    # The factor was named otherwise at first; one of ones is stored even where it is not used.
    factors = [tensors[key] for key in ("finetuning_scaling_factor", "scaling_factor") if key in tensors]
    ready = {key: value for key, value in tensors.items() if not key.endswith("scaling_factor")}
    if cfg.get("finetuning_scaling_factor") and factors:
        ready["W_dec"] = factors[0][:, None] * ready["W_dec"]
    if cfg.get("rescale_acts_by_decoder_norm"):
        norms = ready["W_dec"].norm(dim=-1).clamp(min=1e-12)
        ready |= {"W_enc": ready["W_enc"] * norms, "b_enc": ready["b_enc"] * norms,
                  "W_dec": ready["W_dec"] / norms[:, None]}  # fmt: skip
    return ready


def _centred(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Z − b_dec is encoded: b_enc takes −b_dec W_enc."""
    ready = dict(tensors)
    try:
        ready["b_enc"] = ready["b_enc"] - ready["b_dec"] @ ready["W_enc"]
    except RuntimeError as error:
        raise RequestError(f"The weights of “{name}” do not fit each other: {error}.") from error
    return ready


def _known(cfg: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    model = cfg.get("model_name") or metadata.get("model_name")
    return {"trained_on": str(model)} if model else {}


def _scope(file: Path, given: Place) -> Sae:
    """Gemma Scope's, of `params.npz` or, since its version 2, `params.safetensors`."""
    parts = tuple(reversed(file.parts))
    layer = next((int(m[1]) for part in parts if (m := re.match(r"layer_(\d+)(?:_|$)", part))), None)
    kinds = (
        re.search(r"gemma-scope.*-(res|mlp|att)\b", part)
        or re.fullmatch(r"(resid_post|mlp_out|attn_out|transcoder|clt)(?:_\w*)?", part)
        for part in parts
    )
    kind = next((found[1] for found in kinds if found), "")
    if kind in ("att", "attn_out") and given.site is None:
        raise RequestError(
            "Gemma Scope's attention SAEs stand before the attention's output map, which is no site here. "
            "Choose one of the residual stream (res, resid_post) or of an MLP (mlp, mlp_out)."
        )
    if kind in ("transcoder", "clt"):
        raise RequestError("A transcoder writes elsewhere than it reads, and is no SAE. Choose resid_post or mlp_out.")
    name = "-".join(file.parent.parts[-3:]) if layer is not None else file.parent.name
    place = _with(given, Place(layer, _SCOPE.get(kind)))
    if file.suffix == ".npz":
        try:
            with np.load(file, allow_pickle=False) as held:
                arrays = {key: torch.from_numpy(held[key]) for key in held.files}
                tensors = {key: _real(array, f"{key} in {file.name}") for key, array in arrays.items()}
        except (OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise RequestError(f"{file.name} cannot be read: {error}. Fetch it again.") from error
    else:
        renamed = {"w_enc": "W_enc", "w_dec": "W_dec"}
        tensors = {renamed.get(key, key): value for key, value in _tensors(file).items()}
    return make(_info(name, place, "jumprelu", None, file), tensors)


def _sparsify(folder: Path, given: Place) -> Sae:
    cfg = _json(folder / "cfg.json")
    name = folder.name
    _required(
        cfg, {"activation": ("topk",), "skip_connection": (False,), "transcode": (False,), "signed": (False,)}, name
    )
    if type(cfg.get("k")) is not int:
        raise RequestError(f"cfg.json of “{name}” says no whole k (it says {cfg.get('k')!r}).")
    tensors = _tensors(folder / "sae.safetensors")
    if "encoder.weight" not in tensors or "encoder.bias" not in tensors:
        raise RequestError(f"sae.safetensors of “{name}” holds no encoder.weight and encoder.bias.")
    tensors["W_enc"] = tensors.pop("encoder.weight").T
    tensors["b_enc"] = tensors.pop("encoder.bias")
    if "b_dec" in tensors:
        tensors = _centred(tensors, name)
    hook = folder.name if given.layer is None or given.site is None else ""
    return make(_info(name, _said(hook, given), "topk", cfg["k"], folder), tensors)


def _fetched(name: str) -> Path:
    """A folder of files on this machine, or of `OWNER/NAME[/FOLDER]` on the hub that transformers is configured for."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    parts = name.strip("/").split("/")
    if len(parts) < 2 or name.startswith((".", "~", "/")):
        raise RequestError(f"{name}: there is no such folder or file. Give a folder, a file, or a hub's OWNER/NAME.")
    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if any(part in ("", ".", "..") for part in parts):
        raise RequestError(f"“{name}” is no name on a hub: write OWNER/NAME or OWNER/NAME/FOLDER.")
    owner, inside = "/".join(parts[:2]), "/".join(parts[2:])
    wanted = [f"{inside}/{file}" if inside else file for file in FETCHED]
    try:
        found = Path(snapshot_download(owner, allow_patterns=wanted)) / inside
        if not any((found / file).is_file() for file in WEIGHTS):
            held = {str(Path(file).parent) for file in list_repo_files(owner) if Path(file).name in WEIGHTS}
            raise RequestError(f"{name} holds no SAE itself. {_several(owner, held)}")
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        words = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RequestError(f"{name} cannot be fetched from the hub: {words}") from error
    return found


def _several(name: str, folders: set[str]) -> str:
    """Which folders in a place hold an SAE, in a sentence."""
    if not folders:
        return "No folder in it holds one."
    some = sorted(folders, key=lambda folder: [
        int(part) if part.isdigit() else part for part in re.split(r"(\d+)", folder)
    ])  # fmt: skip
    more = f" … ({len(some)} in all)" if len(some) > _SHOWN else ""
    return f"Folders that do: {', '.join(f'{name}/{folder}' for folder in some[:_SHOWN])}{more}. Choose one."


def read(name: str, layer: int | None = None, site: str | None = None) -> Sae:
    """The SAE of a folder, a file of it, or a hub name. Raises RequestError, UnknownName, NonFinite."""
    try:
        return _read(name, _fetched(name), Place(layer, site))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {str(error)[:_TOLD]}"  # whatever a file may say in place of what it should
        raise RequestError(f"The files of {name} hold something else than their format says ({told}). "
                           "Fetch them again, or choose others.") from error  # fmt: skip


def _read(name: str, path: Path, given: Place) -> Sae:
    folder = path.parent if path.is_file() else path
    for file in (path, folder / "params.npz", folder / "params.safetensors"):
        if file.is_file() and (file.suffix == ".npz" or file.name == "params.safetensors"):
            return _scope(file, given)
    if (folder / "card.json").is_file():
        return _own(folder, given)
    if (folder / "sae_weights.safetensors").is_file() and (folder / "cfg.json").is_file():
        return _saelens(folder, given)
    if (folder / "sae.safetensors").is_file() and (folder / "cfg.json").is_file():
        return _sparsify(folder, given)
    pickled, inside = "", set()
    with contextlib.suppress(OSError):
        found = (file for kind in WEIGHTS for depth in ("*", "*/*", "*/*/*") for file in folder.glob(f"{depth}/{kind}"))
        inside = {str(file.parent.relative_to(folder)) for file in found}
        if any(file.suffix in (".pt", ".pth", ".bin", ".pkl") for file in folder.iterdir()):
            pickled = " Pickled weights (.pt, .bin) are not read: save them as safetensors."
    if inside:
        raise RequestError(f"{name} holds no SAE itself. {_several(name, inside)}")
    raise RequestError(f"{name} holds no SAE that is known: {FILES}.{pickled}")


def attach(loaded: Loaded, name: str, layer: int | None = None, site: str | None = None) -> Sae:
    """`read`, on the device of its layer. Raises RequestError or UnknownName where it cannot stand on this model."""
    sae = read(name, layer, site)
    check_place(loaded, sae.info.layer, sae.info.site, sae.info.d_model, f"“{sae.info.name}”")
    return sae.to(loaded.device)
