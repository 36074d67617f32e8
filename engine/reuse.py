"""A prompt that has been run up to its last position, to go on from as often as wanted.

Where a decoder is causal, a steering that acts from the prompt's last position on leaves every state before it as it
is without steering: these are kept for the last prompts. And what is steered everywhere is run once and gone on from
twice: to score a given answer and to generate one. Layers below the first that is steered are not run at all: what
they gave is kept too (`engine.lower`).

1. `run_prefix`: all positions but the last, with a key–value cache, inside whatever hooks are active.
2. `after`: the same inputs from the last position on, with a *copy* of that cache, so that no two runs share one.
3. Never by a model's name: `Reuse.holds` goes on from a prefix once, by both ways that are used, and compares with the
   run in one piece. A model that sees its whole prompt at once (PaliGemma) differs there and gets no prefix.
   `Reuse.below` does the same for the lower layers.
"""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from engine.contract import EngineError
from engine.features import Inputs, Past, cache_name, forget, forward, recall
from engine.hooks import Block, intervene, keep_blocks
from engine.interventions import NO_EDITS, Edits, LayerEdit
from engine.loading import Loaded
from engine.lower import Standing, first_layer, given_below, last_unread, same, standing_below
from engine.prompts import Prompt

KEPT = 2
"""Prompts whose prefix is kept."""

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}
"""Largest difference of logits, relative to the largest one, between the two ways; other dtypes: OTHERWISE."""

OTHERWISE = 1e-2

FAILURES = (EngineError, RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError)
"""What a model that cannot be gone on from may raise when it is tried."""


@torch.no_grad()
def run_prefix(
    loaded: Loaded, inputs: Inputs, standing: Standing | None = None, keeping: bool = False, rows: int = 1
) -> Past:
    """Run all positions but the last of each row: with `standing`, only the blocks above those; with `keeping`, keep
    what each block gave. `rows`: as many does the one row become on its way (`intervene`'s `spread`)."""
    given = inputs.before(inputs.ids.shape[1] - 1).arguments()
    if inputs.embeddings is not None:
        del given["input_ids"]
    forget(loaded)
    below: AbstractContextManager[None] = given_below(loaded.anatomy, standing) if standing else nullcontext()
    kept: AbstractContextManager[list[Block]] = keep_blocks(loaded.anatomy) if keeping else nullcontext([])
    unread: AbstractContextManager[None] = nullcontext() if keeping else last_unread(loaded.anatomy)
    try:
        with below, unread, kept as blocks:
            output = loaded.anatomy.runner(**given, use_cache=True, logits_to_keep=1, return_dict=True)
        offsets = tuple(module.rope_deltas for module in loaded.anatomy.stateful)
    finally:
        forget(loaded)
    name = cache_name(loaded)
    for layer in output[name].layers if rows > 1 else ():
        if len(layer.keys) == 1:
            layer.batch_repeat_interleave(rows)
    return Past(output[name], inputs.ids.shape[1] - 1, offsets, name, tuple(blocks))


def after(ids: torch.Tensor, past: Past, d_model: int, last: bool = False) -> Inputs:
    """Rows of `ids` (rows, pos) that go on from a copy of `past`, which holds one row or as many. `last`: from `past`
    itself, if it is not kept."""
    cache = past.cache if last and not past.kept else copy.deepcopy(past.cache)
    held = int(cache.layers[0].keys.shape[0])
    if held != len(ids):
        cache.batch_repeat_interleave(len(ids) // held)
    own = dataclasses.replace(past, cache=cache, blocks=())
    return Inputs(ids, None, None, {}, d_model, own)


class Reuse:
    """The unsteered prefixes of the last prompts, and on which kinds of prompt going on from one was proved right, and
    leaving out the lower layers."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[bytes, str], Past] = OrderedDict()
        self.proved: dict[bool, bool] = {}
        self.proved_below: dict[bool, bool] = {}
        self.proved_spread: dict[bool, bool] = {}

    def forget(self) -> None:
        """Let the kept prefixes go; what was proved of the model stays."""
        self.kept.clear()

    def plain(self, loaded: Loaded, prompt: Prompt, inputs: Inputs, keeping: bool = False) -> Past:
        """The unsteered prefix of a prompt, `inputs` = its one row; with `keeping`, what each block gave too. To be
        called outside all hooks."""
        key = (prompt.ids.numpy().tobytes(), prompt.key)
        past = self.kept.pop(key, None) or dataclasses.replace(run_prefix(loaded, inputs, keeping=keeping), kept=True)
        if keeping and not past.blocks:
            past = dataclasses.replace(past, blocks=run_prefix(loaded, inputs, keeping=True).blocks)
        self.kept[key] = past
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return past

    def holds(self, loaded: Loaded, inputs: Inputs) -> bool:
        """May a prompt like this one be gone on from? Tried once for prompts with a picture and once for those without,
        outside all hooks."""
        sees = _sees(inputs)
        if sees not in self.proved:
            self.proved[sees] = inputs.ids.shape[1] > 1 and proved(loaded, inputs)
        return self.proved[sees]

    def below(self, loaded: Loaded, inputs: Inputs) -> bool:
        """May its lower layers be left out? Tried as `holds` is, of whose prompts this is asked."""
        sees = _sees(inputs)
        if sees not in self.proved_below:
            self.proved_below[sees] = inputs.ids.shape[1] > 1 and proved_below(loaded, inputs)
        return self.proved_below[sees]

    def spreads(self, loaded: Loaded, inputs: Inputs) -> bool:
        """May one row become several at the first edit? Tried as `holds` is."""
        sees = _sees(inputs)
        if sees not in self.proved_spread:
            self.proved_spread[sees] = inputs.ids.shape[1] > 1 and proved_spread(loaded, inputs)
        return self.proved_spread[sees]

    def edited(self, loaded: Loaded, prompt: Prompt, inputs: Inputs, edits: Sequence[Edits]) -> Past:
        """The prompt's prefix under the edits, one row for each; `inputs` = its one row, of which `holds` is true. The
        plain one where no row acts there. Outside all hooks."""
        if all(row.from_the_end for row in edits):
            return self.plain(loaded, prompt, inputs)
        layer = first_layer(edits, loaded.anatomy.n_layers)
        standing = None
        if layer > 0 and self.below(loaded, inputs):
            standing = standing_below(self.plain(loaded, prompt, inputs, keeping=True), layer)
        alone = len(edits) > 1 and not any(row.latents for row in edits) and self.spreads(loaded, inputs)
        with intervene(loaded.anatomy, edits, alone):
            return run_prefix(loaded, inputs.repeat(1 if alone else len(edits)), standing, rows=len(edits))


def _sees(inputs: Inputs) -> bool:
    return inputs.pictures is not None or inputs.embeddings is not None


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
    except FAILURES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return False
    return untouched and _close(whole, pieces, tolerance) and _close(single, steps, tolerance)


@torch.no_grad()
def proved_below(loaded: Loaded, inputs: Inputs) -> bool:
    """Does a run whose lower layers are put in their place, half of them and all but one, leave the very cache that the
    whole run leaves, for one row bit by bit and for two to rounding; and does the model go on from it the same way?"""
    n_layers, tolerance = loaded.anatomy.n_layers, TOLERANCE.get(loaded.model.dtype, OTHERWISE)
    try:
        plain = run_prefix(loaded, inputs, keeping=True)
        before = [block.stream.clone() for block in plain.blocks]
        wanted = _generated(loaded, after(inputs.ids, plain, inputs.d_model))
        for layer in {(n_layers + 1) // 2, n_layers - 1} - {0}:
            standing = standing_below(plain, layer)
            if standing is None or len(plain.cache.layers) != n_layers:
                return False
            one = run_prefix(loaded, inputs, standing)
            two = run_prefix(loaded, inputs.repeat(2), standing)
            steps = _generated(loaded, after(inputs.ids, one, inputs.d_model))
            if not (same(one, plain) and same(two, plain, tolerance) and torch.equal(steps, wanted)):
                return False
    except FAILURES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return False
    untouched = all(torch.equal(block.stream, stream) for block, stream in zip(plain.blocks, before, strict=True))
    return n_layers > 1 and untouched


@torch.no_grad()
def proved_spread(loaded: Loaded, inputs: Inputs) -> bool:
    """Does one row that becomes two at an edit, in the first layer or a later one, leave the cache that two leave?"""
    tolerance = TOLERANCE.get(loaded.model.dtype, OTHERWISE)
    index, half = torch.tensor([0], device=inputs.device), torch.tensor([0.5], device=inputs.device)
    try:
        for layer in {0, loaded.anatomy.n_layers // 2}:
            edits = [NO_EDITS, Edits({layer: LayerEdit(index, half, half)}, None, True)]
            with intervene(loaded.anatomy, edits):
                wanted = run_prefix(loaded, inputs.repeat(2))
            with intervene(loaded.anatomy, edits, spread=True):
                spread = run_prefix(loaded, inputs, rows=2)
            if not same(spread, wanted, tolerance):
                return False
    except FAILURES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return False
    return True


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
