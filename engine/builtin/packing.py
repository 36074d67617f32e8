"""Many questions about one picture in one row: the picture is read once.

A row is `<s> USER: <image>*81`, then question-answer pairs, then facts without a picture, then padding. Each token
carries the number of its segment; a token sees earlier tokens of its own segment, the two shared ones, and, if its
segment is about the picture, the picture (`block_mask`). Positions restart after the prefix for every pair, so each
pair sees what it would see alone. Targets are ids where the *next* token is part of an answer, IGNORED elsewhere."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from engine.builtin import questions, scenes, tokenizer, world
from engine.builtin.phrasings import Wording, roughen

PATCH: Final = 14
GRID: Final = scenes.SIZE // PATCH
N_PATCHES: Final = GRID * GRID
PREFIX: Final = (tokenizer.BOS, tokenizer.USER, *([tokenizer.IMAGE] * N_PATCHES))
PICTURE_TOKENS: Final = 128
FACT_TOKENS: Final = 28
ROW: Final = len(PREFIX) + PICTURE_TOKENS + FACT_TOKENS
IGNORED: Final = -100
SHARED, SEEN, FIRST_FACT, PADDING = -2, 0, 50, -1
"""Segments: the two shared tokens, the picture, (1 to 49: pairs about the picture,) facts from 50 on, padding."""

CLASSES: Final = {name: k + 1 for k, name in enumerate((*world.NAMES, *world.SHAPES))}
COLOUR_CLASSES: Final = {name: k + 1 for k, name in enumerate(world.COLOURS)}
N_CLASSES: Final = len(CLASSES) + 1
N_COLOURS: Final = len(COLOUR_CLASSES) + 1

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Row:
    """One packed row; each list has ROW entries. `n_pairs` counts questions, facts included."""

    ids: list[int]
    segments: list[int]
    positions: list[int]
    targets: list[int]
    n_pairs: int


class _Builder:
    """A row under construction."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.ids = list(PREFIX)
        self.segments = [SHARED, SHARED] + [SEEN] * N_PATCHES
        self.positions = list(range(len(PREFIX)))
        self.targets = [IGNORED] * len(PREFIX)
        self.n_pairs = 0

    def add(self, question: str, answer: str, segment: int, start: int, room: int) -> bool:
        """Append the pair if the row then has at most `room` entries."""
        ask = [*self.encode(f" {question}"), tokenizer.ASSISTANT]
        say = [*self.encode(f" {answer}"), tokenizer.EOS]
        n = len(ask) + len(say)
        if len(self.ids) + n > room:
            return False
        self.ids += ask + say
        self.segments += [segment] * n
        self.positions += range(start, start + n)
        self.targets += [IGNORED] * (len(ask) - 1) + say + [IGNORED]
        self.n_pairs += 1
        return True

    def row(self) -> Row:
        n = ROW - len(self.ids)
        return Row(
            self.ids + [tokenizer.PAD] * n,
            self.segments + [PADDING] * n,
            self.positions + [0] * n,
            self.targets + [IGNORED] * n,
            self.n_pairs,
        )


def pack(
    scene: scenes.Scene, rng: random.Random, encode: Encode, weights: Mapping[str, float], loose: float = 0.0
) -> Row:
    """Questions about the scene of kinds drawn by weight, then facts. A share `loose` is worded and typed as people do.

    A question with a yes is followed by one of its kind with a no, and the reverse, so that neither is the better
    guess."""
    builder, kinds, shares = _Builder(encode), list(weights), list(weights.values())
    room = len(PREFIX) + PICTURE_TOKENS
    asked: set[str] = set()

    def add(qa: questions.QA | None, wording: Wording) -> bool | None:
        """None: nothing new to ask; False: no room."""
        key = "describe" if qa is not None and qa.kind == "describe" else "" if qa is None else qa.question
        if qa is None or key in asked:
            return None
        typed = roughen(qa.question, rng) if wording == "loose" else qa.question
        if not builder.add(typed, qa.answer, builder.n_pairs + 1, len(PREFIX), room):
            return False
        asked.add(key)
        return True

    failures = 0
    while failures < 6 and builder.n_pairs < FIRST_FACT - 2:
        wording: Wording = "loose" if rng.random() < loose else "canonical"
        kind = rng.choices(kinds, shares)[0]
        if rng.random() < 0.03:
            qa: questions.QA | None = questions.fact_question(rng.choice(world.FACTS), rng, wording=wording)
        else:
            qa = questions.ask(scene, kind, rng, wording)
        added = add(qa, wording)
        failures += 0 if added else 1 if added is None else 2
        if added and qa is not None and qa.answer in ("yes", "no"):
            opposite = (questions.ask(scene, kind, rng, wording) for _ in range(6))
            add(next((other for other in opposite if other is not None and other.answer != qa.answer), None), wording)
    segment, failures = FIRST_FACT, 0
    while failures < 2:
        wording = "loose" if rng.random() < loose else "canonical"
        qa = questions.fact_question(rng.choice(world.FACTS), rng, wording=wording)
        typed = roughen(qa.question, rng) if wording == "loose" else qa.question
        if builder.add(typed, qa.answer, segment, 2, ROW):
            segment += 1
        else:
            failures += 1
    return builder.row()


def block_mask(segments: torch.Tensor) -> torch.Tensor:
    """(batch, pos) segments -> (batch, 1, pos, pos) additive attention mask: 0 where a token may look, -1e4
    elsewhere."""
    n = segments.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    query, key = segments[:, :, None], segments[:, None, :]
    about_picture = (query > SEEN) & (query < FIRST_FACT)
    allowed = ((query == key) | (key == SHARED) | ((key == SEEN) & about_picture)) & causal
    return torch.zeros(allowed.shape).masked_fill_(~allowed, -1e4)[:, None]


def patch_labels(scene: scenes.Scene, mask: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(patches, 6): class, colour class, offset to the thing's centre (x, y, in 28 px), the centre itself (x, y, in
    SIZE).

    A patch belongs to the thing that covers most of it, if things cover at least 15 % of it; else its class is 0."""
    blocks = mask.reshape(GRID, PATCH, GRID, PATCH).transpose(0, 2, 1, 3).reshape(N_PATCHES, PATCH * PATCH)
    labels = np.zeros((N_PATCHES, 6), np.float32)
    for k in np.nonzero((blocks > 0).sum(1) >= 0.15 * PATCH * PATCH)[0]:
        thing = scene.things[int(np.bincount(blocks[k])[1:].argmax())]
        x, y = (k % GRID + 0.5) * PATCH, (k // GRID + 0.5) * PATCH
        labels[k] = (
            CLASSES[thing.form if thing.is_shape else thing.name],
            COLOUR_CLASSES[thing.colour] if thing.is_shape else 0,
            (thing.x - x) / 28,
            (thing.y - y) / 28,
            thing.x / scenes.SIZE,
            thing.y / scenes.SIZE,
        )
    return labels
