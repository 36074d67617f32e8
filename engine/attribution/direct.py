"""`direct`: what a neuron writes straight into the answer's logits (METHODS.md §1).

1. At the position p_k that predicts token y_k the logit is ⟨norm(r), W_U[y_k]⟩ (+ bias), r = the residual stream.
2. With the final norm's scale ρ(p_k) held at its actual value the norm is linear, so every component's share is
   ⟨(component) ⊙ γ/ρ, W_U[y_k]⟩, and the shares of embedding, attentions and MLPs add up to the logit.
3. Where an MLP's output passes a post-norm before it enters the residual stream, that norm is held at its actual scale
   too: the write vector becomes v_{l,i} ⊙ γ'/ρ'_l(p_k) (less its mean for a LayerNorm).
4. Neuron (l, i) contributes s = a_{l,i}(p_k) · ⟨v_{l,i} ⊙ γ/ρ(p_k), W_U[y_k]⟩; the target's score is the sum over k.
   A scaling of the logits is included; of a soft-capped logit it is the uncapped one, which is linear and in the same
   order, that is explained.

It reads only the positions that predict the answer, so it has no heat map, and it cannot see a neuron that acts
through later layers. The activations come from the generation itself: no further pass. After Pan et al. 2024.
"""

import dataclasses
from collections.abc import Sequence

import torch

from engine.anatomy import norm_map
from engine.attribution.gradient import peaks
from engine.attribution.result import Scored
from engine.contract import Target
from engine.features import Inputs
from engine.hooks import Captured, capture
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, token_logits
from engine.weights import parameter, weight


def directions(loaded: Loaded, final: torch.Tensor, answer: Sequence[int]) -> torch.Tensor:
    """(tokens, d_model) float32: what a component is multiplied with to give its share of each token's logit.

    `final` (tokens, d_model) = the final norm's input at the positions that predict `answer`."""
    matrix = weight(loaded.anatomy.unembedding)
    rows = matrix[torch.as_tensor(list(answer), device=matrix.device)].float().to(final.device)
    scale, centred = norm_map(loaded.anatomy.final_norm, final)
    result = rows * scale * loaded.anatomy.logit_scale
    return result - result.mean(-1, keepdim=True) if centred else result


def through_post_norm(loaded: Loaded, layer: int, activation: torch.Tensor, towards: torch.Tensor) -> torch.Tensor:
    """(tokens, d_model): `towards` as seen from before the layer's post-norm, its scale held at what `activation`
    (tokens, d_mlp) gives; `towards` itself where there is none."""
    norm = loaded.anatomy.mlp_norms[layer]
    if norm is None:
        return towards
    written = activation.float() @ loaded.anatomy.write_vectors(layer).float().to(activation.device)
    bias = parameter(loaded.anatomy.downs[layer], "bias")
    written = written if bias is None else written + bias.float().to(activation.device)
    scale, centred = norm_map(norm, written.to(activation.dtype))
    result = towards * scale
    return result - result.mean(-1, keepdim=True) if centred else result


def logits_from_final(loaded: Loaded, final: torch.Tensor, answer: Sequence[int]) -> torch.Tensor:
    """(tokens,) the tokens' own logits before any soft cap, through the model's norm and unembedding."""
    with torch.no_grad():
        logits = loaded.anatomy.unembedding(loaded.anatomy.final_norm(final))
    return token_logits(logits, answer) * loaded.anatomy.logit_scale


@torch.no_grad()
def from_captured(
    loaded: Loaded, captured: Captured, prompt_length: int, answer: Sequence[int], target: Target
) -> Scored:
    """Scores from a generation's own activations (capture with `last_only`): call k predicts answer token k."""
    start, end = resolve(target, len(answer))
    activations = [torch.cat([call[0] for call in calls[start:end]]) for calls in captured.activations]
    final = torch.cat([call[0] for call in captured.final[start:end]])
    scored = _score(loaded, activations, final, prompt_length - 1 + start, answer[start:end])
    return dataclasses.replace(scored, norms=torch.cat([call[0] for call in captured.norms]))


@torch.no_grad()
def direct(loaded: Loaded, embeddings: Inputs, prompt_length: int, answer: Sequence[int], target: Target) -> Scored:
    """Scores by one teacher-forced pass over prompt + answer, `embeddings` one row."""
    start, end = resolve(target, len(answer))
    with capture(loaded.anatomy) as captured:
        forward(loaded, embeddings, 1)
    first = prompt_length - 1 + start
    last = prompt_length - 1 + end
    activations = [layer[0, first:last] for layer in captured.layers()]
    scored = _score(loaded, activations, captured.final[0][0, first:last], first, answer[start:end])
    return dataclasses.replace(scored, norms=captured.norms[0][0])


def _score(
    loaded: Loaded, activations: list[torch.Tensor], final: torch.Tensor, first: int, answer: Sequence[int]
) -> Scored:
    towards = directions(loaded, final, answer)
    scores = []
    for layer, activation in enumerate(activations):
        through = through_post_norm(loaded, layer, activation, towards.to(activation.device))
        scores.append(
            (activation.float() * (through @ loaded.anatomy.write_vectors(layer).T.float())).to(loaded.device)
        )
    value = float(logits_from_final(loaded, final, answer).sum())
    return Scored(scores, peaks(activations), value, at=[first + k for k in range(len(answer))])
