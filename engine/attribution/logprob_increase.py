"""`logprob_increase`: how much a neuron's write raises the answer's log-probability (METHODS.md §1).

1. At the position p_k that predicts token y_k let r_l be the residual stream that layer l's MLP adds to: the embedding,
   the attentions up to layer l and the MLPs before it.
2. The final norm's scale is held at its actual value ρ(p_k), so reading the stream is linear: logits
   z(r) = W_U (r ⊙ γ/ρ) + constant, scaled and soft-capped as the model does it. A post-norm is held likewise.
3. s = Σ_k log p(y_k | r_l + a_{l,i}(p_k) v_{l,i}) − log p(y_k | r_l), p = softmax of z: exact for each neuron alone.

Unlike `direct` it sees the competition of other tokens; like it, it cannot see a neuron that acts through later layers.
One forward pass, and for every layer a product of the unembedding with all write vectors. After Yu & Ananiadou 2024.
"""

from collections.abc import Sequence

import torch

from engine.anatomy import norm_map
from engine.attribution.direct import through_post_norm
from engine.attribution.gradient import peaks
from engine.attribution.result import Scored
from engine.contract import Check, RequestError, Target
from engine.features import Inputs
from engine.hooks import capture, capture_writes
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, token_logprobs
from engine.weights import device_of, parameter, weight

CHUNK = 1 << 25
"""Logits held at one time: neurons are taken in as many pieces as that needs."""

READ = "the stream read through the held norm gives the model's log-probability"
TOLERANCE = 1e-2


@torch.no_grad()
def logprob_increase(
    loaded: Loaded, embeddings: Inputs, prompt_length: int, answer: Sequence[int], target: Target
) -> Scored:
    """Scores of one row at the positions that predict the target's tokens. `value` = their summed log-probability.

    Raises RequestError for a target of logits."""
    if target.quantity != "logprob":
        raise RequestError("logprob_increase explains log-probabilities; choose another method to explain logits.")
    start, end = resolve(target, len(answer))
    first, last = prompt_length - 1 + start, prompt_length - 1 + end
    with capture(loaded.anatomy) as captured, capture_writes(loaded.anatomy) as writes:
        logits = forward(loaded, embeddings, len(answer) + 1)[0]
    explained = list(answer[start:end])
    here = device_of(loaded.anatomy.unembedding)
    activations = [layer[0, first:last].to(here) for layer in captured.layers()]
    scale, centred = norm_map(loaded.anatomy.final_norm, captured.final[0][0, first:last])
    scale = scale.to(here)
    stream = writes["embedding"][0][0, first:last].float().to(here)
    scores = []
    for layer, activation in enumerate(activations):
        stream = stream + writes["attention"][layer][0, first:last].float().to(here)
        found = _layer(loaded, layer, activation.float(), stream, scale, centred, explained)
        scores.append(found.to(loaded.device))
        # As it is after the layer, not as a sum: a steering by latents adds to it as well.
        stream = writes["residual"][layer][0, first:last].float().to(here)
    value = float(token_logprobs(logits[start:end], explained).sum())
    read = 0.0
    for k, token in enumerate(explained):
        towards = _towards(loaded, scale[k], centred)
        read += float(_logprob(loaded, (towards @ stream[k] + _constant(loaded))[None], token)[0])
    gap = abs(read - value)
    check = Check(
        READ, gap <= TOLERANCE * max(1.0, abs(value)), f"{read:.4f} against {value:.4f}: difference {gap:.1e}"
    )
    at = list(range(first, last))
    return Scored(scores, peaks(activations), value, at=at, checks=(check,), norms=captured.norms[0][0])


def _layer(
    loaded: Loaded,
    layer: int,
    activation: torch.Tensor,
    stream: torch.Tensor,
    scale: torch.Tensor,
    centred: bool,
    explained: list[int],
) -> torch.Tensor:
    """(tokens, d_mlp) scores of one layer; `stream` (tokens, d_model) without its MLP, `scale` γ/ρ likewise."""
    anatomy = loaded.anatomy
    vectors = anatomy.write_vectors(layer).float().to(activation.device)
    result = torch.zeros_like(activation)
    size = max(1, CHUNK // anatomy.unembedding.out_features)
    for k, token in enumerate(explained):
        towards = _towards(loaded, scale[k], centred)
        before = towards @ stream[k] + _constant(loaded)
        through = through_post_norm(loaded, layer, activation[k : k + 1], towards)
        base = _logprob(loaded, before[None], token)
        for low in range(0, len(vectors), size):
            part = slice(low, low + size)
            after = before + activation[k, part, None] * (vectors[part] @ through.T)
            result[k, part] = _logprob(loaded, after, token) - base
    return result


def _towards(loaded: Loaded, scale: torch.Tensor, centred: bool) -> torch.Tensor:
    """(d_vocab, d_model): what the stream is multiplied with to give all logits, the final norm held at `scale`."""
    towards = weight(loaded.anatomy.unembedding).float() * scale
    return towards - towards.mean(-1, keepdim=True) if centred else towards


def _constant(loaded: Loaded) -> torch.Tensor:
    """What the biases of the final norm and of the unembedding add to the logits, before their scaling."""
    matrix = weight(loaded.anatomy.unembedding)
    shift = parameter(loaded.anatomy.final_norm, "bias")
    bias = parameter(loaded.anatomy.unembedding, "bias")
    result = torch.zeros(len(matrix), device=matrix.device) if bias is None else bias.float()
    return result if shift is None else result + matrix.float() @ shift.float().to(matrix.device)


def _logprob(loaded: Loaded, logits: torch.Tensor, token: int) -> torch.Tensor:
    """(rows,) log p of `token` from (rows, d_vocab) logits before scaling and soft cap."""
    logits = logits * loaded.anatomy.logit_scale
    if loaded.anatomy.soft_cap is not None:
        logits = loaded.anatomy.soft_cap * torch.tanh(logits / loaded.anatomy.soft_cap)
    return logits[:, token] - logits.logsumexp(-1)
