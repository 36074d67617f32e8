"""From per-position scores to an `Attribution`: sums by modality, ranking, heat maps, concept scores.

All sums are in float32 on scores s (n_layers, pos, d_mlp). Ties in the ranking are broken by (layer, index).
"""

import dataclasses
from collections.abc import Callable, Sequence

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
    `norms` (pos,): see `engine.hooks.Captured`."""

    scores: list[torch.Tensor]
    peaks: torch.Tensor
    value: float
    at: list[int] | None = None
    checks: tuple[Check, ...] = ()
    cancels: bool = False
    norms: torch.Tensor | None = None


def _numpy(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.detach().float().cpu().numpy()
    return array


def rank(scores: torch.Tensor, top: int) -> list[int]:
    """Flat indices of the `top` neurons of largest |score| (n_layers, d_mlp), ties by (layer, index)."""
    magnitude = _numpy(scores.abs().flatten())
    return [int(i) for i in np.argsort(-magnitude, kind="stable")[:top]]


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
    for layer, scores in enumerate(scored.scores):
        require_finite(scores, f"the scores of layer {layer}")
    groups = {kind: [k for k, here in enumerate(kinds) if here == kind] for kind in MODALITIES}
    parts = torch.stack(
        [torch.stack([scores[groups[kind]].sum(0) for kind in MODALITIES], -1) for scores in scored.scores]
    )
    totals = parts.sum(-1)
    magnitude = parts.abs().sum((0, 1)).double()
    positions = torch.zeros(n_layers, len(modality))
    for layer, scores in enumerate(scored.scores):
        positions[layer, at] = scores.sum(-1).float().cpu()
    on_image = groups["image"]
    expected = 0 if grid is None else grid.rows * grid.cols if spread is None else spread.shape[1]
    has_heat = grid is not None and len(on_image) > 0 and len(on_image) == expected
    shape = (grid.rows, grid.cols) if grid is not None else (0, 0)
    image = torch.stack([scores[on_image] for scores in scored.scores]) if has_heat else None
    whole, by_position = float(parts.double().sum()), float(positions.double().sum())
    gap = abs(whole - by_position) / max(float(magnitude.sum()), 1e-30)
    bookkeeping = Check("Σ by modality = Σ by position", gap < 1e-4, f"difference {gap:.0e} of Σ |score|")
    chosen = rank(totals, top)
    onto = None if spread is None or image is None else spread.to(image.device)

    def heat_of(scores: torch.Tensor) -> Floats:
        """(…, image positions) → (…, rows, cols)."""
        cells = scores if onto is None else scores.float() @ onto.T
        return _numpy(cells.reshape(*cells.shape[:-1], *shape))

    neurons = tuple(
        NeuronScore(
            layer=flat // d_mlp,
            index=flat % d_mlp,
            score=float(totals[flat // d_mlp, flat % d_mlp]),
            by_modality=_four(parts[flat // d_mlp, flat % d_mlp].tolist()),
            heat=heat_of(image[flat // d_mlp, :, flat % d_mlp]) if image is not None else None,
            peak=float(scored.peaks[flat // d_mlp, flat % d_mlp]),
        )
        for flat in chosen
    )
    own = own_set(matrix, totals)
    shares = (magnitude / magnitude.sum().clamp(min=1e-300)).tolist()
    return Attribution(
        method=method,
        target=target,
        value=scored.value,
        grid=grid,
        heat=heat_of(image.sum((0, 2)) * (0 if scored.cancels else 1)) if image is not None else None,
        neurons=neurons,
        concepts=_concepts(matrix, own, totals, image, heat_of),
        scores=_numpy(totals),
        layer_sums=_numpy(parts.sum(1)),
        positions=_numpy(positions),
        modality_of_position=tuple(modality),
        evidence_heat=heat_of((image * own[:, None]).sum((0, 2))) if image is not None else None,
        modality_shares=_four(shares),
        checks=(bookkeeping, *scored.checks),
    )


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
    heat_of: Callable[[torch.Tensor], Floats],
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
    heats = heat_of(mu @ image.permute(0, 2, 1).reshape(mu.shape[1], -1)) if image is not None else None
    entries = [
        ConceptScore(name, scores[k], heats[k] if heats is not None else None, alike[k])
        for k, name in enumerate(matrix.names)
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.similarity, entry.concept)))
