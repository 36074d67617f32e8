"""Where everything is in a decoder, found by structure and not by a model's name.

1. The unembedding is the model's output embedding; its input width is d_model.
2. The decoder's blocks are the ModuleList whose every block holds exactly one *down projection*: a linear map to
   d_model, outside the attention, from a width that no attention projection has. Its input is `a_l`, the neurons'
   activations (METHODS.md §0): the true product in gated MLPs.
3. The decoder is the parent of that list; the final norm is its one other child with a weight of d_model entries.
4. Image positions carry the configuration's image token.
"""

import dataclasses
from typing import Any

import torch
from torch import nn

from engine.contract import ModelRefused


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """Handles into a loaded model; the modules are the model's own. `downs[l]` is layer l's down projection,
    `mlps[l]` the MLP that holds it, `attentions[l]` the attention (None where it was not recognised)."""

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

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    def write_vectors(self, layer: int) -> torch.Tensor:
        """(d_mlp, d_model): row i is v_{l,i}, what neuron (l, i) writes per unit of activation."""
        weight = self.downs[layer].weight
        assert isinstance(weight, torch.Tensor)
        return weight.T if isinstance(self.downs[layer], nn.Linear) else weight


def _width(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear map: nn.Linear, or GPT-2's Conv1D (weight stored as inputs × outputs)."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D":
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        return int(weight.shape[0]), int(weight.shape[1])
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


def find_anatomy(model: Any) -> Anatomy:
    """The anatomy of a transformers model with a decoder. Raises ModelRefused naming what was not found."""
    unembedding = model.get_output_embeddings()
    if not isinstance(unembedding, nn.Linear):
        raise ModelRefused("The model has no linear unembedding, so no token's logit can be explained.")
    d_model = unembedding.in_features
    candidates = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) == 0:
            continue
        downs = [_down_projection(block, d_model) for block in module]
        if all(down is not None for down in downs) and "vision" not in name.lower():
            candidates.append((name, module, [down for down in downs if down is not None]))
    if len(candidates) != 1:
        names = ", ".join(name for name, _, _ in candidates) or "none"
        raise ModelRefused(f"One stack of decoder blocks with an MLP each is needed; found: {names}.")
    path, blocks, found = candidates[0]
    decoder = model.get_submodule(path.rpartition(".")[0])
    widths = {width for _, _, width in found}
    if len(widths) != 1:
        raise ModelRefused(f"All layers must have one MLP width; found {sorted(widths)}.")
    text = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    image_token = getattr(model.config, "image_token_id", None)
    return Anatomy(
        decoder=decoder,
        layers=tuple(blocks),
        mlps=tuple(
            block.get_submodule(name.rpartition(".")[0]) for block, (name, _, _) in zip(blocks, found, strict=True)
        ),
        downs=tuple(module for _, module, _ in found),
        attentions=tuple(_attention(block) for block in blocks),
        final_norm=_final_norm(decoder, d_model),
        unembedding=unembedding,
        embedding=model.get_input_embeddings(),
        d_model=d_model,
        d_mlp=widths.pop(),
        image_token_id=int(image_token) if image_token is not None else None,
        max_positions=int(getattr(text, "max_position_embeddings", 0) or 1 << 30),
    )


def _attention(block: nn.Module) -> nn.Module | None:
    found = [child for name, child in block.named_children() if _is_attention(name) and "norm" not in name]
    return found[0] if len(found) == 1 else None


def _final_norm(decoder: nn.Module, d_model: int) -> nn.Module:
    found = []
    for child in decoder.children():
        weight = getattr(child, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.shape == (d_model,):
            found.append(child)
    if len(found) != 1:
        raise ModelRefused(f"The decoder must have one final norm; found {len(found)}.")
    return found[0]


def norm_map(norm: nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The final norm as a linear map with its scale held fixed at `hidden` (rows, d_model).

    Returns γ/ρ (rows, d_model; float32) and whether the norm also takes the mean away (LayerNorm). The gain γ is
    read off by applying the norm to ones (RMS norms; a gain stored as 1 + w comes out right) — not by its name.
    """
    rows = hidden.float()
    eps = float(getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", 0.0) or 0.0)
    if isinstance(norm, nn.LayerNorm):
        rho = (rows.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
        return norm.weight.float() / rho, True
    with torch.no_grad():
        ones = torch.ones(1, rows.shape[-1], dtype=hidden.dtype, device=hidden.device)
        gain = norm(ones).float() * (1 + eps) ** 0.5
    rho = (rows.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return gain / rho, False
