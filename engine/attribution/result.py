"""From per-position scores to an `Attribution`: sums by modality, ranking, heat maps, concept scores.

All heat maps go through one `PatchMap` from image positions to the cells of the patch grid. Scores are *dealt*: each
position's score is shared out over the cells of its patch, so a map's sum is the sum over image positions. Activations
are *averaged*: a cell shows the mean of the positions that share it, so a map never exceeds the largest activation.

All sums are in float32 on scores s (n_layers, pos, d_mlp). Ties in the ranking are broken by (layer, index).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from engine.concepts.fuzzy import MAPS, evidence_share
from engine.concepts.library import PHI, QUANTILE, MembershipMatrix
from engine.contract import MODALITIES, Attribution, Check, ConceptScore, Floats, Grid, NeuronScore, Target
from engine.hooks import require_finite


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a method returns: one (pos, d_mlp) score tensor a layer over the whole sequence or, with `at`, over those
    absolute positions only; `peaks` (n_layers, d_mlp) activation of largest magnitude; `value` = the target S.
    `cancels`: a layer's scores sum to zero at each position by construction: sums over all neurons are noise.
    `norms` (pos,): see `engine.hooks.Captured`. `activations`: one (pos, d_mlp) tensor a layer over the whole sequence
    (of a contrast the first side's: image positions precede all answers), None where only some positions were read."""

    scores: list[torch.Tensor]
    peaks: torch.Tensor
    value: float
    at: list[int] | None = None
    checks: tuple[Check, ...] = ()
    cancels: bool = False
    norms: torch.Tensor | None = None
    activations: list[torch.Tensor] | None = None


def _numpy(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.detach().float().cpu().numpy()
    return array


@dataclasses.dataclass(frozen=True)
class PatchMap:
    """Image positions onto the cells of `grid`. `at`: the absolute image positions; `spread` (cells, image positions),
    see `engine.layout`, None = the positions are the cells, row by row."""

    grid: Grid
    at: list[int]
    spread: torch.Tensor | None

    @classmethod
    def of(cls, grid: Grid | None, modality: Sequence[str], spread: torch.Tensor | None) -> "PatchMap | None":
        """None without a picture, or where its positions are not those that the grid expects."""
        at = [p for p, kind in enumerate(modality) if kind == "image"]
        expected = 0 if grid is None else grid.rows * grid.cols if spread is None else spread.shape[1]
        return None if grid is None or not at or len(at) != expected else cls(grid, at, spread)

    def dealt(self, values: torch.Tensor) -> Floats:
        """(…, image positions) → (…, rows, cols); sums are kept."""
        return self._cells(values if self.spread is None else values.float() @ self.spread.to(values.device).T)

    def averaged(self, values: torch.Tensor) -> Floats:
        """(…, image positions) → (…, rows, cols); a cell that no position reaches is 0."""
        if self.spread is None:
            return self._cells(values)
        weights = self.spread.to(values.device)
        return self._cells(values.float() @ (weights / weights.sum(1, keepdim=True).clamp(min=1e-12)).T)

    def _cells(self, cells: torch.Tensor) -> Floats:
        return _numpy(cells.reshape(*cells.shape[:-1], self.grid.rows, self.grid.cols))


def rank(scores: torch.Tensor, top: int) -> list[int]:
    """Flat indices of the `top` neurons of largest |score| (n_layers, d_mlp), ties by (layer, index)."""
    magnitude = _numpy(scores.abs().flatten())
    return [int(i) for i in np.argsort(-magnitude, kind="stable")[:top]]


def _rows(at: list[int]) -> list[int] | slice:
    """The same rows, as a slice where they follow each other: a view instead of a copy."""
    return slice(at[0], at[-1] + 1) if at and at == list(range(at[0], at[-1] + 1)) else at


def build(
    method: str,
    target: Target,
    scored: Scored,
    modality: Sequence[str],
    grid: Grid | None,
    matrix: MembershipMatrix | None,
    top: int,
    spread: torch.Tensor | None = None,
) -> Attribution:
    """Assemble the result for one row. `modality` names every absolute position of prompt + answer; `spread` (cells,
    image positions) brings image positions onto the grid's cells (see `engine.patches`), None = they are its cells."""
    n_layers, d_mlp = len(scored.scores), scored.scores[0].shape[-1]
    at = scored.at if scored.at is not None else list(range(len(modality)))
    kinds = [modality[p] for p in at]
    by_position = [scores.sum(-1) for scores in scored.scores]
    for layer, along in enumerate(by_position):
        if not bool(torch.isfinite(along).all()):  # sums of finite numbers, but for an overflow
            require_finite(scored.scores[layer], f"the scores of layer {layer}")
    groups = {kind: _rows([k for k, here in enumerate(kinds) if here == kind]) for kind in MODALITIES}
    parts = torch.stack(
        [torch.stack([scores[groups[kind]].sum(0) for kind in MODALITIES], -1) for scores in scored.scores]
    )
    totals = parts.sum(-1)
    magnitude = parts.abs().sum((0, 1)).double()
    positions = torch.zeros(n_layers, len(modality))
    for layer, along in enumerate(by_position):
        positions[layer, at] = along.float().cpu()
    patches = PatchMap.of(grid, modality, spread)
    mapped = patches if scored.at is None else None
    image = torch.stack([scores[_rows(mapped.at)] for scores in scored.scores]) if mapped else None
    layer_heats = mapped.dealt(positions[:, mapped.at] * (0 if scored.cancels else 1)) if mapped else None
    gap = abs(float(parts.double().sum()) - float(positions.double().sum())) / max(float(magnitude.sum()), 1e-30)
    bookkeeping = Check("Σ by modality = Σ by position", gap < 1e-4, f"difference {gap:.0e} of Σ |score|")
    chosen = rank(totals, top)
    layers, indices = [flat // d_mlp for flat in chosen], [flat % d_mlp for flat in chosen]
    heats = mapped.dealt(image[layers, :, indices]) if mapped and image is not None else None
    seen = _activations(scored.activations, patches, layers, indices)
    split, sums, peaks = (table[layers, indices].tolist() for table in (parts, totals, scored.peaks))
    neurons = tuple(
        NeuronScore(
            layer=layers[k],
            index=indices[k],
            score=sums[k],
            by_modality=_four(split[k]),
            heat=heats[k] if heats is not None else None,
            peak=peaks[k],
            activation=seen[k] if seen is not None else None,
        )
        for k in range(len(chosen))
    )
    own = own_set(matrix, totals)
    shares = (magnitude / magnitude.sum().clamp(min=1e-300)).tolist()
    return Attribution(
        method=method,
        target=target,
        value=scored.value,
        grid=grid,
        heat=layer_heats.sum(0) if layer_heats is not None else None,
        neurons=neurons,
        concepts=_concepts(matrix, own, totals, image, mapped),
        scores=_numpy(totals),
        layer_sums=_numpy(parts.sum(1)),
        positions=_numpy(positions),
        modality_of_position=tuple(modality),
        evidence_heat=mapped.dealt((image * own[:, None]).sum((0, 2))) if mapped and image is not None else None,
        modality_shares=_four(shares),
        checks=(bookkeeping, *scored.checks),
        layer_heats=layer_heats,
    )


def _activations(
    activations: list[torch.Tensor] | None, patches: PatchMap | None, layers: list[int], indices: list[int]
) -> Floats | None:
    """(neurons, rows, cols): the activations of these neurons on the patches; gathered a layer at a time."""
    if activations is None or patches is None:
        return None
    gathered = torch.empty(len(layers), len(patches.at))
    for layer in set(layers):
        rows = [k for k, here in enumerate(layers) if here == layer]
        columns = [indices[k] for k in rows]
        gathered[rows] = activations[layer][:, columns][patches.at].T.float().cpu()
    return patches.averaged(gathered)


def _four(values: list[float]) -> tuple[float, float, float, float]:
    image, question, template, answer = values
    return image, question, template, answer


def own_set(matrix: MembershipMatrix | None, totals: torch.Tensor) -> torch.Tensor:
    """(n_layers, d_mlp): the target's own fuzzy set φ(ŝ), made of its evidence shares by the library's map."""
    phi, quantile = (matrix.phi, matrix.quantile) if matrix is not None else (PHI, QUANTILE)
    return torch.from_numpy(MAPS[phi](evidence_share(_numpy(totals)), quantile)).to(totals.device)


def _concepts(
    matrix: MembershipMatrix | None,
    own: torch.Tensor,
    totals: torch.Tensor,
    image: torch.Tensor | None,
    mapped: PatchMap | None,
) -> tuple[ConceptScore, ...]:
    """score_c = Σ_n μ_c(n) s(n); heat_c(p) = Σ_n μ_c(n) s_n(p) on image positions (METHODS.md §2.6); similarity of
    μ_c to the target's own fuzzy set φ(ŝ), by which the concepts are ordered: unlike the score it does not favour
    concepts with many members, nor fade when the answer is certain and all its scores are small."""
    if matrix is None or not matrix.names:
        return ()
    mu = matrix.values
    scores = (mu @ totals.flatten()).tolist()
    both = torch.minimum(mu, own.flatten()).sum(-1)  # as fuzzy.similarities, on the scores' own device
    either = matrix.cardinalities + own.sum() - both
    alike = (both / either.clamp(min=1e-30)).tolist()
    heats = mapped.dealt(mu @ image.permute(0, 2, 1).reshape(mu.shape[1], -1)) if mapped and image is not None else None
    entries = [
        ConceptScore(name, scores[k], heats[k] if heats is not None else None, alike[k])
        for k, name in enumerate(matrix.names)
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.similarity, entry.concept)))
