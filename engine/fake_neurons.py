"""What the FakeEngine tells of single neurons: activations drawn from hashes, and every total made from them, so that
the identities of the real results hold."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.contract import Cancelled, Floats, Grid, IsCancelled, OnProgress, Question, RequestError, UnknownName, never
from engine.fake_world import COLS, D_MLP, N_LAYERS, ROWS, VOCABULARY, key_of, modalities_of, noise, prompt_of
from engine.neurons_contract import (
    BINS,
    EDGES,
    RECORD,
    TOP,
    Box,
    Fired,
    Fires,
    Lens,
    LensToken,
    Promotions,
    Survey,
)

RESERVED = ("<s>", "</s>")


def require(layer: int, index: int) -> None:
    """Raises UnknownName."""
    if not (0 <= layer < N_LAYERS and 0 <= index < D_MLP):
        raise UnknownName(
            f"There is no neuron text.{layer}.{index}: layers go from 0 to {N_LAYERS - 1}, indices to {D_MLP - 1}."
        )


def activations_of(question: Question) -> Floats:
    """(N_LAYERS, D_MLP, pos) over the prompt."""
    length = len(modalities_of(prompt_of(question), 0))
    drawn = noise("activations", key_of(question)).normal(0, 1, (N_LAYERS, D_MLP, length))
    return np.asarray(drawn * noise("scale").exponential(1, (N_LAYERS, D_MLP, 1)), np.float32)


def _write_vectors() -> Floats:
    return np.asarray(noise("write vectors").normal(0, 1, (N_LAYERS, D_MLP, 16)), np.float32)


def _values() -> Floats:
    """(N_LAYERS, D_MLP, vocabulary): every token's value under every neuron's lens."""
    unembedding = noise("unembedding").normal(0, 1, (16, len(VOCABULARY)))
    values = _write_vectors() @ unembedding
    return np.asarray(values - values.mean(-1, keepdims=True), np.float32)


def _cells(question: Question, box: Box) -> tuple[Grid, npt.NDArray[np.bool_]]:
    assert question.picture is not None
    height, width = question.picture.shape[:2]
    grid = Grid(ROWS, COLS, (0.0, 0.0, float(width), float(height)))
    across = (np.arange(COLS) + 0.5) * width / COLS
    down = (np.arange(ROWS) + 0.5) * height / ROWS
    inside = ((across >= box[0]) & (across <= box[2]))[None] & ((down >= box[1]) & (down <= box[3]))[:, None]
    return grid, inside


def surveyed(
    questions: Sequence[Question], width: int, read: Callable[[Question], Floats], on_progress: OnProgress | None
) -> Survey:
    """The totals of what `read` gives of each question, (width, pos) over its prompt."""
    if not questions:
        raise RequestError("There is no question to survey. Ask the model something first.")
    seen: list[list[Floats]] = [[], []]
    strongest: list[list[tuple[int, npt.NDArray[np.int64], Floats]]] = [[], []]
    tokens = []
    for case, question in enumerate(questions):
        asked = prompt_of(question)
        tokens.append(tuple((token.text, token.count) for token in asked))
        texts = [token.text for token in asked for _ in range(token.count)]
        kinds, drawn = modalities_of(asked, 0), read(question)
        for sort in range(2):
            at = np.array(
                [p for p, kind in enumerate(kinds) if (kind == "image") == (sort == 0) and texts[p] not in RESERVED]
            )
            if len(at):
                here = drawn[:, at]
                place = np.abs(here).argmax(1)
                seen[sort].append(here)
                strongest[sort].append((case, at[place], here[np.arange(len(here)), place]))
        if on_progress is not None:
            on_progress(case + 1, len(questions))
    made = np.zeros(width, RECORD)
    made["case"] = -1
    for sort in range(2):
        if not seen[sort]:
            continue
        whole = np.concatenate(seen[sort], axis=1).astype(np.float64)
        made["mean"][:, sort], made["deviation"][:, sort] = whole.mean(1), whole.std(1)
        made["positive"][:, sort] = (whole > 0).mean(1)
        found = np.searchsorted(EDGES, whole)
        made["bins"][:, sort] = np.stack([np.bincount(row, minlength=BINS) for row in found])
        values = np.stack([value for _, _, value in strongest[sort]], axis=1)
        order = np.argsort(-np.abs(values), axis=1, kind="stable")[:, :TOP]
        fields = {
            "case": np.array([[case for case, _, _ in strongest[sort]]]).repeat(len(made), 0),
            "position": np.stack([position for _, position, _ in strongest[sort]], axis=1),
            "value": values,
        }
        for name, table in fields.items():
            made[name][:, sort, : order.shape[1]] = np.take_along_axis(table, order, 1)
    positions = [sum(here.shape[1] for here in seen[sort]) for sort in range(2)]
    return Survey(made, tuple(tokens), (positions[0], positions[1]), ())


class FakeNeurons:
    """`engine.neurons_contract.NeuronEngine` without a model."""

    def _pause(self, cancelled: IsCancelled) -> None:
        """Take the engine's delay; raises Cancelled."""
        if cancelled():
            raise Cancelled("Stopped on request.")

    def lens(self, layer: int, index: int, top: int = 12, alike: int = 10) -> Lens:
        require(layer, index)
        values = _values()[layer, index]
        order = np.argsort(-values, kind="stable").tolist()
        tokens = [LensToken(VOCABULARY[k], k, float(values[k])) for k in order]
        vectors = _write_vectors().reshape(-1, 16)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ vectors[layer * D_MLP + index]
        cosines[layer * D_MLP + index] = -2
        nearest = np.argsort(-cosines, kind="stable")[:alike].tolist()
        like = tuple((f"text.{n // D_MLP}.{n % D_MLP}", float(cosines[n])) for n in nearest)
        return Lens(tuple(tokens[:top]), tuple(reversed(tokens[-top:])), like)

    def promotions(
        self, top: int = 5, on_progress: OnProgress | None = None, cancelled: IsCancelled = never
    ) -> Promotions:
        values = _values()
        for layer in range(N_LAYERS):
            self._pause(cancelled)
            if on_progress is not None:
                on_progress(layer + 1, N_LAYERS)
        ids = np.argsort(-values, axis=-1, kind="stable")[:, :, :top]
        texts = {int(k): VOCABULARY[k] for k in np.unique(ids)}
        return Promotions(ids.astype(np.int64), np.take_along_axis(values, ids, -1), texts)

    def scenes(self, n: int) -> tuple[Question, ...]:
        return ()

    def survey(
        self, questions: Sequence[Question], on_progress: OnProgress | None = None, cancelled: IsCancelled = never
    ) -> Survey:
        def read(question: Question) -> Floats:
            self._pause(cancelled)
            return activations_of(question).reshape(N_LAYERS * D_MLP, -1)

        return surveyed(questions, N_LAYERS * D_MLP, read, on_progress)

    def _map(self, question: Question) -> Floats:
        """(N_LAYERS, D_MLP, ROWS, COLS)."""
        kinds = modalities_of(prompt_of(question), 0)
        at = [p for p, kind in enumerate(kinds) if kind == "image"]
        return activations_of(question)[:, :, at].reshape(N_LAYERS, D_MLP, ROWS, COLS)

    def activation_maps(self, layer: int, index: int, questions: Sequence[Question]) -> tuple[Floats | None, ...]:
        require(layer, index)
        return tuple(None if asked.picture is None else self._map(asked)[layer, index] for asked in questions)

    def fires(self, question: Question, box: Box, top: int = 12) -> Fires:
        if question.picture is None:
            raise RequestError("Without a picture there is no box to look into. Choose a run with one.")
        grid, inside = _cells(question, box)
        if not inside.any():
            raise RequestError("No patch has its centre in that box. Draw a larger box.")
        drawn = self._map(question).reshape(-1, ROWS, COLS)
        means = np.abs(drawn)[:, inside].mean(1)
        rest = np.abs(drawn)[:, ~inside].mean(1) if not inside.all() else np.zeros(len(drawn))
        chosen = np.argsort(-means, kind="stable")[:top].tolist()
        return Fires(
            grid,
            int(inside.sum()),
            tuple(Fired(f"text.{n // D_MLP}.{n % D_MLP}", float(means[n]), float(rest[n]), drawn[n]) for n in chosen),
        )
