"""Where a heat map points: its maximum and the thing's box; and the attention that it is compared with."""

import numpy as np
import torch

from engine.attribution.gradient import gradient
from engine.concepts.fuzzy import Memberships
from engine.concepts.membership import Ready
from engine.contract import Floats
from engine.loading import Loaded
from engine.patches import cell_box
from engine.running import embed, with_answer


def concept_map(loaded: Loaded, ready: Ready, memberships: Memberships) -> Floats | None:
    """(rows, cols): h_c(p) = Σ_n μ_c(n) s_n(p) of the probe's own target (METHODS.md §2.6); None without a picture, or
    where image positions are not the grid's cells one by one."""
    grid, at = ready.prompt.grid, ready.prompt.image_positions
    if grid is None or ready.prompt.spread is not None or len(at) != grid.rows * grid.cols:
        return None
    embeddings = embed(loaded, with_answer(ready.prompt, ready.answer_ids), ready.features)
    scored = gradient(loaded, embeddings, ready.answer_ids, ready.target)
    mu = torch.from_numpy(memberships).to(loaded.device)
    heat = sum(scores[at] @ mu[layer] for layer, scores in enumerate(scored.scores))
    assert isinstance(heat, torch.Tensor)
    return np.asarray(heat.reshape(grid.rows, grid.cols).cpu().numpy(), np.float32)


def chance(ready: Ready) -> float:
    """The share of all patches whose centre lies in the thing's box."""
    grid = ready.prompt.grid
    assert grid is not None
    cells = [on_thing(ready, row, column)[0] for row in range(grid.rows) for column in range(grid.cols)]
    return sum(cells) / len(cells)


def points(ready: Ready, heat: Floats) -> bool:
    """Does the centre of the hottest patch lie in the thing's box?"""
    return on_thing(ready, *divmod(int(np.argmax(heat)), heat.shape[1]))[0]


@torch.no_grad()
def last_layer_attention(loaded: Loaded, ready: Ready) -> Floats:
    """(rows, cols): the last layer's mean attention from the position that predicts the answer to the patches, one
    crop's."""
    decoder = loaded.anatomy.decoder
    before = decoder.config._attn_implementation  # type: ignore[union-attr]
    decoder.set_attn_implementation("eager")  # type: ignore[operator]
    try:
        given = embed(loaded, ready.prompt.ids, ready.features).arguments()
        output = loaded.model(**given, use_cache=False, output_attentions=True)
    finally:
        decoder.set_attn_implementation(before)  # type: ignore[operator]
    grid = ready.prompt.grid
    assert grid is not None
    weights = output.attentions[-1][0, :, -1, ready.prompt.image_positions].mean(0)
    result: Floats = weights.reshape(grid.rows, grid.cols).float().cpu().numpy()
    return result


def on_thing(ready: Ready, row: int, column: int) -> tuple[bool, bool]:
    """(inside, overlaps) of one patch and the probe's box."""
    grid, box = ready.prompt.grid, ready.probe.box
    assert grid is not None
    assert box is not None
    left, top, right, bottom = cell_box(grid, row, column)
    x, y = (left + right) / 2, (top + bottom) / 2
    inside = box[0] <= x < box[2] and box[1] <= y < box[3]
    return inside, left < box[2] and right > box[0] and top < box[3] and bottom > box[1]
