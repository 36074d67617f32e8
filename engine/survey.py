"""What every neuron does over many prompts: statistics, histograms and strongest questions; forward passes only.

1. Prompts are taken in windows, tokenised, and run in batches of one length, so that nothing is padded.
2. Activations are read at the down projections. Image positions and text positions are counted apart; of the text the
   tokens that the tokenizer reserves are left out, for they are the same in every prompt.
3. Per neuron and sort of position: Σa and Σa² in float64, positions above 0, counts in fixed bins, and of each question
   the position of largest |a|, of which the TOP questions are kept.

Nothing but these totals outlives a batch. Maps are made anew when somebody looks at a neuron (`activation_maps`).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.attribution.apart import special_positions
from engine.attribution.result import PatchMap
from engine.concepts.batching import rows_at_once, stack
from engine.contract import Cancelled, Floats, Grid, IsCancelled, OnProgress, Question, RequestError, never
from engine.features import Inputs, Seen, embed, forward
from engine.hooks import capture, require_finite
from engine.lens import require_neuron
from engine.loading import Loaded
from engine.neurons_contract import BINS, EDGES, RECORD, SORTS, TOP, Box, Fired, Fires, Survey
from engine.prompts import Prompt, build_prompt
from engine.running import picture_features

WINDOW = 32


@dataclasses.dataclass(frozen=True)
class Case:
    """A question ready to be run; `at` = its positions of each sort."""

    number: int
    inputs: Inputs
    at: tuple[list[int], list[int]]

    @property
    def sort(self) -> tuple[object, ...]:
        """Cases of one sort and length can share a batch."""
        given = self.inputs
        return (given.pictures is None, given.embeddings is None, tuple(sorted(given.extra)), given.ids.shape[1])


Read = Callable[[Sequence[Case]], Sequence[torch.Tensor]]
"""Activations of a batch, a tensor (rows, pos, width) for each layer."""


class _Totals:
    """What is kept between batches: (2, n_layers, d_mlp, …), first axis SORTS."""

    def __init__(self, n_layers: int, d_mlp: int) -> None:
        shape = (len(SORTS), n_layers, d_mlp)
        self.sums = torch.zeros(shape, dtype=torch.float64)
        self.squares = torch.zeros(shape, dtype=torch.float64)
        self.above = torch.zeros(shape, dtype=torch.int64)
        self.bins = torch.zeros((*shape, BINS), dtype=torch.int32)
        self.value = torch.zeros((*shape, TOP))
        self.case = torch.full((*shape, TOP), -1, dtype=torch.int32)
        self.position = torch.zeros((*shape, TOP), dtype=torch.int32)
        self.seen = [0] * len(SORTS)
        self.edges = torch.from_numpy(EDGES).float()

    def add(self, sort: int, layer: int, activations: torch.Tensor, case: int, at: list[int]) -> None:
        """One case's `activations` (positions, d_mlp) of one layer, at the absolute positions `at`."""
        here = activations.float().cpu()
        self.sums[sort, layer] += here.double().sum(0)
        self.squares[sort, layer] += here.double().pow(2).sum(0)
        self.above[sort, layer] += (here > 0).sum(0)
        found = torch.bucketize(here, self.edges).T.contiguous()
        self.bins[sort, layer].scatter_add_(1, found, torch.ones_like(found, dtype=torch.int32))
        place = here.abs().argmax(0)
        value = here.gather(0, place[None])[0]
        where = torch.tensor(at, dtype=torch.int32)[place]
        tables = (self.value, self.case, self.position)
        news = (value, torch.full_like(where, case), where)
        joined = [torch.cat([table[sort, layer], new[:, None]], 1) for table, new in zip(tables, news, strict=True)]
        rank = torch.where(joined[1] < 0, -1.0, joined[0].abs())
        order = rank.sort(dim=1, descending=True, stable=True).indices[:, :TOP]
        for table, values in zip(tables, joined, strict=True):
            table[sort, layer] = values.gather(1, order)

    def records(self) -> npt.NDArray[Any]:
        """(n_layers · d_mlp) of RECORD."""
        count = torch.tensor(self.seen, dtype=torch.float64).clamp(min=1)[:, None, None]
        mean = self.sums / count
        deviation = (self.squares / count - mean.pow(2)).clamp(min=0).sqrt()
        fields = {
            "mean": mean, "deviation": deviation, "positive": self.above / count, "bins": self.bins,
            "case": self.case, "position": self.position, "value": self.value,
        }  # fmt: skip
        made = np.zeros(self.sums.shape[1] * self.sums.shape[2], RECORD)
        for name, table in fields.items():
            made[name] = table.flatten(1, 2).transpose(0, 1).numpy()
        return made


def _ready(loaded: Loaded, question: Question, kept: dict[str, Seen]) -> tuple[Prompt, Inputs, Seen | None]:
    """Raises RequestError for what the model cannot be asked."""
    prompt = build_prompt(loaded, question)
    if prompt.length >= loaded.anatomy.max_positions:
        raise RequestError(f"The prompt needs {prompt.length} positions; the model has {loaded.anatomy.max_positions}.")
    features = None
    if prompt.pixels:
        features = kept.get(prompt.key) or picture_features(loaded, prompt.pixels)
        kept[prompt.key] = features
    return prompt, embed(loaded, prompt.ids, features), features


def _case(loaded: Loaded, number: int, prompt: Prompt, inputs: Inputs) -> Case:
    special = set(special_positions(loaded, prompt))
    text = [p for p, kind in enumerate(prompt.modality) if kind != "image" and p not in special]
    return Case(number, inputs, (prompt.image_positions, text))


def _batches(loaded: Loaded, cases: Sequence[Case]) -> Iterator[list[Case]]:
    """In order of length; cases of one sort together."""
    batch: list[Case] = []
    for case in sorted(cases, key=lambda case: (str(case.sort), case.number)):
        room = rows_at_once(loaded, int(case.inputs.ids.shape[1]))
        if batch and (batch[0].sort != case.sort or len(batch) >= room):
            yield batch
            batch = []
        batch.append(case)
    if batch:
        yield batch


@torch.no_grad()
def _run(read: Read, batch: Sequence[Case], totals: _Totals) -> None:
    for layer, activations in enumerate(read(batch)):
        for row, case in enumerate(batch):
            for sort, at in enumerate(case.at):
                if at:
                    totals.add(sort, layer, activations[row, at], case.number, at)
    for case in batch:
        for sort, at in enumerate(case.at):
            totals.seen[sort] += len(at)


def survey(
    loaded: Loaded,
    questions: Sequence[Question],
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Survey:
    """See `engine.neurons_contract.NeuronEngine.survey`."""

    def read(batch: Sequence[Case]) -> Sequence[torch.Tensor]:
        with capture(loaded.anatomy) as captured:
            forward(loaded, stack([case.inputs for case in batch], 0), 1)
        layers = list(captured.layers())
        for layer, activations in enumerate(layers):
            require_finite(activations, f"the activations of layer {layer}")
        return layers

    return surveyed(loaded, (loaded.anatomy.n_layers, loaded.anatomy.d_mlp), read, questions, on_progress, cancelled)


def surveyed(
    loaded: Loaded,
    shape: tuple[int, int],
    read: Read,
    questions: Sequence[Question],
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Survey:
    """A survey of whatever `read` gives of a batch: as many layers, and as wide, as `shape` says."""
    totals = _Totals(*shape)
    tokens: list[tuple[tuple[str, int], ...]] = [()] * len(questions)
    refused: list[tuple[int, str]] = []
    done = 0
    for start in range(0, len(questions), WINDOW):
        cases: list[Case] = []
        kept: dict[str, Seen] = {}
        for number in range(start, min(start + WINDOW, len(questions))):
            if cancelled():
                raise Cancelled("Stopped between two questions.")
            try:
                prompt, inputs, _ = _ready(loaded, questions[number], kept)
            except RequestError as error:
                refused.append((number, str(error)))
                done += 1
                continue
            tokens[number] = tuple((token.text, token.count) for token in prompt.tokens)
            cases.append(_case(loaded, number, prompt, inputs))
        for batch in _batches(loaded, cases):
            if cancelled():
                raise Cancelled("Stopped between two batches.")
            _run(read, batch, totals)
            done += len(batch)
            if on_progress is not None:
                on_progress(done, len(questions))
    if done == len(refused):
        raise RequestError(refused[0][1] if refused else "There is no question to survey. Ask something first.")
    return Survey(totals.records(), tuple(tokens), (totals.seen[0], totals.seen[1]), tuple(refused))


@torch.no_grad()
def _activations(
    loaded: Loaded, question: Question, kept: dict[str, Seen]
) -> tuple[list[torch.Tensor], PatchMap | None]:
    """(pos, d_mlp) of every layer, and how image positions are brought onto the grid."""
    prompt, inputs, features = _ready(loaded, question, kept)
    with capture(loaded.anatomy) as captured:
        forward(loaded, inputs, 1)
    spread = features.spread if features is not None and features.spread is not None else prompt.spread
    return [layer[0] for layer in captured.layers()], PatchMap.of(prompt.grid, prompt.modality, spread)


def activation_maps(loaded: Loaded, layer: int, index: int, questions: Sequence[Question]) -> tuple[Floats | None, ...]:
    """See `engine.neurons_contract.NeuronEngine.activation_maps`."""
    require_neuron(loaded, layer, index)
    found: list[Floats | None] = []
    for question in questions:
        try:
            activations, patches = _activations(loaded, question, {})
        except RequestError:
            found.append(None)
            continue
        at_patches = activations[layer][patches.at, index].float().cpu() if patches else None
        found.append(patches.averaged(at_patches) if patches and at_patches is not None else None)
    return tuple(found)


def cells_in(grid: Grid, box: Box) -> list[int]:
    """The cells, row by row, whose centre lies in `box`."""
    left, top, right, bottom = grid.box
    width, height = (right - left) / grid.cols, (bottom - top) / grid.rows
    return [
        row * grid.cols + column
        for row in range(grid.rows)
        for column in range(grid.cols)
        if box[0] <= left + (column + 0.5) * width <= box[2] and box[1] <= top + (row + 0.5) * height <= box[3]
    ]


def _weights(patches: PatchMap, cells: Sequence[int]) -> torch.Tensor:
    """(image positions,): the mean over `cells` of what the positions show there; zeros for no cells."""
    n_cells = patches.grid.rows * patches.grid.cols
    chosen = torch.zeros(n_cells)
    chosen[list(cells)] = 1 / max(len(cells), 1)
    if patches.spread is None:
        return chosen
    spread = patches.spread.float().cpu()
    return chosen @ (spread / spread.sum(1, keepdim=True).clamp(min=1e-12))


def fires(loaded: Loaded, question: Question, box: Box, top: int = 12) -> Fires:
    """See `engine.neurons_contract.NeuronEngine.fires`."""
    activations, patches = _activations(loaded, question, {})
    if patches is None:
        raise RequestError("Without a picture there is no box to look into. Choose a run with one.")
    grid, d_mlp = patches.grid, loaded.anatomy.d_mlp
    cells = cells_in(grid, box)
    if not cells:
        raise RequestError(
            f"No patch has its centre in that box; patches are about {(grid.box[2] - grid.box[0]) / grid.cols:.0f} × "
            f"{(grid.box[3] - grid.box[1]) / grid.rows:.0f} pixels. Draw a larger box."
        )
    others = sorted(set(range(grid.rows * grid.cols)) - set(cells))
    both = torch.stack([_weights(patches, cells), _weights(patches, others)])
    means = torch.stack([both @ layer[patches.at].float().cpu().abs() for layer in activations])
    inside, outside = means[:, 0].flatten().numpy(), means[:, 1].flatten().numpy()
    chosen = np.argsort(-inside, kind="stable")[:top].tolist()
    return Fires(
        grid,
        len(cells),
        tuple(
            Fired(
                f"text.{flat // d_mlp}.{flat % d_mlp}", float(inside[flat]), float(outside[flat]),
                patches.averaged(activations[flat // d_mlp][patches.at, flat % d_mlp].float().cpu()),
            )
            for flat in chosen
        ),
    )  # fmt: skip
