"""`pan`: the published single-token baseline (METHODS.md §1). After Pan et al. 2024; a reconstruction.

1. Only the first token y of the target is read, at the position p that predicts it.
2. Neuron (l, i) contributes s = a_{l,i}(p) · ⟨v_{l,i}, W_U[y]⟩: as `direct`, but as if there were no final norm (nor
   post-norms), so that the shares of all components add up to ⟨r(p), W_U[y]⟩, r = the residual stream; not to a logit.

It is here to be compared with: a name of several tokens is judged by its first piece, and a layer that writes large
vectors wins whatever the norm makes of them. One forward pass.
"""

from collections.abc import Sequence

import torch

from engine.attribution.gradient import peaks
from engine.attribution.result import Scored
from engine.contract import Target
from engine.features import Inputs
from engine.hooks import capture
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve
from engine.weights import weight


@torch.no_grad()
def pan(loaded: Loaded, embeddings: Inputs, prompt_length: int, answer: Sequence[int], target: Target) -> Scored:
    """Scores of one row at the one position that predicts the target's first token. `value` = ⟨r(p), W_U[y]⟩."""
    start, _ = resolve(target, len(answer))
    at = prompt_length - 1 + start
    with capture(loaded.anatomy) as captured:
        forward(loaded, embeddings, 1)
    towards = weight(loaded.anatomy.unembedding)[answer[start]].float()
    activations = [layer[0, at : at + 1] for layer in captured.layers()]
    scores = [
        (activation.float() * (loaded.anatomy.write_vectors(layer).float() @ towards.to(activation.device))).to(
            loaded.device
        )
        for layer, activation in enumerate(activations)
    ]
    value = float(captured.final[0][0, at].float() @ towards.to(captured.final[0].device))
    return Scored(scores, peaks(activations), value, at=[at], norms=captured.norms[0][0])
