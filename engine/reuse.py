"""A prompt that has been run up to its last position, to go on from as often as wanted.

Where a decoder is causal, a steering that acts from the prompt's last position on leaves every state before it as it
is without steering: these are kept for the last prompts. And what is steered everywhere is run once and gone on from
twice: to score a given answer and to generate one.

1. `run_prefix`: all positions but the last, with a key–value cache, inside whatever hooks are active.
2. `after`: the same inputs from the last position on, with a *copy* of that cache, so that no two runs share one.
3. Never by a model's name: `Reuse.holds` goes on from a prefix once, by both ways that are used, and compares with the
   run in one piece. A model that sees its whole prompt at once (PaliGemma) differs there and gets no prefix.
"""

import copy
import dataclasses
from collections import OrderedDict
from typing import Any

import torch

from engine.features import Inputs, Past, cache_name, forget, forward, recall
from engine.loading import Loaded
from engine.prompts import Prompt

KEPT = 2
"""Prompts whose prefix is kept."""

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}
"""Largest difference of logits, relative to the largest one, between the two ways; other dtypes: OTHERWISE."""

OTHERWISE = 1e-2


@torch.no_grad()
def run_prefix(loaded: Loaded, inputs: Inputs) -> Past:
    """Run all positions but the last of each row."""
    given = inputs.before(inputs.ids.shape[1] - 1).arguments()
    if inputs.embeddings is not None:
        del given["input_ids"]
    forget(loaded)
    try:
        output = loaded.anatomy.runner(**given, use_cache=True, logits_to_keep=1, return_dict=True)
        offsets = tuple(module.rope_deltas for module in loaded.anatomy.stateful)
    finally:
        forget(loaded)
    name = cache_name(loaded)
    return Past(output[name], inputs.ids.shape[1] - 1, offsets, name)


def after(ids: torch.Tensor, past: Past, d_model: int) -> Inputs:
    """Rows of `ids` (rows, pos) that go on from a copy of `past`, which holds one row or as many."""
    cache = copy.deepcopy(past.cache)
    held = int(cache.layers[0].keys.shape[0])
    if held != len(ids):
        cache.batch_repeat_interleave(len(ids) // held)
    own = dataclasses.replace(past, cache=cache)
    return Inputs(ids, None, None, {}, d_model, own)


class Reuse:
    """The unsteered prefixes of the last prompts, and on which kinds of prompt going on from one was proved right."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[bytes, str], Past] = OrderedDict()
        self.proved: dict[bool, bool] = {}

    def forget(self) -> None:
        """Let the kept prefixes go; what was proved of the model stays."""
        self.kept.clear()

    def plain(self, loaded: Loaded, prompt: Prompt, inputs: Inputs) -> Past:
        """The unsteered prefix of a prompt, `inputs` = its one row. To be called outside all hooks."""
        key = (prompt.ids.numpy().tobytes(), prompt.key)
        past = self.kept.pop(key, None) or run_prefix(loaded, inputs)
        self.kept[key] = past
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return past

    def holds(self, loaded: Loaded, inputs: Inputs) -> bool:
        """May a prompt like this one be gone on from? Tried once for prompts with a picture and once for those without,
        outside all hooks."""
        sees = inputs.pictures is not None or inputs.embeddings is not None
        if sees not in self.proved:
            self.proved[sees] = inputs.ids.shape[1] > 1 and proved(loaded, inputs)
        return self.proved[sees]


@torch.no_grad()
def proved(loaded: Loaded, inputs: Inputs) -> bool:
    """Do one pass and a pass in two pieces give the same logits, and the second leave the first's states alone?"""
    tolerance = TOLERANCE.get(loaded.model.dtype, OTHERWISE)
    try:
        whole = forward(loaded, inputs, 1)
        past = run_prefix(loaded, inputs)
        before = [layer.keys.clone() for layer in past.cache.layers]
        pieces = forward(loaded, after(inputs.ids, past, inputs.d_model), 1)
        steps = _generated(loaded, after(inputs.ids, past, inputs.d_model))
        single = _generated(loaded, inputs)
        untouched = all(torch.equal(layer.keys, keys) for layer, keys in zip(past.cache.layers, before, strict=True))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return False
    return untouched and _close(whole, pieces, tolerance) and _close(single, steps, tolerance)


def _close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    if one.shape != other.shape:
        return False
    scale = max(float(one.abs().max()), 1e-6)
    return float((one - other).abs().max()) <= tolerance * scale


def _generated(loaded: Loaded, inputs: Inputs) -> torch.Tensor:
    """(2, d_vocab): the logits of the first two tokens that `generate` makes."""
    recall(loaded, inputs)
    made: Any = loaded.anatomy.runner.generate(
        **inputs.arguments(),
        attention_mask=torch.ones_like(inputs.ids),
        max_new_tokens=2,
        min_new_tokens=2,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=loaded.processor.tokenizer.pad_token_id or 0,
    )
    forget(loaded)
    return torch.cat(list(made.logits))
