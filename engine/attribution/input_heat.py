"""The input heat map: gradient × input of the embeddings, patch by patch.

1. One teacher-forced forward pass over prompt + answer; the embeddings x_p that the decoder is given are a leaf.
2. One backward pass gives ∂S/∂x_p. value(p) = ⟨x_p, ∂S/∂x_p⟩: to first order what S loses when x_p is set to zero, and
   exactly the derivative of S with respect to a factor on x_p at 1.
3. A contrast's values are the difference of its sides'. Positions that the target leaves out count as zero.
4. Image positions go through the same map to the patch grid as scores do; all positions are summed by modality.

x_p is a patch as the projector hands it over, beside word embeddings. Position embeddings that a decoder adds
afterwards are no part of it. A constant factor on all embeddings (the √d_model of the Gemma family, wherever a model
applies it) changes x_p and its gradient inversely: the value is the same before and after it.

Unlike neurons' contributions, this map also holds what attention carries on by itself; layers are not told apart, and
of features that enter deeper layers directly (deepstack) it knows nothing. After Shrikumar et al. 2016.
"""

from collections.abc import Sequence

import torch

from engine.attribution.contrast import difference
from engine.attribution.effects import Subject
from engine.attribution.gradient import require_gradient
from engine.attribution.result import PatchMap, Scored
from engine.contract import MODALITIES, Cancelled, Grid, InputHeat, IsCancelled, never
from engine.features import Inputs, forward
from engine.hooks import capture, intervene, leaf_embeddings, require_finite
from engine.loading import Loaded
from engine.queries import former
from engine.targets import Part, scalar

GIVEN = "Each patch's embedding, as the decoder is given it, times the target's gradient there."
QUERIES = "This model reads query tokens: their values are shown where they looked in the picture."
DEEPSTACK = "Features of the picture that enter deeper layers directly (deepstack) are no part of this map."
NO_PICTURE = "There is no picture, so there is no map; the sums are of the words' embeddings."


def input_scores(subject: Subject, cancelled: IsCancelled = never) -> Scored:
    """⟨x_p, ∂S/∂x_p⟩ of every position, as scores (pos, 1) of a single layer. Raises Cancelled between sides, and
    RequestError where the model has no gradients."""
    require_gradient(subject.loaded)
    sides = []
    for part, inputs in subject.sides:
        if cancelled():
            raise Cancelled("Stopped before the embeddings' gradient.")
        with intervene(subject.loaded.anatomy, [subject.steering]):
            sides.append(_side(subject.loaded, part, inputs))
    return sides[0] if len(sides) == 1 else difference(sides[0], sides[1])


def _side(loaded: Loaded, part: Part, inputs: Inputs) -> Scored:
    start, end = part.target.start, part.target.end
    anatomy = loaded.anatomy
    with torch.enable_grad(), leaf_embeddings(anatomy) as leaves, capture(anatomy, last_only=True) as captured:
        logits = forward(loaded, inputs, len(part.ids) + 1)[0]
        value = scalar(logits[start:end], part.explained, part.target.quantity)
        require_finite(value.detach(), "the target's value")
        (slope,) = torch.autograd.grad(value, leaves[0])
    scores = (leaves[0].detach().float() * slope.float()).sum(-1)[0][:, None]
    require_finite(scores, "the gradient of the embeddings")
    return Scored([scores], torch.zeros(1, 1), float(value.detach()), norms=captured.norms[0][0])


def input_heat(
    scored: Scored, modality: Sequence[str], grid: Grid | None, spread: torch.Tensor | None, note: str
) -> InputHeat:
    """The result from `input_scores`. `modality` of every position of prompt + answer; `spread` as in `build`."""
    values = scored.scores[0][:, 0].cpu()
    image, question, template, answer = (
        float(sum(float(values[p]) for p, here in enumerate(modality) if here == kind)) for kind in MODALITIES
    )
    patches = PatchMap.of(grid, modality, spread)
    heat = patches.dealt(values[patches.at]) if patches else None
    return InputHeat(heat, (image, question, template, answer), scored.value, grid, note)


def note_of(loaded: Loaded, inputs: Inputs, grid: Grid | None) -> str:
    """What the embeddings are in this model, and what reaches it by another way."""
    if grid is None:
        return NO_PICTURE
    deep = inputs.pictures is not None and bool(inputs.pictures.get("deepstack_features"))
    more = (QUERIES if former(loaded.model) is not None else None, DEEPSTACK if deep else None)
    return " ".join(sentence for sentence in (GIVEN, *more) if sentence)
