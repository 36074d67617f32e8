"""The self-check at load: is what we show about this model true of this model?

1. *Forward parity*: our embeddings + forward give the same logits as the model called with the processor's tensors.
2. *Contributions add up*: embedding + every attention output + every MLP output = the logit (final norm's scale fixed).
3. *Neurons are the MLP*: Σ_i a_i v_i (+ bias) = what the MLP returned, in every layer.
4. *One BOS*.
5. *Planted patch*: changing the pixels of one patch's box changes the processor's tensor there and nowhere else, on a
   square, a wide and a tall picture.
6. *Intervention parity*: setting a neuron to zero = zeroing its column of W_down.
"""

import numpy as np
import torch

from engine.attribution.direct import directions, logits_from_final
from engine.contract import Check, ModelRefused, Question
from engine.hooks import capture, capture_writes, intervene
from engine.interventions import Edits, LayerEdit
from engine.loading import Loaded
from engine.patches import cell_box
from engine.prompts import Prompt, build_prompt
from engine.running import embed, forward, picture_features

TOLERANCE = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 5e-2, "float16": 1e-2}


def self_check(loaded: Loaded) -> tuple[Check, ...]:
    """All checks, in order. Raises ModelRefused naming the first that does not hold."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
    prompt = build_prompt(loaded, Question(picture, "what is this?"))
    features = picture_features(loaded, prompt.pixels)
    embeddings = embed(loaded, prompt.ids, features)
    tolerance = TOLERANCE.get(str(loaded.model.dtype).removeprefix("torch."), 1e-2)
    checks = (
        _forward_parity(loaded, prompt, embeddings, tolerance),
        _contributions(loaded, embeddings, tolerance),
        _neurons_are_mlp(loaded, embeddings, tolerance),
        _one_bos(loaded, prompt),
        _planted_patches(loaded),
        _intervention_parity(loaded, embeddings, tolerance),
    )
    for check in checks:
        if not check.holds:
            raise ModelRefused(f"Self-check “{check.name}” does not hold for {loaded.name}: {check.detail}")
    return checks


def _relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    scale = max(float(theirs.float().abs().max()), 1e-6)
    return float((ours.float() - theirs.float()).abs().max()) / scale


def _check(name: str, difference: float, tolerance: float, what: str) -> Check:
    return Check(name, difference <= tolerance, f"{what}: largest relative difference {difference:.1e}")


@torch.no_grad()
def _forward_parity(loaded: Loaded, prompt: Prompt, embeddings: torch.Tensor, tolerance: float) -> Check:
    pixels = {
        name: value.to(loaded.device, loaded.model.dtype) if value.is_floating_point() else value.to(loaded.device)
        for name, value in prompt.pixels.items()
    }
    ids = prompt.ids[None].to(loaded.device)
    theirs = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **pixels).logits
    difference = _relative(forward(loaded, embeddings, prompt.length), theirs)
    return _check("forward parity", difference, tolerance, "our logits against the model's own")


@torch.no_grad()
def _contributions(loaded: Loaded, embeddings: torch.Tensor, tolerance: float) -> Check:
    name = "contributions add up to the logit"
    if any(attention is None for attention in loaded.anatomy.attentions):
        return Check(name, False, "an attention module was not found in every layer")
    with capture_writes(loaded.anatomy) as writes:
        logits = forward(loaded, embeddings, 1)[0, -1]
    token = int(logits.argmax())
    final = writes["final"][0][0, -1:]
    towards = directions(loaded, final, [token])[0]
    parts = [part[0, -1].float() @ towards for kind in ("embedding", "attention", "mlp") for part in writes[kind]]
    whole = logits_from_final(loaded, final, [token])[0]
    bias: torch.Tensor | None = loaded.anatomy.unembedding.bias
    total = torch.stack(parts).sum() + (bias[token].float() if bias is not None else 0.0)
    largest = max(float(part.abs()) for part in parts)
    difference = float((total - whole).abs()) / max(largest, float(whole.abs()), 1e-6)
    return _check(name, difference, tolerance, f"{len(parts)} components against logit {float(whole):.4f}")


@torch.no_grad()
def _neurons_are_mlp(loaded: Loaded, embeddings: torch.Tensor, tolerance: float) -> Check:
    with capture(loaded.anatomy) as captured, capture_writes(loaded.anatomy) as writes:
        forward(loaded, embeddings, 1)
    worst = 0.0
    for layer, activation in enumerate(captured.layers()):
        mine = activation.float() @ loaded.anatomy.write_vectors(layer).float()
        bias = getattr(loaded.anatomy.downs[layer], "bias", None)
        mine = mine + bias.float() if bias is not None else mine
        worst = max(worst, _relative(mine, writes["mlp"][layer]))
    return _check("neurons are the MLP", worst, tolerance, "Σ activation × write vector against each MLP's output")


def _one_bos(loaded: Loaded, prompt: Prompt) -> Check:
    bos = loaded.processor.tokenizer.bos_token_id
    count = prompt.ids.tolist().count(bos) if bos is not None else 0
    holds = bos is None or count == 1 or bos == loaded.processor.tokenizer.eos_token_id
    return Check("one beginning-of-sequence token", holds, f"{count} in the prompt")


def _planted_patches(loaded: Loaded) -> Check:
    worst, places = 1.0, 0
    for width, height in ((300, 300), (480, 160), (160, 480)):
        share = _planted(loaded, width, height)
        worst, places = min(worst, share), places + 1
    detail = f"{worst:.0%} of the change falls into the planted patch at worst, over {places} shapes"
    return Check("a planted patch lights its own pixels", worst >= 0.7, detail)


def _planted(loaded: Loaded, width: int, height: int) -> float:
    """Least share, over four patches, of a planted change that lands in that patch of the processor's tensor.

    Resizing with an antialiasing filter smears some of it over the patch's edge, so the share is below one."""
    grey = np.full((height, width, 3), 128, dtype=np.uint8)
    base = build_prompt(loaded, Question(grey, "what is this?"))
    assert base.grid is not None
    patch = int(loaded.processor.patch_size)
    least = 1.0
    for row, column in ((0, 0), (base.grid.rows - 1, base.grid.cols - 1), (base.grid.rows // 3, base.grid.cols // 2)):
        left, top, right, bottom = (round(v) for v in cell_box(base.grid, row, column))
        planted = grey.copy()
        planted[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = 255
        if (planted == grey).all():
            raise ModelRefused(f"Patch {row}, {column} of the grid lies outside the picture ({width} × {height}).")
        changed = build_prompt(loaded, Question(planted, "what is this?"))
        delta = (changed.pixels["pixel_values"] - base.pixels["pixel_values"]).abs().sum((0, 1))
        inside = delta[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch].sum()
        least = min(least, float(inside / delta.sum().clamp(min=1e-9)))
    return least


@torch.no_grad()
def _intervention_parity(loaded: Loaded, embeddings: torch.Tensor, tolerance: float) -> Check:
    layer, index = loaded.anatomy.n_layers // 2, 7 % loaded.anatomy.d_mlp
    edit = LayerEdit(*(torch.tensor([v], device=loaded.device) for v in (index, 0.0, 0.0)))
    with intervene(loaded.anatomy, [Edits({layer: edit}, None, True)]):
        ours = forward(loaded, embeddings, 1)
    column = loaded.anatomy.write_vectors(layer)[index]
    kept = column.clone()
    try:
        column.zero_()
        surgery = forward(loaded, embeddings, 1)
    finally:
        column.copy_(kept)
    plain = forward(loaded, embeddings, 1)
    difference = _relative(ours, surgery)
    check = _check("intervention parity", difference, tolerance, "a neuron set to zero against weight surgery")
    moved = _relative(plain, surgery)
    return check if moved > 0 else Check(check.name, False, f"{check.detail}; but the neuron moves nothing")
