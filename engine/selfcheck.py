"""The self-check at load: is what we show about this model true of this model?

1. *Forward parity*: our forward pass gives the same logits as the model called with the processor's tensors.
2. *Generation parity*: the logits at each step of cached generation are those of one teacher-forced pass.
3. *Contributions add up*: embedding + every attention output + every MLP output (after their post-norms) = the logit,
   the final norm's scale held; and the model's own logit is that number, scaled and soft-capped.
4. *Neurons are the MLP*: Σ_i a_i v_i (+ bias) = what the MLP returned, in every layer.
5. *One BOS*.
6. *Planted patch*: with the vision tower's attention silenced each of its features depends on its own patch alone;
   changing the pixels of some cells of the patch grid then changes the features at these cells' positions, on a square,
   a wide and a tall picture. This covers the processor, the patches' order, merging and packing.
7. *Intervention parity*: setting a neuron to zero = zeroing its column of W_down, in a plain linear map put in the
   down projection's place.

A text-only model has no sixth line. Weights are those of `engine.weights`: unpacked, wherever they rest; so lines 3, 4
and 7 also prove these. In 8 bits a layer rounds its inputs, more coarsely in one pass over many positions than in
another: line 2 then has the tolerance of 8-bit numbers.

`why_no_gradient` then tries a backward pass, and whether what it says comes true.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch

from engine.attribution.direct import directions, logits_from_final
from engine.attribution.gradient import gradient
from engine.contract import Check, EngineError, ModelRefused, Pixels, Question, Target
from engine.features import Inputs, embed, forget, forward, moved, picture_features
from engine.hooks import capture, capture_writes, intervene
from engine.interventions import Edits, LayerEdit
from engine.loading import Loaded
from engine.planting import PLANTED, planted_patches
from engine.prompts import Prompt, build_prompt
from engine.weights import parameter, weight

STEPS = 3
ADD_UP = "contributions add up to the logit"
ONE_BOS = "one beginning-of-sequence token"
TOLERANCE = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 5e-2, "float16": 1e-2}
EIGHT_BITS = 5e-2
TRIALS = (0.1, 0.02)
TRUE_WITHIN = 0.5
"""The trial of the gradient: activations are scaled by 1 ± so much. The first stands above the rounding of any number
type, the second is for a model that bends within so far; at one of them S must change by what is foretold, within half.
"""


def checks_of(loaded: Loaded) -> tuple[Check, ...]:
    """All checks, in order, whether they hold or not. What makes a check impossible is its detail."""
    name = "question to tokens"
    try:
        prompt = build_prompt(loaded, Question(_noise() if loaded.sees else None, "what is this?"))
        name = "picture to features"
        features = picture_features(loaded, prompt.pixels) if prompt.pixels else None
        inputs = embed(loaded, prompt.ids, features)
    except (EngineError, ValueError, TypeError, RuntimeError, KeyError) as error:
        return (Check(name, False, str(error)),)
    tolerance = TOLERANCE.get(str(loaded.model.dtype).removeprefix("torch."), 1e-2)
    stepwise = max(tolerance, EIGHT_BITS) if loaded.bits == 8 else tolerance
    steps: list[tuple[str, Callable[[], Check]]] = [
        ("forward parity", lambda: _forward_parity(loaded, prompt, inputs, tolerance)),
        ("generation parity", lambda: _generation_parity(loaded, prompt, inputs, stepwise)),
        (ADD_UP, lambda: _contributions(loaded, inputs, tolerance)),
        ("neurons are the MLP", lambda: _neurons_are_mlp(loaded, inputs, tolerance)),
        (ONE_BOS, lambda: _one_bos(loaded, prompt)),
        (PLANTED, lambda: planted_patches(loaded)),
        ("intervention parity", lambda: _intervention_parity(loaded, inputs, tolerance)),
    ]
    return tuple(_attempt(name, step) for name, step in steps if loaded.sees or name != PLANTED)


def _attempt(name: str, step: Callable[[], Check]) -> Check:
    try:
        return step()
    except (EngineError, ValueError, TypeError, RuntimeError, KeyError) as error:
        return Check(name, False, str(error))


def self_check(loaded: Loaded) -> tuple[Check, ...]:
    """All checks, in order. Raises ModelRefused naming the first that does not hold."""
    checks = checks_of(loaded)
    for check in checks:
        if not check.holds:
            raise ModelRefused(f"Self-check “{check.name}” does not hold for {loaded.name}: {check.detail}")
    return checks


def _relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    scale = max(float(theirs.float().abs().max()), 1e-6)
    return float((ours.float() - theirs.float().to(ours.device)).abs().max()) / scale


def _check(name: str, difference: float, tolerance: float, what: str) -> Check:
    return Check(name, difference <= tolerance, f"{what}: largest relative difference {difference:.1e}")


@torch.no_grad()
def _forward_parity(loaded: Loaded, prompt: Prompt, inputs: Inputs, tolerance: float) -> Check:
    takes = inspect.signature(inspect.unwrap(loaded.model.forward)).parameters
    given = {name: moved(loaded, value) for name, value in prompt.pixels.items() if name in takes and name != "labels"}
    forget(loaded)
    theirs = loaded.model(
        input_ids=inputs.ids, attention_mask=torch.ones_like(inputs.ids), use_cache=False, **given
    ).logits
    difference = _relative(forward(loaded, inputs, prompt.length), theirs)
    return _check("forward parity", difference, tolerance, "our logits against the model's own")


@torch.no_grad()
def _generation_parity(loaded: Loaded, prompt: Prompt, inputs: Inputs, tolerance: float) -> Check:
    """Three steps, none of which may be the end or a picture's placeholder."""
    forget(loaded)
    made = loaded.anatomy.runner.generate(
        **inputs.arguments(), attention_mask=torch.ones_like(inputs.ids), max_new_tokens=STEPS, min_new_tokens=STEPS,
        do_sample=False, num_beams=1, use_cache=True, output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        suppress_tokens=None if loaded.anatomy.image_token_id is None else [loaded.anatomy.image_token_id],
    )  # fmt: skip
    forget(loaded)
    stepwise = torch.stack(made.logits, 1)
    whole = embed_longer(loaded, prompt, inputs, made.sequences[0, -STEPS:])
    at_once = forward(loaded, whole, STEPS + 1)[:, :-1]
    return _check(
        "generation parity", _relative(at_once, stepwise), tolerance, "one pass over an answer against its cached steps"
    )


def embed_longer(loaded: Loaded, prompt: Prompt, inputs: Inputs, answer: torch.Tensor) -> Inputs:
    """The prompt's inputs with answer ids behind them."""
    features = picture_features(loaded, prompt.pixels) if prompt.pixels else None
    return embed(loaded, torch.cat([inputs.ids[0], answer.to(inputs.device)]), features)


@torch.no_grad()
def _contributions(loaded: Loaded, inputs: Inputs, tolerance: float) -> Check:
    anatomy = loaded.anatomy
    if any(attention is None for attention in anatomy.attentions):
        return Check(ADD_UP, False, "an attention module was not found in every layer")
    with capture_writes(anatomy) as writes:
        logits = forward(loaded, inputs, 1)[0, -1]
    token = int(logits.argmax())
    final = writes["final"][0][0, -1:]
    towards = directions(loaded, final, [token])[0]
    written = [part[0, -1].float() for kind in ("embedding", "attention", "mlp") for part in writes[kind]]
    parts = [part.to(towards.device) @ towards for part in written]
    constant = constant_part(loaded, token)
    total = torch.stack(parts).sum() + constant
    whole = logits_from_final(loaded, final, [token])[0]
    capped = whole if anatomy.soft_cap is None else anatomy.soft_cap * torch.tanh(whole / anatomy.soft_cap)
    largest = max(*(float(part.abs()) for part in parts), float(whole.abs()), 1e-6)
    difference = max(float((total - whole).abs()), float((capped - logits[token].float()).abs())) / largest
    return _check(ADD_UP, difference, tolerance, f"{len(parts)} components against logit {float(whole):.4f}")


def constant_part(loaded: Loaded, token: int) -> float:
    """What the biases of the final norm and of the unembedding give a token's logit, whatever the input."""
    row = weight(loaded.anatomy.unembedding)[token].float()
    bias = parameter(loaded.anatomy.unembedding, "bias")
    shift = parameter(loaded.anatomy.final_norm, "bias")
    value = 0.0 if bias is None else float(bias[token])
    value += 0.0 if shift is None else float(shift.float().to(row.device) @ row)
    return value * loaded.anatomy.logit_scale


@torch.no_grad()
def _neurons_are_mlp(loaded: Loaded, inputs: Inputs, tolerance: float) -> Check:
    with capture(loaded.anatomy) as captured, capture_writes(loaded.anatomy) as writes:
        forward(loaded, inputs, 1)
    worst = 0.0
    for layer, activation in enumerate(captured.layers()):
        mine = activation.float() @ loaded.anatomy.write_vectors(layer).float()
        bias = parameter(loaded.anatomy.downs[layer], "bias")
        mine = mine + bias.float() if bias is not None else mine
        norm = loaded.anatomy.mlp_norms[layer]
        if norm is not None:
            mine = norm(mine.to(activation.dtype))
        worst = max(worst, _relative(mine, writes["mlp"][layer]))
    return _check("neurons are the MLP", worst, tolerance, "Σ activation × write vector against each MLP's output")


def _one_bos(loaded: Loaded, prompt: Prompt) -> Check:
    """At least one and no two in a row (a template that writes one before a tokenizer that adds one). A tokenizer whose
    BOS also marks roles may write it again later; one whose BOS is its end mark need not write it at all."""
    tokenizer = loaded.processor.tokenizer
    bos, ids = tokenizer.bos_token_id, prompt.ids.tolist()
    count = ids.count(bos) if bos is not None else 0
    twice = any(a == b == bos for a, b in pairwise(ids))
    optional = bos is None or bos == tokenizer.eos_token_id
    return Check(ONE_BOS, not twice and (count >= 1 or optional), f"{count} in the prompt")


@torch.no_grad()
def _intervention_parity(loaded: Loaded, inputs: Inputs, tolerance: float) -> Check:
    layer, index = loaded.anatomy.n_layers // 2, 7 % loaded.anatomy.d_mlp
    edit = LayerEdit(*(torch.tensor([v], device=loaded.device) for v in (index, 0.0, 0.0)))
    with intervene(loaded.anatomy, [Edits({layer: edit}, None, True)]):
        ours = forward(loaded, inputs, 1)
    with _transplanted(loaded, layer) as linear:
        plain = forward(loaded, inputs, 1)
        linear.weight[:, index] = 0
        surgery = forward(loaded, inputs, 1)
    difference = _relative(ours, surgery)
    check = _check("intervention parity", difference, tolerance, "a neuron set to zero against weight surgery")
    moved = _relative(plain, surgery)
    return check if moved > 0 else Check(check.name, False, f"{check.detail}; but the neuron moves nothing")


@contextlib.contextmanager
def _transplanted(loaded: Loaded, layer: int) -> Iterator[torch.nn.Linear]:
    """Inside, the layer's down projection is replaced by a plain linear map with its (unpacked) weights."""
    down, vectors = loaded.anatomy.downs[layer], loaded.anatomy.write_vectors(layer)
    bias = parameter(down, "bias")
    linear = torch.nn.Linear(len(vectors), vectors.shape[1], bias is not None, vectors.device, loaded.model.dtype)
    linear.requires_grad_(False)
    linear.weight.copy_(vectors.T)
    if bias is not None:
        linear.bias.copy_(bias)
    path = next(name for name, module in loaded.anatomy.layers[layer].named_modules() if module is down)
    holder = loaded.anatomy.layers[layer].get_submodule(path.rpartition(".")[0])
    name = path.rpartition(".")[2]
    try:
        setattr(holder, name, linear)
        yield linear
    finally:
        setattr(holder, name, down)


def why_no_gradient(loaded: Loaded) -> str:
    """Why `gradient` and `integrated` cannot be computed on this model as it is loaded, as a sentence; '' if they can.

    Tried, not told from names: a backward pass must give gradients, and they must foretell what happens. All neurons
    are scaled by 1 ± ε in the direction of their scores, so that S should change by 2ε Σ|score|, the most that so small
    a change can do; S is measured at both ends. S is the logit nearest to zero: no soft cap flattens it. A model whose
    activations are rounded on the way may not follow."""
    prompt = build_prompt(loaded, Question(_noise() if loaded.sees else None, "what is this?"))
    features = picture_features(loaded, prompt.pixels) if prompt.pixels else None
    prefix = embed(loaded, prompt.ids, features)
    try:
        with torch.no_grad():
            answer = [int(forward(loaded, prefix, 1)[0, -1].abs().argmin())]
        inputs = embed_longer(loaded, prompt, prefix, torch.tensor(answer))
        target = Target(quantity="logit")
        totals = torch.stack([layer.sum(0) for layer in gradient(loaded, inputs, answer, target).scores])
    except (EngineError, RuntimeError, ValueError, TypeError) as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        return f"A backward pass through it is impossible: {words}."
    whole = float(totals.abs().sum())
    if whole == 0:
        return "A backward pass through it gives nothing but zeros."
    foretold = happened = 0.0
    for epsilon in TRIALS:
        up, down = (_moved(loaded, inputs, answer[0], totals.sign() * step) for step in (epsilon, -epsilon))
        foretold, happened = 2 * epsilon * whole, up - down
        if abs(happened / foretold - 1) <= TRUE_WITHIN:
            return ""
    return (
        f"Its gradients do not tell what happens: a logit that they foretell to rise by {foretold:.3f} "
        f"changes by {happened:.3f}."
    )


@torch.no_grad()
def _moved(loaded: Loaded, inputs: Inputs, token: int, by: torch.Tensor) -> float:
    """The logit of the one answer token with every activation scaled by 1 + `by` (n_layers, d_mlp)."""
    index = torch.arange(by.shape[1], device=by.device)
    layers = {layer: LayerEdit(index, 1 + by[layer], torch.zeros_like(by[layer])) for layer in range(len(by))}
    with intervene(loaded.anatomy, [Edits(layers, None, True)]):
        return float(forward(loaded, inputs, 2)[0, 0, token])


def _noise() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
