"""The FakeEngine's texts as tokens, and what it measures: drawn from hashes, with the shapes and laws of the real ones.

1. A word after a space is its vocabulary's id where it is known; every other piece's id is drawn from its hash.
2. `pan` keeps the scores of a target's first token; it, `direct` and `logprob_increase` those of predicting positions.
3. `ablation` gathers each modality's scores at its last position; `integrated` grows every score by a tenth.
4. The deletion curve falls by the score of what is taken away; single-neuron effects are the scores and a little noise.
"""

from collections.abc import Sequence

import numpy as np

from engine.contract import MODALITIES, Apart, BadTarget, Faithfulness, Floats, NoiseBand, unit
from engine.fake_world import VOCABULARY, noise
from engine.measures import mean_over_log, moved, spearman

READING = ("direct", "pan", "logprob_increase")
SIZES = (1, 2, 5, 10, 20, 50, 100)
FIRST_WORD = 5
"""Ids before this are marks."""


def encode(text: str) -> list[int]:
    """Ids of a text as the continuation of an answer. Raises BadTarget for an empty one."""
    pieces = [f" {word}" for word in text.split()]
    if not pieces:
        raise BadTarget("The text to explain is empty. Write what the model might have said.")
    if not text.startswith(" "):
        pieces[0] = pieces[0][1:]
    return [_id(piece) for piece in pieces]


def _id(piece: str) -> int:
    if piece in VOCABULARY:
        return VOCABULARY.index(piece)
    return int(noise("piece", piece).integers(FIRST_WORD, len(VOCABULARY)))


def by_method(scores: Floats, method: str, modalities: Sequence[str]) -> Floats:
    """The gradient's scores (n_layers, d_mlp, pos) as another method gives them."""
    if method == "integrated":
        return (scores * np.float32(1.1)).astype(np.float32)
    if method != "ablation":
        return scores
    gathered = np.zeros_like(scores)
    for modality in MODALITIES:
        here = [p for p, kind in enumerate(modalities) if kind == modality]
        if here:
            gathered[:, :, here[-1]] = scores[:, :, here].sum(2)
    return gathered


def padded(scores: Floats, length: int) -> Floats:
    """(n_layers, d_mlp, pos) with zeros up to `length` positions."""
    return np.pad(scores, ((0, 0), (0, 0), (0, length - scores.shape[2])))


def set_apart(scores: Floats, modalities: Sequence[str], leave_out: Sequence[str]) -> tuple[Floats, tuple[Apart, ...]]:
    """Special = the first position and the last of the prompt; high-norm = the first position and the first patch."""
    last = next((p for p, kind in enumerate(modalities) if kind == "answer"), len(modalities)) - 1
    patch = [p for p, kind in enumerate(modalities) if kind == "image"][:1]
    weight = np.abs(scores).sum((0, 1))
    whole = float(weight.sum()) or 1.0
    found = tuple(
        Apart(kind, positions, float(weight[list(positions)].sum()) / whole, kind in leave_out)
        for kind, positions in (("special", (0, last)), ("high-norm", (0, *patch)))
    )
    kept = scores.copy()
    for entry in found:
        if entry.left_out:
            kept[:, :, list(entry.positions)] = 0
    return kept, found


def faithfulness_of(scores: Floats, value: float, method: str, quantity: str) -> Faithfulness:
    """Rule 4 over scores (n_layers, d_mlp)."""
    flat, d_mlp = scores.ravel().astype(np.float64), scores.shape[1]
    sizes = tuple(size for size in SIZES if size <= flat.size // 2)
    orders = [np.argsort(-flat, kind="stable"), *(noise("random set", j).permutation(flat.size) for j in range(3))]
    curves = [tuple(float(value - flat[order[:size]].sum()) for size in sizes) for order in orders]
    chance, ranked = np.mean(curves[1:], axis=0), np.array(curves[0])
    sample = [int(n) for n in np.argsort(-np.abs(flat), kind="stable")[:100]]
    mine = flat[sample]
    effects = mine + noise("effects", method).standard_normal(len(sample)) * np.abs(mine).mean() / 10
    return Faithfulness(
        method, unit("gradient", quantity), value, sizes, curves[0], tuple(curves[1:]),
        mean_over_log(sizes, chance - ranked), mean_over_log(sizes, value - ranked), spearman(mine, effects),
        tuple(f"text.{n // d_mlp}.{n % d_mlp}" for n in sample), tuple(mine.tolist()), tuple(effects.tolist()),
        float(flat.sum()), float(flat.sum() * 0.9),
    )  # fmt: skip


def noise_bands_of(ranking: list[str]) -> tuple[NoiseBand, ...]:
    """Two neurons change place in bfloat16, none in a batch of two."""
    swapped = [*ranking[:-2], *ranking[-2:][::-1]]
    return NoiseBand("bfloat16", len(ranking), moved(ranking, swapped), 0.01), NoiseBand(
        "a batch of two", len(ranking), (), 0.0
    )


def shares(parts: Floats) -> tuple[float, float, float, float]:
    """Σ |part| per modality of (n_layers, d_mlp, modalities), as shares."""
    magnitude = np.abs(parts).sum(axis=(0, 1), dtype=np.float64)
    image, question, template, answer = (magnitude / max(magnitude.sum(), 1e-300)).tolist()
    return image, question, template, answer
