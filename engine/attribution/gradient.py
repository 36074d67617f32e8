"""`gradient`: activation × ⟨write vector, gradient⟩ for all neurons, positions and layers (METHODS.md §1).

1. One teacher-forced forward pass over prompt + answer keeps every layer's activations a_l (pos, d_mlp).
2. S = Σ log p(y_k | before) over the target's tokens, or the sum of their logits.
3. One backward pass gives ∂S/∂a_l. Since m_l = W_down a_l, ∂S/∂a_{l,i} = ⟨v_{l,i}, g_l⟩ with g_l = ∂S/∂m_l.
4. s_{l,i}(p) = a_{l,i}(p) · ∂S/∂a_{l,i}(p): to first order, what S loses when that activation is set to zero.

Weights need no gradient and the first layer's activations are a leaf, so the backward pass stays in the decoder's
blocks. Where a post-norm follows the MLP, S does not change when all of a layer's activations at a position are scaled
together, so their scores sum to zero there (METHODS.md's identity with ⟨m_l, g_l⟩ = 0): neurons and concepts can be
compared, the sum over all of them says nothing, and the result says so.
Cost: one forward and one activation-only backward pass.
Source: gradient × input on MLP neurons, after Schwettmann et al. 2023; a reconstruction of the paper's attribution.
"""

from collections.abc import Sequence

import torch

from engine.attribution.result import Scored
from engine.contract import Check, RequestError, Target
from engine.features import Inputs
from engine.hooks import capture, require_finite
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, scalar

BY_GRADIENT = ("gradient", "integrated")
"""Methods that need a backward pass."""

SCALE = 1024.0
"""What a slope at the logits is multiplied by while it is in float16; it is at most 1 for each token."""

CANCELS = (
    "each MLP's output is normalised before it enters the stream, so scaling all of a layer's neurons at one position "
    "changes nothing: their scores sum to zero there, and the map of all neurons together is empty by construction"
)


def require_gradient(loaded: Loaded) -> None:
    """Raise RequestError, with the reason, where the loaded model has no gradients (`ModelInfo.no_gradient`)."""
    if loaded.no_gradient:
        raise RequestError(
            f"This model, as it is loaded, has no gradients: {loaded.no_gradient} Choose direct, pan or "
            "logprob_increase, or load the model with another --dtype or without --quantize."
        )


def gradient(loaded: Loaded, embeddings: Inputs, answer: Sequence[int], target: Target) -> Scored:
    """Scores of one row. `embeddings` one row, prompt + answer; `answer` = the answer's ids. Runs inside
    whatever interventions are active, and then explains the steered activations. Scores are on the model's first
    device, whichever layers are elsewhere. Raises RequestError where the model has no gradients."""
    require_gradient(loaded)
    start, end = resolve(target, len(answer))
    with torch.enable_grad(), capture(loaded.anatomy, gradients=True) as captured:
        logits = forward(loaded, embeddings, len(answer) + 1)[0]
        value = scalar(logits[start:end], answer[start:end], target.quantity)
        require_finite(value.detach(), "the target's value")
        activations = captured.layers()
        gradients = gradients_of(value, logits, activations)
    cancels = any(norm is not None for norm in loaded.anatomy.mlp_norms)
    pairs = zip(activations, gradients, strict=True)
    scores = [(a.detach().float() * g.float())[0].to(loaded.device) for a, g in pairs]
    kept = [a.detach()[0] for a in activations]
    checks = (Check("a layer's scores cancel", True, CANCELS),) if cancels else ()
    return Scored(scores, peaks(kept), float(value.detach()), None, checks, cancels, captured.norms[0][0], kept)


def gradients_of(value: torch.Tensor, logits: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """∂value/∂inputs. In float16 the slope at the logits of a certain answer would vanish on the way down, so it goes
    down at magnitude 1 and its size is put back at the end, in float32."""
    if logits.dtype != torch.float16:
        return list(torch.autograd.grad(value, inputs))
    (slope,) = torch.autograd.grad(value * SCALE, logits, retain_graph=True)
    size = slope.float().abs().max().clamp(min=1e-30)
    found = torch.autograd.grad(logits, inputs, (slope.float() / size).to(logits.dtype))
    return [gradient.float() * (size / SCALE).to(gradient.device) for gradient in found]


def peaks(activations: list[torch.Tensor]) -> torch.Tensor:
    """(n_layers, d_mlp): each neuron's activation of largest magnitude over the positions (pos, d_mlp) given."""
    result = []
    for layer in activations:
        low, high = layer.amin(0), layer.amax(0)
        result.append(torch.where(high >= -low, high, low))
    return torch.stack([layer.to(result[0].device) for layer in result])
