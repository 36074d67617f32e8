"""What a prompt's lower layers hold, kept from its plain run: a steering that first acts in a later layer leaves it be.

1. `first_layer`: how many of the decoder's first blocks run as without the edits, at every position.
2. `engine.reuse.run_prefix` keeps, beside the key–value cache, what each block gave (`engine.hooks.keep_blocks`).
3. `given_below`: run again under edits, those blocks are not computed. What the last of them gave and the keys and
   values of each are put in their place, once for each row. Steps after the prompt run all blocks.
4. `last_unread`: of the last block such a run reads the keys and values alone, so its MLP is left out.
5. Never by a model's name: `engine.reuse.Reuse` does it once and compares with the plain run, bit by bit for one row.
   Layers that keep anything but the keys and values of every position (a window shorter than the prompt, linear
   attention) are refused.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from engine.anatomy import Anatomy
from engine.contract import EngineError
from engine.features import Past
from engine.hooks import Block
from engine.interventions import Edits

__all__ = ["first_layer", "given_below", "last_unread", "same", "standing_below"]

Standing = list[tuple[Block, torch.Tensor, torch.Tensor]]
"""For each of a decoder's first blocks: what it gave, and its keys and values (rows, heads, pos, width)."""


def first_layer(rows: Sequence[Edits], n_layers: int) -> int:
    """How many of the decoder's first blocks run as they do without these edits; `n_layers` where nothing is edited. An
    SAE that reads what a block gives changes only what follows the block."""
    first = n_layers
    for row in rows:
        first = min((first, *row.layers))
        for edit in row.latents:
            first = min(first, edit.sae.info.layer + (edit.sae.info.site == "residual"))
    return first


def _whole(layer: Any, length: int) -> bool:
    """Are keys and values of all `length` positions all that this layer of a cache holds, counters aside?"""
    held = {name: value for name, value in vars(layer).items() if isinstance(value, torch.Tensor) and value.numel() > 1}
    return set(held) == {"keys", "values"} and all(
        value.ndim == 4 and value.shape[-2] == length for value in held.values()
    )


def standing_below(past: Past, layer: int) -> Standing | None:
    """What stands for the first `layer` blocks in a run of the same positions; None where it is not known of each."""
    blocks, layers = past.blocks[:layer], past.cache.layers[:layer]
    if min(len(blocks), len(layers)) < layer or not all(_whole(kept, past.length) for kept in layers):
        return None
    return [(block, kept.keys, kept.values) for block, kept in zip(blocks, layers, strict=True)]


@contextlib.contextmanager
def given_below(anatomy: Anatomy, standing: Standing) -> Iterator[None]:
    """Inside, the decoder's first blocks give what stands for them, for as many rows as are run, and add it to the
    cache that they are handed. For one call over the positions that were kept. Whatever happens, the blocks are left as
    they were."""

    def stand_in(layer: int, block: Block, keys: torch.Tensor, values: torch.Tensor) -> Any:
        last = layer == len(standing) - 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs["hidden_states"]
            caches = [value for value in (*args, *kwargs.values()) if hasattr(value, "get_seq_length")]
            if len(caches) != 1 or given.shape[1:] != block.stream.shape[1:]:
                raise EngineError(f"Block {layer} was not run as it was when what it gave was kept.")
            rows = len(given) // len(keys)
            caches[0].update(_times(keys, rows), _times(values, rows), layer)
            stream = _times(block.stream, rows).clone() if last else given
            return stream if block.rest is None else (stream, *[None] * block.rest)

        forward.stands_in = True  # type: ignore[attr-defined]
        return forward

    entries = zip(anatomy.layers, standing, strict=False)
    with _standing_in({block: stand_in(layer, *entry) for layer, (block, entry) in enumerate(entries)}):
        yield


@contextlib.contextmanager
def last_unread(anatomy: Anatomy) -> Iterator[None]:
    """Inside, the last block's MLP gives zeros. For a call of which nothing but the cache is read: no keys and values
    come after that MLP. Nothing is left out where the block holds the down projection itself."""
    mlp = anatomy.mlps[-1]

    def forward(hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return torch.zeros_like(hidden_states)

    forward.stands_in = True  # type: ignore[attr-defined]
    with _standing_in({} if mlp is anatomy.downs[-1] else {mlp: forward}):
        yield


@contextlib.contextmanager
def _standing_in(forwards: Mapping[torch.nn.Module, Any]) -> Iterator[None]:
    """Inside, these modules are run as said; whatever happens, they are left as they were."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, own in before.items():
            if own is not None:
                module.forward = own
            else:
                vars(module).pop("forward", None)


def _times(value: torch.Tensor, rows: int) -> torch.Tensor:
    return value if rows == 1 else value.repeat(rows, *[1] * (value.ndim - 1))


def same(one: Past, other: Past, tolerance: float = 0.0) -> bool:
    """Does `one`'s cache hold `other`'s keys and values, to `tolerance` of the largest? In every row those of `other`'s
    only row, or in each its own."""
    for mine, theirs in zip(one.cache.layers, other.cache.layers, strict=True):
        for kept, wanted in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
            largest = max(float(wanted.abs().max()), 1e-6)
            if (
                kept.shape[1:] != wanted.shape[1:]
                or len(wanted) not in (1, len(kept))
                or float((kept - wanted).abs().max()) > tolerance * largest
            ):
                return False
    return True
