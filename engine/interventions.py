"""Edits of a batch, as data: a `Steering` becomes per-layer index, scale and shift tensors.

METHODS.md §3: a'_{l,i}(p) = a_{l,i}(p) · (1 + Σ_c λ_c μ_c(l,i)) at the chosen positions; single neurons are scaled, set
or shifted after that. A concept acts through its at most MAX_SET members of highest membership.
"""

import dataclasses
import difflib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from engine.contract import (
    LAMBDA_RANGE,
    MAX_SET,
    NEURON_VALUE_LIMIT,
    POSITIONS,
    Library,
    NeuronTurn,
    RequestError,
    Steering,
    UnknownName,
)

OPERATIONS = ("scale", "add", "set")


@dataclasses.dataclass(frozen=True)
class LayerEdit:
    """One layer's edits: neurons `index` (k,), and a' = a · scale + shift for each of them."""

    index: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    def on(self, device: torch.device) -> "LayerEdit":
        """The same edit on the device of the layer that it acts in."""
        return LayerEdit(self.index.to(device), self.scale.to(device), self.shift.to(device))


@dataclasses.dataclass(frozen=True)
class Edits:
    """One batch row's edits. `where` (prompt positions,) says at which prompt positions they act, None = at all;
    `later` whether they act at every position after the prompt."""

    layers: dict[int, LayerEdit]
    where: torch.Tensor | None
    later: bool

    @property
    def n_neurons(self) -> int:
        return sum(len(edit.index) for edit in self.layers.values())

    def apply(self, layer: int, activation: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Edit (1, pos, d_mlp) whose absolute positions are `positions` (pos,). Differentiable; a new tensor."""
        edit = self.layers[layer].on(activation.device)
        old = activation[..., edit.index]
        new = old * edit.scale.to(old.dtype) + edit.shift.to(old.dtype)
        if self.where is not None:
            where, positions = self.where.to(activation.device), positions.to(activation.device)
            inside = positions < len(where)
            acts = torch.where(inside, where[positions.clamp(max=len(where) - 1)], self.later)
            new = torch.where(acts[None, :, None], new, old)
        return activation.index_copy(-1, edit.index, new)


NO_EDITS = Edits({}, None, True)


def near(name: str, names: Iterable[str]) -> str:
    """A half-sentence with names that resemble `name`, or with where to look."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"Did you mean {', '.join(close)}?" if close else "See the list of concepts."


def members(memberships: npt.NDArray[np.float32], limit: int = MAX_SET) -> npt.NDArray[np.int64]:
    """Flat indices of the at most `limit` neurons of highest positive membership; ties by (layer, index)."""
    flat = memberships.ravel()
    order = np.argsort(-flat, kind="stable")[:limit]
    return order[flat[order] > 0]


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
    low, high = LAMBDA_RANGE
    for turn in steering.concepts:
        if turn.concept not in names:
            raise UnknownName(f"There is no concept {turn.concept!r}. {near(turn.concept, names)}")
        if not low <= turn.lam <= high:
            raise RequestError(f"λ must lie between {low:g} and {high:g}; {turn.concept} has {turn.lam:g}.")
    for neuron in steering.neurons:
        _check_neuron(neuron, n_layers, d_mlp)


def factors(steering: Steering, library: Library, n_layers: int, d_mlp: int) -> dict[int, tuple[float, float]]:
    """{flat neuron: (scale, shift)} of a steering; under `control` dealt to random neurons of the same layers."""
    by_name = {concept.name: concept.memberships for concept in library.concepts}
    scale: dict[int, float] = {}
    for turn in steering.concepts:
        if turn.lam == 0:
            continue
        flat = by_name[turn.concept].ravel()
        for neuron in members(by_name[turn.concept]).tolist():
            scale[neuron] = scale.get(neuron, 1.0) + turn.lam * float(flat[neuron])
    result = {neuron: (value, 0.0) for neuron, value in scale.items()}
    for turn_n in steering.neurons:
        flat_index = turn_n.layer * d_mlp + turn_n.index
        old_scale, old_shift = result.get(flat_index, (1.0, 0.0))
        if turn_n.operation == "scale":
            result[flat_index] = (old_scale * turn_n.value, old_shift * turn_n.value)
        elif turn_n.operation == "add":
            result[flat_index] = (old_scale, old_shift + turn_n.value)
        else:
            result[flat_index] = (0.0, turn_n.value)
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
) -> Edits:
    """A checked steering as tensors for one prompt. λ = 0 and no neurons → NO_EDITS, so the run is bit-equal."""
    check_steering(steering, library, n_layers, d_mlp)
    if steering.empty:
        return NO_EDITS
    by_layer: dict[int, list[tuple[int, float, float]]] = {}
    for flat, (scale, shift) in sorted(factors(steering, library, n_layers, d_mlp).items()):
        by_layer.setdefault(flat // d_mlp, []).append((flat % d_mlp, scale, shift))
    layers = {
        layer: LayerEdit(
            torch.tensor([entry[0] for entry in entries], device=device),
            torch.tensor([entry[1] for entry in entries], device=device),
            torch.tensor([entry[2] for entry in entries], device=device),
        )
        for layer, entries in by_layer.items()
    }
    mask, later = where_mask(steering.positions, modality)
    if mask is not None and not later and not bool(mask.any()):
        raise RequestError(f"This question has no {steering.positions} positions to steer at. Choose all positions.")
    return Edits(layers, None if mask is None else mask.to(device), later)
