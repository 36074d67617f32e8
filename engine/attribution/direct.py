"""`direct`: what a neuron writes straight into the answer's logits (METHODS.md §1).

1. At the position p_k that predicts token y_k the logit is ⟨norm(r), W_U[y_k]⟩ (+ bias), r = the residual stream.
2. With the final norm's scale ρ(p_k) held at its actual value the norm is linear, so every component's share is
   ⟨(component) ⊙ γ/ρ, W_U[y_k]⟩, and the shares of embedding, attentions and MLPs add up to the logit.
3. Neuron (l, i) contributes s = a_{l,i}(p_k) · ⟨v_{l,i} ⊙ γ/ρ(p_k), W_U[y_k]⟩; the target's score is the sum over k.

It reads only the positions that predict the answer, so it has no heat map, and it cannot see a neuron that acts
through later layers. The activations come from the generation itself: no further pass. After Pan et al. 2024.
"""

from collections.abc import Sequence

import torch

from engine.anatomy import norm_map
from engine.attribution.gradient import peaks
from engine.attribution.result import Scored
from engine.contract import Target
from engine.hooks import Captured, capture
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, token_logits


def directions(loaded: Loaded, final: torch.Tensor, answer: Sequence[int]) -> torch.Tensor:
    """(tokens, d_model) float32: what a component is multiplied with to give its share of each token's logit.

    `final` (tokens, d_model) = the final norm's input at the positions that predict `answer`."""
    weight = loaded.anatomy.unembedding.weight
    rows = weight[torch.as_tensor(list(answer), device=weight.device)].float()
    scale, centred = norm_map(loaded.anatomy.final_norm, final)
    result = rows * scale
    return result - result.mean(-1, keepdim=True) if centred else result


def logits_from_final(loaded: Loaded, final: torch.Tensor, answer: Sequence[int]) -> torch.Tensor:
    """(tokens,) the tokens' own logits, through the model's norm and unembedding."""
    with torch.no_grad():
        logits = loaded.anatomy.unembedding(loaded.anatomy.final_norm(final))
    return token_logits(logits, answer)


@torch.no_grad()
def from_captured(
    loaded: Loaded, captured: Captured, prompt_length: int, answer: Sequence[int], target: Target
) -> Scored:
    """Scores from a generation's own activations (capture with `last_only`): call k predicts answer token k."""
    start, end = resolve(target, len(answer))
    activations = [torch.cat([call[0] for call in calls[start:end]]) for calls in captured.activations]
    final = torch.cat([call[0] for call in captured.final[start:end]])
    return _score(loaded, activations, final, prompt_length - 1 + start, answer[start:end])


@torch.no_grad()
def direct(
    loaded: Loaded, embeddings: torch.Tensor, prompt_length: int, answer: Sequence[int], target: Target
) -> Scored:
    """Scores by one teacher-forced pass over prompt + answer, `embeddings` (1, pos, d_model)."""
    start, end = resolve(target, len(answer))
    with capture(loaded.anatomy) as captured:
        forward(loaded, embeddings, 1)
    first = prompt_length - 1 + start
    last = prompt_length - 1 + end
    activations = [layer[0, first:last] for layer in captured.layers()]
    return _score(loaded, activations, captured.final[0][0, first:last], first, answer[start:end])


def _score(
    loaded: Loaded, activations: list[torch.Tensor], final: torch.Tensor, first: int, answer: Sequence[int]
) -> Scored:
    towards = directions(loaded, final, answer)
    scores = [
        activation.float() * (towards @ loaded.anatomy.write_vectors(layer).T.float())
        for layer, activation in enumerate(activations)
    ]
    value = float(logits_from_final(loaded, final, answer).sum())
    return Scored(scores, peaks(activations), value, at=[first + k for k in range(len(answer))])
