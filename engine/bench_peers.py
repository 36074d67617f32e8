"""What `make bench` sets beside `gradient`: the same forward and backward by hand, and the same scores by other tools.

nnsight and captum are optional (`pip install 'sfumato[peers]'`). Both are given the decoder's own inputs, with the
picture's features kept, and have to find activation × gradient at the input of every down projection. The model's
weights need no gradient, so the embeddings that the decoder is given are made the leaf where the graph begins.
"""

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from engine.features import Inputs
from engine.hooks import leaf_embeddings
from engine.loading import Loaded
from engine.running import forward
from engine.targets import scalar

NAMES = ("nnsight", "captum")
Scores = list[torch.Tensor]


def missing() -> list[str]:
    """The optional peers that cannot be imported."""
    return [name for name in NAMES if importlib.util.find_spec(name) is None]


def forward_and_backward(loaded: Loaded, inputs: Inputs, answer: Sequence[int]) -> Callable[[], Any]:
    """The decoder's forward pass and the backward pass through all of it, in plain torch."""

    def call() -> Any:
        with torch.enable_grad(), leaf_embeddings(loaded.anatomy) as leaves:
            value = scalar(forward(loaded, inputs, len(answer) + 1)[0, :-1], answer, "logprob")
            return torch.autograd.grad(value, leaves)

    return call


def peers(loaded: Loaded, inputs: Inputs, answer: Sequence[int]) -> dict[str, Callable[[], Scores]]:
    """Each installed peer's way to one (pos, d_mlp) score tensor a layer. `inputs` one row, prompt + answer."""
    found: dict[str, Callable[[], Scores]] = {}
    absent = missing()
    if "nnsight" not in absent:
        found["nnsight"] = _nnsight(loaded, inputs, answer)
    if "captum" not in absent:
        found["captum, a layer at a time"] = _captum(loaded, inputs, answer, together=False)
        found["captum, all layers"] = _captum(loaded, inputs, answer, together=True)
    return found


def disagreement(theirs: Scores, ours: Scores) -> float:
    """The largest difference, relative to the largest score of its layer."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(theirs, ours, strict=True))


def _nnsight(loaded: Loaded, inputs: Inputs, answer: Sequence[int]) -> Callable[[], Scores]:
    nnsight = import_module("nnsight")
    traced = nnsight.NNsight(loaded.anatomy.runner)
    name_of = {module: name for name, module in loaded.anatomy.runner.named_modules()}
    downs = [_reach(traced, name_of[down]) for down in loaded.anatomy.downs]
    given = inputs.arguments()
    if inputs.embeddings is not None:
        del given["input_ids"]
    given |= {"use_cache": False, "logits_to_keep": len(answer) + 1, "return_dict": True}

    def call() -> Scores:
        with torch.enable_grad(), leaf_embeddings(loaded.anatomy):
            with traced.trace(**given):
                activations = [down.input for down in downs]
                value: Any = scalar(traced.output.logits[0, :-1], answer, "logprob")
                slopes: list[Any] = []
                with value.backward():
                    for activation in reversed(activations):
                        slopes.insert(0, activation.grad)
                pairs = zip(activations, slopes, strict=True)
                scores = nnsight.save([(activation * slope).detach()[0] for activation, slope in pairs])
            return list(scores)

    return call


def _reach(traced: Any, path: str) -> Any:
    """nnsight's own view of the module of this dotted name."""
    for part in path.split("."):
        traced = traced[int(part)] if part.isdigit() else getattr(traced, part)
    return traced


def _captum(loaded: Loaded, inputs: Inputs, answer: Sequence[int], together: bool) -> Callable[[], Scores]:
    method = import_module("captum.attr").LayerGradientXActivation

    def value(_ids: torch.Tensor) -> torch.Tensor:
        return scalar(forward(loaded, inputs, len(answer) + 1)[0, :-1], answer, "logprob")[None]

    def attribute(layer: Any) -> Any:
        return method(value, layer).attribute(inputs.ids, attribute_to_layer_input=True)

    def call() -> Scores:
        downs = list(loaded.anatomy.downs)
        with torch.enable_grad(), leaf_embeddings(loaded.anatomy), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that token ids have no gradient
            found = attribute(downs) if together else [attribute(down) for down in downs]
        tensors = [one[0] if isinstance(one, tuple) else one for one in found]
        return [tensor.detach()[0] for tensor in tensors]

    return call
