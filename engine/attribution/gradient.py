"""`gradient`: activation × ⟨write vector, gradient⟩ for all neurons, positions and layers (METHODS.md §1).

1. One teacher-forced forward pass over prompt + answer keeps every layer's activations a_l (pos, d_mlp).
2. S = Σ log p(y_k | before) over the target's tokens.
3. One backward pass gives ∂S/∂a_l. Since m_l = W_down a_l, ∂S/∂a_{l,i} = ⟨v_{l,i}, g_l⟩ with g_l = ∂S/∂m_l.
4. s_{l,i}(p) = a_{l,i}(p) · ∂S/∂a_{l,i}(p): to first order, what S loses when that activation is set to zero.

Weights need no gradient and the first layer's activations are a leaf, so the backward pass stays in the decoder's
blocks. Cost: one forward and one activation-only backward pass.
Source: gradient × input on MLP neurons, after Schwettmann et al. 2023; a reconstruction of the paper's attribution.
"""

from collections.abc import Sequence

import torch

from engine.attribution.result import Scored
from engine.contract import Target
from engine.hooks import capture, require_finite
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, token_logprobs


def gradient(loaded: Loaded, embeddings: torch.Tensor, answer: Sequence[int], target: Target) -> Scored:
    """Scores of one row. `embeddings` (1, pos, d_model) = prompt + answer; `answer` = the answer's ids. Runs inside
    whatever interventions are active, and then explains the steered activations."""
    start, end = resolve(target, len(answer))
    with torch.enable_grad(), capture(loaded.anatomy, gradients=True) as captured:
        logits = forward(loaded, embeddings, len(answer) + 1)[0]
        value = token_logprobs(logits[start:end], answer[start:end]).sum()
        require_finite(value.detach(), "the target's log-probability")
        activations = captured.layers()
        gradients = torch.autograd.grad(value, activations)
    scores = [(a.detach().float() * g.float())[0] for a, g in zip(activations, gradients, strict=True)]
    return Scored(scores, peaks([a.detach()[0] for a in activations]), float(value.detach()))


def peaks(activations: list[torch.Tensor]) -> torch.Tensor:
    """(n_layers, d_mlp): each neuron's activation of largest magnitude over the positions (pos, d_mlp) given."""
    result = []
    for layer in activations:
        low, high = layer.amin(0), layer.amax(0)
        result.append(torch.where(high >= -low, high, low))
    return torch.stack(result)
