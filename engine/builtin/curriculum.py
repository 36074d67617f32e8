"""What training is shown: which scenes, drawn how, asked what, in batches.

A batch follows from (seed, step) alone, so a resumed training sees what an uninterrupted one would, and its scenes
are drawn from other seeds than those of evaluation, probes and samples (`scenes.seeded`)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from engine.builtin import packing, scenes, tokenizer

MIX: Final = scenes.Mix(counts=(0.28, 0.35, 0.26, 0.11), shape=0.2, same=0.14, same_category=0.3, crowd=0.2)
WEIGHTS: Final = {
    "name": 0.7,
    "side": 1.2,
    "catname": 0.9,
    "count": 2.2,
    "countcat": 3.2,
    "exist": 1.5,
    "existcat": 1.1,
    "category": 0.8,
    "color": 0.9,
    "shape": 1.0,
    "relation": 3.2,
    "next": 2.0,
    "position": 3.0,
    "describe": 2.2,
    "twohop": 2.2,
}
"""How often each kind of question is asked of a picture ("exist" and "existcat" come in pairs of yes and no)."""
LOOSE_SHARE: Final = 0.28


@dataclass(frozen=True)
class Batch:
    """pixels (batch, SIZE, SIZE, 3) uint8; labels (batch, patches, 6); ids, segments, positions, targets (batch, ROW)
    int64."""

    pixels: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor
    segments: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    n_pairs: int


def conditions(rng: random.Random) -> scenes.Conditions:
    """Two pictures in three are plain; the others mix noise, blur, recolouring, squashing and a larger original."""
    if rng.random() < 0.66:
        return scenes.PLAIN_CONDITIONS
    return scenes.Conditions(
        noise=rng.uniform(7, 28) if rng.random() < 0.3 else None,
        blur=rng.uniform(0.3, 1.2) if rng.random() < 0.25 else 0.0,
        jitter=rng.uniform(1.0, 2.5) if rng.random() < 0.5 else 1.0,
        squash=rng.uniform(0.7, 1.4) if rng.random() < 0.35 else 1.0,
        scale=rng.choice((2, 2, 3, 4)) if rng.random() < 0.4 else 1,
    )


def picture(scene: scenes.Scene, rng: random.Random) -> tuple[scenes.Pixels, scenes.Pixels]:
    """Native pixels and mask, drawn under chance conditions; a larger drawing comes down the way of an upload."""
    drawn = scenes.render(scene, conditions(rng))
    scale = len(drawn.pixels) // scenes.SIZE
    if scale == 1:
        return drawn.pixels, drawn.mask
    quality = rng.randint(60, 95) if rng.random() < 0.5 else None
    middle = scale // 2
    return scenes.as_upload(drawn.pixels, quality), drawn.mask[middle::scale, middle::scale]


def batch(seed: int, step: int, n: int, encode: packing.Encode) -> Batch:
    """The batch of `n` pictures for one step."""
    rng = scenes.seeded("train", seed, step)
    drawn, labels, rows = [], [], []
    for _ in range(n):
        scene = scenes.make_scene(rng, mix=MIX)
        pixels, mask = picture(scene, rng)
        drawn.append(pixels)
        labels.append(packing.patch_labels(scene, mask))
        rows.append(packing.pack(scene, rng, encode, WEIGHTS, LOOSE_SHARE))
    return Batch(
        torch.from_numpy(np.stack(drawn)),
        torch.from_numpy(np.stack(labels)),
        torch.tensor([row.ids for row in rows]),
        torch.tensor([row.segments for row in rows]),
        torch.tensor([row.positions for row in rows]),
        torch.tensor([row.targets for row in rows]),
        sum(row.n_pairs for row in rows),
    )


class _Stream(IterableDataset[Batch]):
    """Batches from a step on; with several workers, each makes every n-th."""

    def __init__(self, folder: Path, seed: int, start: int, n: int) -> None:
        self.folder, self.seed, self.start, self.n = folder, seed, start, n

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        encode = encoder(tokenizer.load(self.folder))
        step, stride = self.start, 1
        if worker is not None:
            step, stride = self.start + worker.id, worker.num_workers
            torch.set_num_threads(1)  # only in a worker: in the main process it would leave training on one core
        while True:
            yield batch(self.seed, step, self.n, encode)
            step += stride


def encoder(tok: PreTrainedTokenizerFast, memory: int = 300_000) -> packing.Encode:
    """Encode a text without special tokens, remembering texts seen before."""
    known: dict[str, list[int]] = {}

    def encode(text: str) -> list[int]:
        ids = known.get(text)
        if ids is None:
            ids = list(tok.encode(text, add_special_tokens=False))
            if len(known) < memory:
                known[text] = ids
        return ids

    return encode


def stream(folder: Path, seed: int, start: int, n: int, workers: int) -> Iterator[Batch]:
    """Batches for steps start, start + 1, ... made by `workers` processes (0: by this one)."""
    loader = DataLoader(
        _Stream(folder, seed, start, n), batch_size=None, num_workers=workers, prefetch_factor=6 if workers else None
    )
    return iter(loader)
