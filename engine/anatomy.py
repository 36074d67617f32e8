"""Where everything is in a decoder, found by structure and not by a model's name.

1. The unembedding is the model's output embedding; its input width is d_model.
2. The decoder's blocks are the ModuleList whose every block holds exactly one *down projection* (a linear map to
   d_model outside the attention), beside the input embedding: that tells the decoder from towers and Q-Formers. Its
   input is `a_l`, the neurons' activations (METHODS.md §0): the true product in gated MLPs.
3. The decoder is the parent of that list; the final norm is its one other child with a weight of d_model entries.
4. Two tokens are run through the decoder once: a norm of the block that receives the very tensor which the MLP (or the
   attention) returned stands between it and the residual stream (a *post-norm*).
5. Image positions carry the configuration's image token. Soft cap and scaling of the logits are the configuration's.
"""

import dataclasses
import inspect
from typing import Any

import torch
from torch import nn

from engine.contract import ModelRefused, UnknownName
from engine.hooks import Flow, trace
from engine.weights import device_of, weight


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """Handles into a loaded model; the modules are the model's own. `runner` gives logits for ids or embeddings: the
    model itself, or the language model inside a frame that cannot be run without a picture. `downs[l]` is layer l's
    down projection, `mlps[l]` the MLP that holds it (the down projection itself where the block holds it directly),
    `attentions[l]` the attention (None where it was not recognised), `mlp_norms[l]` and `attention_norms[l]` their
    post-norms or None. `flat`: the blocks flatten rows and positions into one axis before their MLP. The model's logit
    is soft_cap · tanh(z / soft_cap) with z = logit_scale × (unembedding of the final norm), or z itself without a cap.
    `stateful`: modules that keep rotary offsets of the last picture between calls."""

    runner: Any
    decoder: nn.Module
    layers: tuple[nn.Module, ...]
    mlps: tuple[nn.Module, ...]
    downs: tuple[nn.Module, ...]
    attentions: tuple[nn.Module | None, ...]
    final_norm: nn.Module
    unembedding: nn.Linear
    embedding: nn.Module
    d_model: int
    d_mlp: int
    image_token_id: int | None
    max_positions: int
    mlp_norms: tuple[nn.Module | None, ...] = ()
    attention_norms: tuple[nn.Module | None, ...] = ()
    flat: bool = False
    soft_cap: float | None = None
    logit_scale: float = 1.0
    stateful: tuple[nn.Module, ...] = ()

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    def site(self, layer: int, site: str) -> nn.Module:
        """The module whose (first) output is `site` of a layer: see `engine.sae.contract.SITES`. Raises UnknownName."""
        made = {
            "residual": self.layers[layer],
            "mlp": self.mlp_norms[layer] or self.mlps[layer],
            "attention": self.attention_norms[layer] or self.attentions[layer],
        }.get(site)
        if made is None:
            raise UnknownName(f"Layer {layer} of this model has no site “{site}”. Sites: residual, mlp, attention.")
        return made

    def write_vectors(self, layer: int) -> torch.Tensor:
        """(d_mlp, d_model): row i is v_{l,i}, what neuron (l, i) writes per unit of activation; on the layer's device,
        unpacked where the weights are packed (see `engine.weights`)."""
        matrix = weight(self.downs[layer])
        return matrix.T if isinstance(self.downs[layer], nn.Linear) else matrix


def _width(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear map: nn.Linear, or GPT-2's Conv1D (weight stored as inputs × outputs)."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D":
        matrix: Any = module.weight
        return int(matrix.shape[0]), int(matrix.shape[1])
    return None


def _is_attention(name: str) -> bool:
    return any("attn" in part or "attention" in part for part in name.split("."))


def _down_projection(block: nn.Module, d_model: int) -> tuple[str, nn.Module, int] | None:
    """The block's one linear map to d_model outside its attention, with its path and input width."""
    found = []
    for name, module in block.named_modules():
        width = _width(module)
        if width and width[1] == d_model and not _is_attention(name):
            found.append((name, module, width[0]))
    return found[0] if len(found) == 1 else None


def _checked_unembedding(model: Any) -> nn.Linear:
    unembedding = model.get_output_embeddings()
    if not isinstance(unembedding, nn.Linear):
        raise ModelRefused("The model has no linear unembedding, so no token's logit can be explained.")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelRefused("The model is an encoder with a decoder; only models that decode alone are explained.")
    return unembedding


def _stack(model: Any, d_model: int) -> tuple[str, nn.ModuleList, list[tuple[str, nn.Module, int]]]:
    """The decoder's blocks: their path, they themselves, and each one's down projection."""
    embedding = model.get_input_embeddings()
    candidates = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) == 0:
            continue
        downs = [_down_projection(block, d_model) for block in module]
        holder = model.get_submodule(name.rpartition(".")[0])
        if all(down is not None for down in downs) and any(child is embedding for child in holder.children()):
            candidates.append((name, module, [down for down in downs if down is not None]))
    if len(candidates) != 1:
        names = ", ".join(name for name, _, _ in candidates) or "none"
        raise ModelRefused(f"One stack of decoder blocks with an MLP each is needed; found: {names}.")
    return candidates[0]


def down_paths(model: Any) -> list[str]:
    """The paths of the decoder's down projections in a model that need not have its weights yet."""
    path, _, found = _stack(model, _checked_unembedding(model).in_features)
    return [f"{path}.{layer}.{name}" for layer, (name, _, _) in enumerate(found)]


def find_anatomy(model: Any) -> Anatomy:
    """The anatomy of a transformers model with a decoder. Raises ModelRefused naming what was not found."""
    unembedding = _checked_unembedding(model)
    d_model = unembedding.in_features
    embedding = model.get_input_embeddings()
    path, blocks, found = _stack(model, d_model)
    decoder = model.get_submodule(path.rpartition(".")[0])
    widths = {width for _, _, width in found}
    if len(widths) != 1:
        raise ModelRefused(f"All layers must have one MLP width; found {sorted(widths)}.")
    text = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    image_token = getattr(model.config, "image_token_id", None)
    if image_token is None:
        image_token = getattr(model.config, "image_token_index", None)
    attentions = tuple(_attention(block) for block in blocks)
    mlps = tuple(
        block.get_submodule(path) if (path := name.rpartition(".")[0]) else down
        for block, (name, down, _) in zip(blocks, found, strict=True)
    )
    flow = _flow(decoder, blocks, mlps, attentions, [down for _, down, _ in found], d_model, embedding.weight.dtype)
    return Anatomy(
        runner=_runner(model),
        decoder=decoder,
        layers=tuple(blocks),
        mlps=mlps,
        downs=tuple(module for _, module, _ in found),
        attentions=attentions,
        final_norm=_final_norm(decoder, d_model),
        unembedding=unembedding,
        embedding=embedding,
        d_model=d_model,
        d_mlp=widths.pop(),
        image_token_id=int(image_token) if image_token is not None else None,
        max_positions=int(getattr(text, "max_position_embeddings", 0) or 1 << 30),
        mlp_norms=flow.mlp_norms,
        attention_norms=flow.attention_norms,
        flat=flow.flat,
        soft_cap=getattr(text, "final_logit_softcapping", None),
        logit_scale=_logit_scale(text),
        stateful=tuple(module for module in model.modules() if hasattr(module, "rope_deltas")),
    )


def _runner(model: Any) -> Any:
    pixels = inspect.signature(inspect.unwrap(model.forward)).parameters.get("pixel_values")
    if pixels is None or pixels.default is not inspect.Parameter.empty:
        return model
    return model.language_model


def _logit_scale(text: Any) -> float:
    """What the configuration multiplies logits with: some write the factor, others its inverse."""
    scaling = getattr(text, "logits_scaling", None)
    return 1.0 / float(scaling) if scaling else float(getattr(text, "logit_scale", None) or 1.0)


def _norms(block: nn.Module, d_model: int) -> list[nn.Module]:
    """The block's children with a weight of d_model entries."""
    return [child for child in block.children() if getattr(getattr(child, "weight", None), "shape", None) == (d_model,)]


def _flow(
    decoder: nn.Module,
    blocks: nn.ModuleList,
    mlps: tuple[nn.Module, ...],
    attentions: tuple[nn.Module | None, ...],
    downs: list[nn.Module],
    d_model: int,
    dtype: torch.dtype,
) -> Flow:
    """Post-norms and axes, from one pass over two positions."""
    norms = [_norms(block, d_model) for block in blocks]
    states = torch.linspace(-1, 1, 2 * d_model, device=device_of(blocks), dtype=dtype).reshape(1, 2, d_model)
    try:
        with torch.no_grad(), trace(mlps, attentions, norms, downs) as flow:
            decoder(inputs_embeds=states, use_cache=False)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelRefused(f"The decoder cannot be run over two positions alone: {error}") from error
    return flow


def _attention(block: nn.Module) -> nn.Module | None:
    found = [child for name, child in block.named_children() if _is_attention(name) and "norm" not in name]
    return found[0] if len(found) == 1 else None


def _final_norm(decoder: nn.Module, d_model: int) -> nn.Module:
    found = _norms(decoder, d_model)
    if len(found) != 1:
        raise ModelRefused(f"The decoder must have one final norm; found {len(found)}.")
    return found[0]


def norm_map(norm: nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The final norm as a linear map with its scale held fixed at `hidden` (rows, d_model).

    Returns γ/ρ (rows, d_model; float32) and whether the norm also takes the mean away (LayerNorm). Both are read off
    by applying the norm to +1, −1, +1, … (mean 0, variance 1) and to the same raised by 1 — not by the norm's name: a
    gain stored as 1 + w comes out right, and a bias cancels.
    """
    rows = hidden.float()
    eps = float(getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", 0.0) or 0.0)
    with torch.no_grad():
        signs = torch.ones(1, rows.shape[-1], dtype=hidden.dtype, device=hidden.device)
        signs[:, 1::2] = -1
        up, down, raised = (norm(probe).float() for probe in (signs, -signs, signs + 1))
        gain = (up - down) / 2 * signs.float() * (1 + eps) ** 0.5
        centred = bool((up - raised).abs().max() < 0.1 * (up - down).abs().max())
    if centred:
        rho = (rows.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    else:
        rho = (rows.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return gain.to(rho.device) / rho, centred
