"""Parameters wherever they rest and however they are packed.

A large model can lie on several devices, with parts of it in CPU memory or on disk; accelerate then brings a module's
parameters in while that module runs, and what the module holds in between are empty shells on the `meta` device. In 4
or 8 bits (bitsandbytes) a parameter is packed. The engine reads weights only through here.
"""

from collections.abc import Iterator
from typing import Any

import torch

PACKED = ("Params4bit", "Int8Params")


def parameter(module: Any, name: str = "weight") -> torch.Tensor | None:
    """The module's parameter as numbers on the device on which the module runs, unpacked; None where it has none.

    It is the model's own tensor where that is neither packed nor kept elsewhere."""
    held: torch.Tensor | None = getattr(module, name, None)
    if held is None:
        return None
    if held.is_meta:
        brings = next(hook for hook in _hooks(module) if hook.offload)
        kept: torch.Tensor = brings.weights_map[name]
        return kept.to(brings.execution_device, held.dtype)
    if isinstance(held, torch.nn.Parameter) and type(held).__name__ in PACKED:
        from transformers.integrations.bitsandbytes import dequantize_bnb_weight

        unpacked: torch.Tensor = dequantize_bnb_weight(held, state=getattr(module, "state", None))
        return unpacked
    return held


def weight(module: Any) -> torch.Tensor:
    """`parameter` of a module that has a weight."""
    found = parameter(module)
    assert found is not None
    return found


def device_of(module: Any) -> torch.device:
    """Where the module, or the first of its parts with parameters, runs."""
    for child in module.modules():
        held = next(child.parameters(recurse=False), None)
        if held is not None:
            return next(torch.device(hook.execution_device) for hook in _hooks(child)) if held.is_meta else held.device
    return torch.device("cpu")


def bring_together(model: Any) -> None:
    """Have accelerate bring in all weights of a torch.nn.MultiheadAttention when it runs: it reads those of its output
    map without running that module. (The pooling head of a SigLIP tower is one.)"""
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            for hook in _hooks(module):
                hook.place_submodules = True


def _hooks(module: Any) -> Iterator[Any]:
    """accelerate's hooks on this module that say on which device it runs."""
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        if getattr(one, "execution_device", None) is not None:
            yield one
