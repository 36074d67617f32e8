"""The planted patch: do the pixels under a cell of the patch grid reach the positions that are shown there?

The vision tower's attention is silenced, so that a feature depends on its own patch alone (patch embedding, MLPs,
merging and projector still act, and are local). Then the middles of three cells are overwritten in a picture of noise:
most of the energy of the features' change must lie at positions that bring a part of their score to these cells, and
every cell must have some. A filter that resizes carries little of it across a cell's edge.
"""

from typing import Any

import numpy as np
import torch

from engine.contract import Check, Grid, ModelRefused, Question
from engine.features import picture_features
from engine.hooks import silence
from engine.loading import Loaded
from engine.patches import cell_box
from engine.prompts import Prompt, build_prompt
from engine.queries import former, tower_states

PLANTED = "a planted patch lights its own pixels"
SHAPES = ((300, 300), (480, 160), (160, 480))
LEAST = 0.85


def planted_patches(loaded: Loaded) -> Check:
    shares = [_planted(loaded, width, height) for width, height in SHAPES]
    detail = f"{min(shares):.0%} of the change falls into the planted patches at worst, over {len(shares)} shapes"
    if former(loaded.model) is not None:
        detail += "; seen in the tower's patches: the decoder reads query tokens, shown where they looked"
    return Check(PLANTED, min(shares) >= LEAST, detail)


def towers_attentions(loaded: Loaded) -> list[torch.nn.Module]:
    """The outermost attention modules outside the decoder."""
    inside = {id(module) for module in loaded.anatomy.decoder.modules()}
    found: list[torch.nn.Module] = []
    names: list[str] = []
    for name, module in loaded.model.named_modules():
        last = name.rpartition(".")[2]
        attends = ("attn" in last or "attention" in last) and "norm" not in last and len(list(module.children())) > 0
        if attends and id(module) not in inside and not any(name.startswith(f"{outer}.") for outer in names):
            found.append(module)
            names.append(name)
    return found


def _features(loaded: Loaded, prompt: Prompt) -> torch.Tensor:
    """(positions, width): local features; the tower's own where the decoder reads query tokens."""
    if former(loaded.model) is not None:
        return tower_states(loaded, prompt.pixels)
    return picture_features(loaded, prompt.pixels).features


def _planted(loaded: Loaded, width: int, height: int) -> float:
    """Share of the change's energy that lies at the positions of three planted cells; 0 if one lights nothing."""
    noise = np.random.default_rng(1).integers(64, 192, (height, width, 3), dtype=np.uint8)
    base = build_prompt(loaded, Question(noise, "what is this?"))
    grid = base.grid
    if grid is None:
        raise ModelRefused("The picture has no patch grid.")
    cells = {(0, 0), (grid.rows - 1, grid.cols - 1), (grid.rows // 3, grid.cols // 2)}
    planted = noise.copy()
    for row, column in cells:
        left, top, right, bottom = _inner(cell_box(grid, row, column))
        if left >= width or top >= height or right <= 0 or bottom <= 0:
            raise ModelRefused(f"Patch {row}, {column} of the grid lies outside the picture ({width} × {height}).")
        planted[top:bottom, left:right] = 255 - planted[top:bottom, left:right] // 8
    with silence(towers_attentions(loaded)):
        before = _features(loaded, base)
        after = _features(loaded, build_prompt(loaded, Question(planted, "what is this?")))
    energy = (after.float() - before.float()).pow(2).sum(-1).cpu()
    lit = torch.stack([_at(grid, base.spread, row, column, len(energy)) for row, column in cells])
    if bool(((lit * energy).amax(-1) == 0).any()):
        return 0.0
    return float(energy[lit.any(0)].sum() / energy.sum().clamp(min=1e-12))


def _inner(box: tuple[float, float, float, float]) -> tuple[int, int, int, int]:
    """The cell without a sixth of it at each side, where a resizing filter would carry the change across its edge."""
    left, top, right, bottom = box
    x, y = (right - left) / 6, (bottom - top) / 6
    start = (max(round(left + x), 0), max(round(top + y), 0))
    return (*start, max(round(right - x), start[0] + 1), max(round(bottom - y), start[1] + 1))


def _at(grid: Grid, spread: torch.Tensor | None, row: int, column: int, positions: int) -> Any:
    """(positions,) which positions bring a part of their score to this cell."""
    cell = row * grid.cols + column
    if spread is None:
        return torch.arange(positions) == cell
    return spread[cell] > 1e-3
