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
from engine.contract import Check, Target
from engine.features import Inputs
from engine.hooks import capture, require_finite
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, scalar

CANCELS = (
    "each MLP's output is normalised before it enters the stream, so scaling all of a layer's neurons at one position "
    "changes nothing: their scores sum to zero there, and the map of all neurons together is empty by construction"
)


def gradient(loaded: Loaded, embeddings: Inputs, answer: Sequence[int], target: Target) -> Scored:
    """Scores of one row. `embeddings` one row, prompt + answer; `answer` = the answer's ids. Runs inside
    whatever interventions are active, and then explains the steered activations."""
    start, end = resolve(target, len(answer))
    with torch.enable_grad(), capture(loaded.anatomy, gradients=True) as captured:
        logits = forward(loaded, embeddings, len(answer) + 1)[0]
        value = scalar(logits[start:end], answer[start:end], target.quantity)
        require_finite(value.detach(), "the target's value")
        activations = captured.layers()
        gradients = torch.autograd.grad(value, activations)
    cancels = any(norm is not None for norm in loaded.anatomy.mlp_norms)
    scores = [(a.detach().float() * g.float())[0] for a, g in zip(activations, gradients, strict=True)]
    largest = peaks([a.detach()[0] for a in activations])
    checks = (Check("a layer's scores cancel", True, CANCELS),) if cancels else ()
    return Scored(scores, largest, float(value.detach()), None, checks, cancels, captured.norms[0][0])


def peaks(activations: list[torch.Tensor]) -> torch.Tensor:
    """(n_layers, d_mlp): each neuron's activation of largest magnitude over the positions (pos, d_mlp) given."""
    result = []
    for layer in activations:
        low, high = layer.amin(0), layer.amax(0)
        result.append(torch.where(high >= -low, high, low))
    return torch.stack(result)
