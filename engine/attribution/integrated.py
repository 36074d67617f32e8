"""`integrated`: the gradient score along a path on which all MLPs come into being (METHODS.md §1).

1. Every activation is multiplied by α: a_{l,i}(p) = α · act_{l,i}(p), act = what the MLP computes from the stream
   that reaches it, itself scaled below. At α = 1 that is the model, at α = 0 the model without its MLPs' neurons.
2. The derivative of S with respect to a neuron's own gate is act_{l,i}(p) · ∂S/∂a_{l,i}(p): the `gradient` score at
   α, divided by α.
3. s = ∫₀¹ of it dα, by Gauss–Legendre quadrature with `steps` nodes; each node is one `gradient`.
4. Completeness: Σ over all neurons, positions and layers = S(α = 1) − S(α = 0). The error of the sum is reported, and
   with more steps it goes to zero.

Where a post-norm follows the MLP, scaling a layer's neurons together changes nothing until they vanish: the path says
nothing there, and the result says so (see `gradient`). Integrated gradients after Sundararajan et al. 2017, here over
the gates of all neurons at once.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from engine.attribution.gradient import gradient
from engine.attribution.result import Scored
from engine.contract import Cancelled, Check, IsCancelled, Target, never
from engine.features import Inputs
from engine.hooks import intervene
from engine.interventions import Edits, LayerEdit
from engine.loading import Loaded
from engine.running import forward
from engine.targets import resolve, scalar

STEPS = 16
COMPLETE = "integrated scores add up to what the neurons give"
TOLERANCE = 0.05
"""Largest completeness error, relative to the largest of |S(1) − S(0)| and Σ|layer sums|, that counts as holding."""


def scaled(loaded: Loaded, factor: float) -> Edits:
    """One row's edits that multiply every activation by `factor`."""
    anatomy = loaded.anatomy
    index = torch.arange(anatomy.d_mlp, device=loaded.device)
    scale = torch.full((anatomy.d_mlp,), factor, device=loaded.device)
    edit = LayerEdit(index, scale, torch.zeros_like(scale))
    return Edits(dict.fromkeys(range(anatomy.n_layers), edit), None, True)


def integrated(
    loaded: Loaded,
    embeddings: Inputs,
    answer: Sequence[int],
    target: Target,
    steps: int = STEPS,
    cancelled: IsCancelled = never,
) -> Scored:
    """Scores of one row, as `gradient`'s. Runs inside whatever interventions are active. Cancelled between steps."""
    start, end = resolve(target, len(answer))
    whole = gradient(loaded, embeddings, answer, target)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = [torch.zeros_like(layer) for layer in whole.scores]
    for alpha, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        if cancelled():
            raise Cancelled("Stopped between two steps of the path.")
        with intervene(loaded.anatomy, [scaled(loaded, float(alpha))]):
            here = gradient(loaded, embeddings, answer, target)
        for layer, scores in enumerate(here.scores):
            total[layer] += scores * float(weight / alpha)
    with torch.no_grad(), intervene(loaded.anatomy, [scaled(loaded, 0.0)]):
        logits = forward(loaded, embeddings, len(answer) + 1)[0]
    empty = float(scalar(logits[start:end], answer[start:end], target.quantity))
    check = completeness(total, whole.value - empty, steps, whole.cancels)
    return dataclasses.replace(whole, scores=total, checks=(*whole.checks, check))


def completeness(scores: list[torch.Tensor], given: float, steps: int, cancels: bool) -> Check:
    """Σ scores against `given` = S(1) − S(0)."""
    layers = [float(layer.sum()) for layer in scores]
    gap = abs(sum(layers) - given)
    error = gap / max(abs(given), sum(abs(layer) for layer in layers), 1e-6)
    words = f"Σ = {sum(layers):.4f} against {given:.4f} with {steps} steps: error {gap:.1e}, {error:.1%} of the layers'"
    return Check(COMPLETE, cancels or error <= TOLERANCE, words)
