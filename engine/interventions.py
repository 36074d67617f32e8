"""Edits of a batch, as data: a `Steering` becomes per-layer index, scale and shift tensors.

METHODS.md §3: a'_{l,i}(p) = a_{l,i}(p) · (1 + Σ_c λ_c μ_c(l,i)) at the chosen positions; single neurons are scaled, set
or shifted after that. A concept acts through its at most MAX_SET members of highest membership. Latents of sparse
autoencoders: see `engine.sae.steering`.
"""

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.contract import (
    LAMBDA_RANGE,
    MAX_SET,
    NEURON_VALUE_LIMIT,
    POSITIONS,
    EngineError,
    Library,
    NeuronTurn,
    RequestError,
    Steering,
    UnknownName,
)
from engine.sae.sae import Sae
from engine.turns import OPERATIONS, in_layers


@dataclasses.dataclass(frozen=True)
class LayerEdit:
    """One layer's edits: neurons `index` (k,), and a' = a · scale + shift for each of them."""

    index: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor


@dataclasses.dataclass(frozen=True)
class LatentEdit:
    """The edits of one SAE's latents `edit.index`: H'_c = H_c · scale + shift, from position `first` on."""

    sae: Sae
    edit: LayerEdit
    first: int


@dataclasses.dataclass(frozen=True)
class Edits:
    """One batch row's edits: of neurons by layer, and of latents, an SAE each. `where` (prompt positions,) says at
    which prompt positions they act, None = at all; `later` whether they act at every position after the prompt."""

    layers: dict[int, LayerEdit]
    where: torch.Tensor | None
    later: bool
    latents: tuple[LatentEdit, ...] = ()

    @property
    def n_neurons(self) -> int:
        return sum(len(edit.index) for edit in self.layers.values())

    @property
    def nothing(self) -> bool:
        return not self.layers and not self.latents

    @property
    def from_the_end(self) -> bool:
        """Do they leave every prompt position but the last as it is?"""
        return self.nothing or (self.where is not None and not bool(self.where[:-1].any()))


NO_EDITS = Edits({}, None, True)


@dataclasses.dataclass(frozen=True)
class Together:
    """One layer's edits of a whole batch: `index` (k,) = every neuron that any row turns there; `scale` and `shift`
    (rows, 1, k) of each row; `own` (rows, 1, k or 1) which of them the row turns itself, None where all turn all."""

    index: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    own: torch.Tensor | None

    def apply(self, activation: torch.Tensor, acts: torch.Tensor | None, in_place: bool = False) -> torch.Tensor:
        """a' = a · scale + shift of (rows, pos, d_mlp) where `acts` (rows, pos), None = at every position. What a row
        does not turn stays bit-equal. Differentiable, a new tensor; or `in_place`."""
        old = activation[..., self.index]
        new = old * self.scale + self.shift
        mine = self.own
        if acts is not None:
            mine = acts[..., None] if mine is None else acts[..., None] & mine
        if mine is not None:
            new = torch.where(mine, new, old)
        return activation.index_copy_(-1, self.index, new) if in_place else activation.index_copy(-1, self.index, new)


def together(rows: Sequence[Edits], layer: int, like: torch.Tensor) -> Together:
    """The rows' edits of a layer as one, on the device and in the dtype of `like`, that layer's activations."""
    edits = [row.layers.get(layer) for row in rows]
    given = [edit for edit in edits if edit is not None]
    if all(edit.index is given[0].index or torch.equal(edit.index, given[0].index) for edit in given):
        return _alike(edits, given[0].index.to(like.device), like)
    index = torch.unique(torch.cat([edit.index.to(like.device) for edit in given]))
    scale, shift = like.new_ones(len(rows), 1, len(index)), like.new_zeros(len(rows), 1, len(index))
    own = torch.zeros(len(rows), 1, len(index), dtype=torch.bool, device=like.device)
    for k, edit in enumerate(edits):
        if edit is not None:
            at = torch.searchsorted(index, edit.index.to(like.device))
            scale[k, 0, at] = edit.scale.to(like.device, like.dtype)
            shift[k, 0, at] = edit.shift.to(like.device, like.dtype)
            own[k, 0, at] = True
    return Together(index, scale, shift, None if bool(own.all()) else own)


def _alike(edits: Sequence[LayerEdit | None], index: torch.Tensor, like: torch.Tensor) -> Together:
    """`together` of rows that turn the same neurons, or none."""
    ones, zeros = like.new_ones(len(index)), like.new_zeros(len(index))
    scale = torch.stack([ones if edit is None else edit.scale.to(like.device, like.dtype) for edit in edits])
    shift = torch.stack([zeros if edit is None else edit.shift.to(like.device, like.dtype) for edit in edits])
    own = torch.tensor([edit is not None for edit in edits], device=like.device)[:, None, None]
    return Together(index, scale[:, None], shift[:, None], None if bool(own.all()) else own)


class Places:
    """At which positions of a call each row acts."""

    def __init__(self, rows: Sequence[Edits]) -> None:
        self.masks = [None if row.where is None else row.where.cpu() for row in rows]
        self.later = [row.where is None or row.later for row in rows]

    def at(self, start: int, length: int) -> torch.Tensor:
        """(rows, pos) bool: where the rows act among the absolute positions start … start + length − 1."""
        acts = torch.tensor(self.later)[:, None].repeat(1, length)
        for row, mask in zip(acts, self.masks, strict=True):
            if mask is not None:
                inside = mask[start : start + length]
                row[: len(inside)] = inside
        return acts


def near(name: str, names: Iterable[str]) -> str:
    """A half-sentence with names that resemble `name`, or with where to look."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"Did you mean {', '.join(close)}?" if close else "See the list of concepts."


def members(memberships: npt.NDArray[np.float32], limit: int = MAX_SET) -> npt.NDArray[np.int64]:
    """Flat indices of the at most `limit` neurons of highest positive membership; ties by (layer, index)."""
    flat = memberships.ravel()
    positive = np.flatnonzero(flat > 0)
    return positive[np.argsort(-flat[positive], kind="stable")[:limit]]


def within(memberships: npt.NDArray[np.float32], layers: tuple[int, int] | None) -> npt.NDArray[np.float32]:
    """The memberships (n_layers, d_mlp) in these layers (first, last), zero in all others: limited to some layers, a
    concept steers through its strongest members there."""
    if layers is None:
        return memberships
    kept = np.zeros_like(memberships)
    kept[layers[0] : layers[1] + 1] = memberships[layers[0] : layers[1] + 1]
    return kept


def _check_neuron(turn: NeuronTurn, n_layers: int, d_mlp: int) -> None:
    if not (0 <= turn.layer < n_layers and 0 <= turn.index < d_mlp):
        raise UnknownName(
            f"There is no neuron {turn.neuron}: layers run from 0 to {n_layers - 1}, indices from 0 to {d_mlp - 1}."
        )
    if turn.operation not in OPERATIONS:
        raise UnknownName(f"A neuron can be turned by {', '.join(OPERATIONS)}, not by {turn.operation}.")
    if not abs(turn.value) <= NEURON_VALUE_LIMIT:
        raise RequestError(
            f"The value for {turn.neuron} must be a finite number of magnitude at most {NEURON_VALUE_LIMIT:g}."
        )


def check_steering(steering: Steering, library: Library, n_layers: int, d_mlp: int) -> None:
    """Raise UnknownName or RequestError for a steering that cannot be carried out; nothing is changed."""
    names = {concept.name for concept in library.concepts}
    if steering.positions not in POSITIONS:
        raise UnknownName(f"A steering acts at {', '.join(POSITIONS)}, not at {steering.positions}.")
    in_layers(steering.layers, n_layers)
    low, high = LAMBDA_RANGE
    for turn in steering.concepts:
        if turn.concept not in names:
            raise UnknownName(f"There is no concept {turn.concept!r}. {near(turn.concept, names)}")
        if not low <= turn.lam <= high:
            raise RequestError(f"λ must lie between {low:g} and {high:g}; {turn.concept} has {turn.lam:g}.")
    for neuron in steering.neurons:
        _check_neuron(neuron, n_layers, d_mlp)


def then(edit: tuple[float, float], operation: str, value: float) -> tuple[float, float]:
    """(scale, shift) of an edit and a turn after it."""
    scale, shift = edit
    return {"scale": (scale * value, shift * value), "add": (scale, shift + value), "set": (0.0, value)}[operation]


def factors(steering: Steering, library: Library, n_layers: int, d_mlp: int) -> dict[int, tuple[float, float]]:
    """{flat neuron: (scale, shift)} of a steering; under `control` dealt to random neurons of the same layers."""
    scale: dict[int, float] = {}
    for turn in steering.concepts:
        if turn.lam == 0:
            continue
        of = next(concept.memberships for concept in library.concepts if concept.name == turn.concept)
        acting = within(of, steering.layers)
        strongest = members(acting)
        for neuron, mu in zip(strongest.tolist(), acting.ravel()[strongest].tolist(), strict=True):
            scale[neuron] = scale.get(neuron, 1.0) + turn.lam * mu
    result = {neuron: (value, 0.0) for neuron, value in scale.items()}
    for turn_n in steering.neurons:
        flat_index = turn_n.layer * d_mlp + turn_n.index
        result[flat_index] = then(result.get(flat_index, (1.0, 0.0)), turn_n.operation, turn_n.value)
    if steering.control is None:
        return result
    return _dealt(result, d_mlp, steering.control)


def _dealt(chosen: dict[int, tuple[float, float]], d_mlp: int, seed: int) -> dict[int, tuple[float, float]]:
    """The control: the same edits on as many random neurons *of the same layers*, none of them in the set."""
    rng = np.random.default_rng(seed)
    dealt: dict[int, tuple[float, float]] = {}
    for layer in sorted({neuron // d_mlp for neuron in chosen}):
        mine = [neuron for neuron in chosen if neuron // d_mlp == layer]
        others = np.setdiff1d(np.arange(layer * d_mlp, (layer + 1) * d_mlp), np.array(mine))
        if len(others) < len(mine):
            raise RequestError(
                f"Layer {layer} has {d_mlp} neurons of which {len(mine)} are turned: too many for a random control set."
            )
        for neuron, other in zip(mine, rng.choice(others, size=len(mine), replace=False), strict=True):
            dealt[int(other)] = chosen[neuron]
    return dealt


def where_mask(positions: str, modality: tuple[str, ...]) -> tuple[torch.Tensor | None, bool]:
    """(prompt mask or None, acts after the prompt). See contract.POSITIONS for the words."""
    if positions == "all":
        return None, True
    mask = torch.zeros(len(modality), dtype=torch.bool)
    if positions == "answer":
        mask[-1] = True
        return mask, True
    kinds = {"image"} if positions == "image" else {"question", "template"}
    mask = torch.tensor([kind in kinds for kind in modality])
    return mask, False


def compile_steering(
    steering: Steering,
    library: Library,
    modality: tuple[str, ...],
    n_layers: int,
    d_mlp: int,
    device: torch.device | str = "cpu",
    latents: tuple[LatentEdit, ...] | None = None,
) -> Edits:
    """A checked steering as tensors for one prompt; `latents`: what `engine.sae.steering.compile_latents` made of its
    turns of latents. λ = 0, no neurons and no latents → NO_EDITS, so the run is bit-equal."""
    if steering.latents and latents is None:
        raise EngineError("A steering by latents was given where no SAE is at hand.")
    check_steering(steering, library, n_layers, d_mlp)
    if steering.empty:
        return NO_EDITS
    chosen = sorted(factors(steering, library, n_layers, d_mlp).items())
    flat = np.array([neuron for neuron, _ in chosen], np.int64)
    edits = np.array([edit for _, edit in chosen], np.float32).reshape(-1, 2)
    index, scale, shift = (
        torch.from_numpy(values).to(device) for values in (flat % d_mlp, edits[:, 0].copy(), edits[:, 1].copy())
    )
    ends = np.searchsorted(flat, d_mlp * np.arange(n_layers + 1)).tolist()
    layers = {
        layer: LayerEdit(index[start:end], scale[start:end], shift[start:end])
        for layer, (start, end) in enumerate(itertools.pairwise(ends))
        if start < end
    }
    mask, later = where_mask(steering.positions, modality)
    if mask is not None and not later and not bool(mask.any()):
        raise RequestError(f"This question has no {steering.positions} positions to steer at. Choose all positions.")
    return Edits(layers, None if mask is None else mask.to(device), later, latents or ())
