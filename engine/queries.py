"""Models that look through query tokens (BLIP-2, InstructBLIP): image positions have no patch of their own.

A Q-Former's queries read the whole picture by cross-attention. Query q is brought onto the tower's patch grid in the
proportions of its cross-attention, averaged over heads and over the layers that have one (the class token left out,
the rest scaled to sum to one). That says where a query looked, not what it took from there: the heat map of such a
model is softer evidence than that of a model with patches, and the self-check says so.
"""

import weakref
from typing import Any

import torch

from engine.hooks import watch_attention
from engine.loading import Loaded

_FORMERS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Where each model's Q-Former is, "" for none: finding it walks over all modules."""


def former(model: Any) -> Any | None:
    """The Q-Former, found by the query tokens that stand beside it; None in models with patches."""
    if model not in _FORMERS:
        beside = (name for name, module in model.named_modules() if _has_queries(module))
        found = next(beside, None)
        _FORMERS[model] = "" if found is None else f"{found}.qformer".removeprefix(".")
    return model.get_submodule(_FORMERS[model]) if _FORMERS[model] else None


def _has_queries(module: Any) -> bool:
    return isinstance(getattr(module, "query_tokens", None), torch.nn.Parameter) and hasattr(module, "qformer")


def query_spread(loaded: Loaded, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor | None, Any]:
    """((patches, queries) in row-major order of the tower's patches or None, the model's own encoder output)."""
    looking = former(loaded.model)
    if looking is None:
        return None, loaded.model.get_image_features(**given, return_dict=True)
    before = looking.config._attn_implementation
    looking.config._attn_implementation = "eager"  # the other kinds do not return their weights
    try:
        with watch_attention(looking) as seen:
            output = loaded.model.get_image_features(**given, return_dict=True)
    finally:
        looking.config._attn_implementation = before
    patches = int(given["pixel_values"].shape[-1] // _patch(loaded.model)) * int(
        given["pixel_values"].shape[-2] // _patch(loaded.model)
    )
    crossing = [weights for weights in seen if weights.shape[-1] >= patches > 1]
    queries = loaded.model.config.num_query_tokens
    mean = torch.stack([weights[0, :, :queries, -patches:].float().mean(0).cpu() for weights in crossing]).mean(0)
    return (mean / mean.sum(-1, keepdim=True)).T, output


def _patch(model: Any) -> int:
    return int(model.config.vision_config.patch_size)


@torch.no_grad()
def tower_states(loaded: Loaded, pixels: dict[str, Any]) -> torch.Tensor:
    """(patches, width): the tower's last states, without the class token in front of them."""
    values = pixels["pixel_values"].to(loaded.device, loaded.model.dtype)
    states: torch.Tensor = loaded.model.base_model.vision_model(pixel_values=values).last_hidden_state[0]
    patches = int(values.shape[-1] // _patch(loaded.model)) * int(values.shape[-2] // _patch(loaded.model))
    return states[-patches:]
