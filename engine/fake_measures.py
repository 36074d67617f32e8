"""The FakeEngine's texts as tokens, and what it measures: drawn from hashes, with the shapes and laws of the real ones.

1. A word after a space is its vocabulary's id where it is known; every other piece's id is drawn from its hash.
2. `pan` keeps the scores of a target's first token; it, `direct` and `logprob_increase` those of predicting positions.
3. `ablation` gathers each modality's scores at its last position; `integrated` grows every score by a tenth.
4. A neuron's activation on a patch is a part of its peak, drawn from a hash; `direct` and its like read no patch.
5. The embeddings' values are the gradient's sums by position, each layer's weighed by a number drawn from a hash.
6. The deletion curve falls by the score of what is taken away; single-neuron effects are the scores and a little noise.
7. RUNS pretended ablated runs, BATCH at a time, each batch with a token's delay, are what `ablation` and this take.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.concepts.fuzzy import similarities
from engine.contract import (
    MODALITIES,
    Apart,
    Attribution,
    BadTarget,
    Concept,
    ConceptScore,
    Faithfulness,
    Floats,
    InputHeat,
    IsCancelled,
    NeuronScore,
    NoiseBand,
    OnProgress,
    unit,
)
from engine.fake_world import COLS, ROWS, VOCABULARY, noise
from engine.measures import mean_over_log, moved, spearman

READING = ("direct", "pan", "logprob_increase")
SIZES = (1, 2, 5, 10, 20, 50, 100)
RUNS, BATCH = 64, 8
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


def in_batches(pause: Callable[[IsCancelled], None], cancelled: IsCancelled, on_progress: OnProgress | None) -> None:
    """Rule 7. `pause` waits, and raises Cancelled."""
    for done in range(BATCH, RUNS + 1, BATCH):
        pause(cancelled)
        if on_progress is not None:
            on_progress(done, RUNS)


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


def neurons_of(
    scores: Floats, parts: Floats, heats: Floats | None, top: int, seen: str | None
) -> tuple[NeuronScore, ...]:
    """The `top` neurons by their `parts` (n_layers, d_mlp, modalities). `seen`: what activations on patches are drawn
    from (rule 4), None for none."""
    total = parts.sum(axis=2)
    order = sorted(np.ndindex(*total.shape), key=lambda n: (-abs(total[n]), n))[:top]
    peaks = [float(np.round(np.abs(scores[n]).max() * 10, 4)) for n in order]

    def activation(peak: float, layer: int, index: int) -> Floats | None:
        if seen is None:
            return None
        drawn = noise("activation", seen, layer, index).uniform(-0.3, 1, (ROWS, COLS))
        return (peak * drawn).astype(np.float32)

    return tuple(
        NeuronScore(
            layer, index, float(total[layer, index]), four(parts[layer, index]),
            None if heats is None else heats[layer, index], peak, activation(peak, layer, index),
        )
        for (layer, index), peak in zip(order, peaks, strict=True)
    )  # fmt: skip


def concept_score(concept: Concept, total: Floats, heats: Floats | None, own: Floats) -> ConceptScore:
    """A concept's membership-weighted sums, and its likeness to `own`, the target's own fuzzy set."""
    heat = None if heats is None else np.tensordot(concept.memberships, heats, axes=2).astype(np.float32)
    alike = float(similarities(concept.memberships.reshape(1, -1), own.ravel())[0])
    return ConceptScore(concept.name, float((concept.memberships * total).sum()), heat, alike)


def input_heat_of(found: Attribution) -> InputHeat:
    """Rule 5 over the gradient's attribution of the target."""
    values = noise("embeddings").uniform(-1, 1, len(found.positions)) @ found.positions
    kinds = np.array(found.modality_of_position)
    heat = None if found.grid is None else values[kinds == "image"].reshape(ROWS, COLS).astype(np.float32)
    sums = [values[kinds == kind].sum() for kind in MODALITIES]
    return InputHeat(heat, four(sums), found.value, found.grid, "Drawn from hashes: there are no embeddings.")


def faithfulness_of(scores: Floats, value: float, method: str, quantity: str) -> Faithfulness:
    """Rule 6 over scores (n_layers, d_mlp)."""
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


def four(values: npt.ArrayLike) -> tuple[float, float, float, float]:
    """One number a modality."""
    image, question, template, answer = np.asarray(values).tolist()
    return image, question, template, answer


def shares(parts: Floats) -> tuple[float, float, float, float]:
    """Σ |part| per modality of (n_layers, d_mlp, modalities), as shares."""
    magnitude = np.abs(parts).sum(axis=(0, 1), dtype=np.float64)
    return four(magnitude / max(magnitude.sum(), 1e-300))
