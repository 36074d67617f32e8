"""capture() and intervene(): the only file that registers hooks.

Both are context managers that remove their hooks by handle whatever happens inside (BaseException too). Neither stores
anything on the model. Registered in the order intervene → capture, so a capture sees the activations after the edit.

Positions are absolute: a pre-hook on the decoder reads `position_ids` of each call and publishes them to this
intervention alone, so prefill, decoding with the key–value cache and decoding without it all agree.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from engine.anatomy import Anatomy
from engine.contract import EngineError, NonFinite
from engine.interventions import Edits


@dataclasses.dataclass
class Captured:
    """Filled while the model runs. `activations[layer]` = a list with one (rows, pos, d_mlp) tensor per call;
    `final[call]` = the final norm's input (rows, pos, d_model)."""

    activations: list[list[torch.Tensor]]
    final: list[torch.Tensor]

    def layer(self, layer: int) -> torch.Tensor:
        """(rows, pos, d_mlp) of the only call. Raises EngineError if the model ran more or less than once."""
        calls = self.activations[layer]
        if len(calls) != 1:
            raise EngineError(f"Layer {layer} ran {len(calls)} times where one run was expected.")
        return calls[0]

    def layers(self) -> list[torch.Tensor]:
        return [self.layer(layer) for layer in range(len(self.activations))]


@contextlib.contextmanager
def _removing(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def capture(anatomy: Anatomy, gradients: bool = False, last_only: bool = False) -> Iterator[Captured]:
    """Keep every layer's activations (the down projections' inputs) and the final norm's input.

    With `gradients` the activations can be differentiated: the first layer's are made a leaf, so a backward pass
    stops there and never enters the vision tower. With `last_only` just the last position of each call is kept.
    """
    captured = Captured([[] for _ in anatomy.downs], [])

    def keep(layer: int) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
            activation = args[0]
            if gradients:
                if not activation.requires_grad:
                    activation = activation.detach().requires_grad_(True)
                captured.activations[layer].append(activation)
                return (activation, *args[1:])
            captured.activations[layer].append((activation[:, -1:] if last_only else activation).detach().clone())
            return None

        return hook

    def keep_final(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        captured.final.append((args[0][:, -1:] if last_only else args[0]).detach())

    handles: list[RemovableHandle] = []
    with _removing(handles):
        for layer, down in enumerate(anatomy.downs):
            handles.append(down.register_forward_pre_hook(keep(layer)))
        handles.append(anatomy.final_norm.register_forward_pre_hook(keep_final))
        yield captured


@contextlib.contextmanager
def capture_writes(anatomy: Anatomy) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Keep what each component adds to the residual stream: `embedding`, `attention`, `mlp` (one (rows, pos,
    d_model) tensor a layer), and `final` = the final norm's input. For bookkeeping and the self-check."""
    writes: dict[str, list[torch.Tensor]] = {"embedding": [], "attention": [], "mlp": [], "final": []}

    def output(kind: str) -> Any:
        def hook(_module: torch.nn.Module, _args: Any, result: Any) -> None:
            writes[kind].append((result[0] if isinstance(result, tuple) else result).detach())

        return hook

    def entry(kind: str) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs["hidden_states"]
            writes[kind].append(value.detach())

        return hook

    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles.append(anatomy.layers[0].register_forward_pre_hook(entry("embedding"), with_kwargs=True))
        for attention, mlp in zip(anatomy.attentions, anatomy.mlps, strict=True):
            if attention is not None:
                handles.append(attention.register_forward_hook(output("attention")))
            handles.append(mlp.register_forward_hook(output("mlp")))
        handles.append(anatomy.final_norm.register_forward_pre_hook(entry("final"), with_kwargs=True))
        yield writes


@contextlib.contextmanager
def intervene(anatomy: Anatomy, rows: Sequence[Edits]) -> Iterator[None]:
    """Edit activations, one `Edits` a batch row: a' = a · scale + shift at the positions each row names.

    A row with no edits is left bit-equal. Raises EngineError when the batch has another number of rows, or when the
    model does not say which positions it is computing.
    """
    touched = sorted({layer for row in rows for layer in row.layers})
    here: list[torch.Tensor] = []

    def publish(_module: torch.nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        positions = kwargs.get("position_ids")
        if positions is None:
            raise EngineError("The model was run without position_ids, so a steering cannot tell where it acts.")
        here[:] = [positions if positions.ndim == 2 else positions[0]]

    def edit(layer: int) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            activation = args[0]
            if activation.shape[0] != len(rows):
                raise EngineError(f"The steering has {len(rows)} rows but the batch has {activation.shape[0]}.")
            parts = []
            for k, row in enumerate(rows):
                mine = activation[k : k + 1]
                parts.append(row.apply(layer, mine, here[0][min(k, len(here[0]) - 1)]) if layer in row.layers else mine)
            return (torch.cat(parts) if len(parts) > 1 else parts[0], *args[1:])

        return hook

    handles: list[RemovableHandle] = []
    with _removing(handles):
        if touched:
            handles.append(anatomy.decoder.register_forward_pre_hook(publish, with_kwargs=True))
        handles += [anatomy.downs[layer].register_forward_pre_hook(edit(layer)) for layer in touched]
        yield


def count_hooks(model: torch.nn.Module) -> int:
    """Hooks of any kind on the model's modules: zero between requests. Those of transformers itself do not count: it
    leaves some on a vision tower that returns several layers."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]
    return sum(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)


def require_finite(tensor: torch.Tensor, where: str) -> None:
    """Raise NonFinite naming `where` if any entry is NaN or infinite."""
    if not bool(torch.isfinite(tensor).all()):
        raise NonFinite(f"The numbers stop being finite at {where}. Try another dtype (float32), or a milder steering.")
