"""Which pixels of the original picture each image position stands for, read off the processor and the model.

1. *One crop* (LLaVA 1.x and its like): the image positions are the cells of one grid; see `engine.patches.single_grid`.
2. *A grid that the processor tells* (`image_grid_thw`, the Qwen-VL way): the whole picture, merged patches.
3. *Everything else* — tiles, thumbnails, padding: two flat pictures and a picture of coordinates of the same size go
   through the processor. Where the flat ones agree there is only padding; elsewhere the coordinates say from where in
   the original each tile was cut. Nothing is assumed about how tiles were chosen. A tile's positions are its patches
   row by row; where the model packs several tiles into one picture with newline tokens, its own packing is run on the
   patches' boxes in place of their features.
4. *Query tokens* have no box; the tower's patches are the grid (`engine.queries`).

Several boxes on one display grid: the grid has the finest patches' size and covers all boxes. Position p with box B_p
gives each cell c the share area(B_p ∩ c) / area(B_p) of its score, so a score is neither lost nor counted twice. A
newline token has no pixels; its score is dealt evenly over the boxes of the row it ends. All shares of a position sum
to one: a heat map's sum is the sum over image positions.
"""

import inspect
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from engine.contract import Grid, ModelRefused
from engine.loading import Loaded
from engine.patches import single_grid

Boxes = npt.NDArray[np.float64]
Tiles = tuple[Boxes, tuple[int, int]]
"""(tiles, 4) boxes in pixels of the original, and (height, width) of a tile as the tower gets it."""

Process = Callable[[Image.Image], Any]
"""What the model's processor makes of a picture, in the prompt that is being built."""

_measured: weakref.WeakKeyDictionary[Any, OrderedDict[tuple[int, int], Tiles]] = weakref.WeakKeyDictionary()
_laid: weakref.WeakKeyDictionary[Any, OrderedDict[tuple[int, int, int], tuple[Grid, torch.Tensor | None]]]
_laid = weakref.WeakKeyDictionary()
_MEASURED_LIMIT, _LAID_LIMIT = 64, 8
_MAX_CELLS = 128
"""Rows and columns of a display grid at most; above it, cells hold several patches."""


def layout_of(
    loaded: Loaded, width: int, height: int, pixels: dict[str, Any], positions: int, process: Process
) -> tuple[Grid, torch.Tensor | None]:
    """The display grid of a picture of `width` × `height` and the spread (cells, positions) that brings image positions
    onto it; None where they are its cells, row by row. Raises ModelRefused where they cannot be placed."""
    if "image_grid_thw" in pixels:
        frames, rows, cols = (int(n) for n in pixels["image_grid_thw"][0])
        merge = math.isqrt(frames * rows * cols // max(positions, 1))
        _agree(positions, (rows // merge) * (cols // merge))
        return Grid(rows // merge, cols // merge, (0.0, 0.0, float(width), float(height))), None
    values = pixels.get("pixel_values")
    if not isinstance(values, torch.Tensor) or values.ndim < 4:
        raise ModelRefused("The processor returns its pixels in a form that Sfumato cannot place.")
    side = (int(values.shape[-2]), int(values.shape[-1]))
    if getattr(loaded.model.config, "num_query_tokens", None):
        patch = int(loaded.model.config.vision_config.patch_size)
        return single_grid(loaded.processor.image_processor, width, height, side, patch), None
    tiles = int(np.prod(values.shape[:-3]))
    pack = _packing(loaded)
    if tiles == 1 and pack is None and _known_crop(loaded.processor.image_processor):
        rows, cols = tile_shape(side, positions)
        # `rows` × `cols` fill the crop up to a remainder that is less than a patch.
        patch = side[0] // rows
        grid = single_grid(loaded.processor.image_processor, width, height, side, patch)
        _agree(positions, grid.rows * grid.cols)
        return grid, None
    laid = _laid.setdefault(loaded.processor, OrderedDict())
    key = (width, height, positions)
    if key not in laid:
        laid[key] = _lay(loaded, width, height, pixels, positions, process)
        while len(laid) > _LAID_LIMIT:
            laid.popitem(last=False)
    return laid[key]


def _lay(
    loaded: Loaded, width: int, height: int, pixels: dict[str, Any], positions: int, process: Process
) -> tuple[Grid, torch.Tensor | None]:
    """The third and general way."""
    tiles, pack = int(np.prod(pixels["pixel_values"].shape[:-3])), _packing(loaded)
    boxes, side = measure(loaded.processor, process, width, height, tiles)
    if pack is None:
        patches = np.concatenate([_patches(box, *tile_shape(side, positions // tiles)) for box in boxes])
        if tiles == 1:
            left, top, right, bottom = boxes[0].tolist()
            return Grid(*tile_shape(side, positions), (left, top, right, bottom)), None
    else:
        patches = _packed(loaded, boxes, pixels, side)
    _agree(positions, len(patches))
    return _display(patches)


def _agree(positions: int, patches: int) -> None:
    if positions != patches:
        raise ModelRefused(
            f"The picture gives {positions} image positions but {patches} patches; this model's patch grid is not one "
            "Sfumato can place."
        )


def _known_crop(image_processor: Any) -> bool:
    size = getattr(image_processor, "size", None)
    if size is None or getattr(image_processor, "do_pad", False):
        return False
    get = size.get if hasattr(size, "get") else lambda key: getattr(size, key, None)
    fixed = get("height") and get("width")
    return bool(fixed or (get("shortest_edge") and getattr(image_processor, "do_center_crop", False)))


def tile_shape(side: tuple[int, int], positions: int) -> tuple[int, int]:
    """(rows, cols) of `positions` patches of one shape that fill a tile of `side` (height, width) pixels."""
    height, width = side
    best = min(
        (rows for rows in range(1, positions + 1) if positions % rows == 0),
        key=lambda rows: abs(math.log((height / rows) / (width * rows / positions))),
    )
    if abs(math.log((height / best) / (width * best / positions))) > math.log(1.5):
        rows, cols = (round(math.sqrt(positions * ratio)) for ratio in (height / width, width / height))
        raise ModelRefused(
            f"The picture gives {positions} image positions, not {rows} × {cols}; this model's patch grid is not one "
            "Sfumato can place."
        )
    return best, positions // best


def measure(processor: Any, process: Process, width: int, height: int, tiles: int) -> Tiles:
    """Where each tile was cut from a picture of this size, by processing coordinates. Kept for the last sizes."""
    kept = _measured.setdefault(processor, OrderedDict())
    if (width, height) not in kept:
        kept[width, height] = _measure(process, width, height)
        while len(kept) > _MEASURED_LIMIT:
            kept.popitem(last=False)
    found = kept[width, height]
    if len(found[0]) != tiles:
        raise ModelRefused(f"The processor cuts {tiles} tiles here, and {len(found[0])} from a picture of coordinates.")
    return found


def _measure(process: Process, width: int, height: int) -> Tiles:
    ramp = np.zeros((height, width, 3), dtype=np.uint8)
    ramp[..., 0] = (255 * (np.arange(width) + 0.5) / width).round()
    ramp[..., 1] = (255 * (np.arange(height)[:, None] + 0.5) / height).round()
    pictures = [np.zeros_like(ramp), np.full_like(ramp, 255), ramp]
    black, white, given = (_pixels(process(Image.fromarray(picture))) for picture in pictures)
    span = white - black
    inside = np.abs(span) > 1e-3
    share = np.divide(given - black, span, out=np.zeros_like(given), where=inside)
    across = [_ends(share[t, 0], inside[t, 0], width) for t in range(len(share))]
    down = [_ends(share[t, 1].T, inside[t, 1].T, height) for t in range(len(share))]
    boxes = [(left, top, right, bottom) for (left, right), (top, bottom) in zip(across, down, strict=True)]
    return np.array(boxes), (int(share.shape[-2]), int(share.shape[-1]))


def _pixels(inputs: Any) -> Boxes:
    """(tiles, 3, height, width) of what the tower would get."""
    values = inputs["pixel_values"]
    array: Boxes = values.double().reshape(-1, *values.shape[-3:]).numpy()
    return array


def _ends(share: Boxes, inside: npt.NDArray[np.bool_], length: int) -> tuple[float, float]:
    """Where a tile's first and last pixel's outer edges lie in the original, along its second axis: a straight line
    through the coordinates (pixels near the picture's own edges are left out, where filters bend them). An end within
    half a hundredth of the picture's own edge is that edge: eight bits hold no more."""
    places = np.broadcast_to(np.arange(share.shape[1]) + 0.5, share.shape)[inside]
    coordinates = share[inside] * length
    keep = (coordinates > 0.02 * length) & (coordinates < 0.98 * length)
    if keep.sum() < 2 or np.ptp(places[keep]) == 0:
        keep = np.ones_like(keep)
    if len(coordinates) < 2:
        raise ModelRefused("A tile of the picture holds nothing but padding; its place cannot be found.")
    if np.ptp(places) == 0:  # all of the picture in one pixel's width
        slope, start = float(length), (0.5 - places[0]) * length
    else:
        slope, start = np.polyfit(places[keep], coordinates[keep], 1)
    first, last = (
        next((edge for edge in (0.0, float(length)) if abs(end - edge) < 0.005 * length), float(end))
        for end in (start, start + slope * share.shape[1])
    )
    return (first, last) if last > first else (0.0, float(length))  # a filter left no slope: the tile spans it all


def _patches(box: Boxes, rows: int, cols: int) -> Boxes:
    """(rows · cols, 4): a tile's patches row by row."""
    left, top, right, bottom = box
    x, y = np.linspace(left, right, cols + 1), np.linspace(top, bottom, rows + 1)
    return np.array([(x[c], y[r], x[c + 1], y[r + 1]) for r in range(rows) for c in range(cols)])


def _packing(loaded: Loaded) -> Any:
    """The model's own way to pack several tiles into one picture, or None."""
    inner = getattr(loaded.model, "model", None)
    return getattr(inner, "pack_image_features", None)


def _packed(loaded: Loaded, boxes: Boxes, pixels: dict[str, Any], side: tuple[int, int]) -> Boxes:
    """(positions, 4): the boxes in the order of the model's own packing; NaN for newline tokens."""
    patch = int(loaded.model.config.vision_config.patch_size)
    per_tile = np.stack([_patches(box, side[0] // patch, side[1] // patch) for box in boxes])
    packing = _packing(loaded)
    config = loaded.model.config
    options = {name: getattr(config, name) for name in inspect.signature(packing).parameters if hasattr(config, name)}
    packed = packing(
        [torch.from_numpy(per_tile).float()],
        pixels["image_sizes"],
        image_newline=torch.full((4,), torch.nan),
        **options,
    )
    features = packed[0] if isinstance(packed, tuple) else packed
    whole = torch.cat(list(features)) if isinstance(features, list | tuple) else features
    ordered: Boxes = np.asarray(whole.double().numpy()).reshape(-1, 4)
    return _without_gaps(ordered, per_tile.shape[1])


def _without_gaps(boxes: Boxes, thumbnail: int) -> Boxes:
    """Boxes of packed rows widened to meet, where the packing drew several patches together into one position: such a
    position's box is the mean of theirs. The first `thumbnail` boxes are the whole picture's and stay."""
    ends = [int(position) for position in np.flatnonzero(np.isnan(boxes[:, 0])) if position >= thumbnail]
    if not ends:
        return boxes
    starts = [thumbnail, *(end + 1 for end in ends[:-1])]
    rows = [boxes[start:end] for start, end in zip(starts, ends, strict=True) if end > start]
    if len(rows) < 2 or len(rows[0]) < 2:
        return boxes
    for low, high, gap in ((0, 2, rows[0][1] - rows[0][0]), (1, 3, rows[1][0] - rows[0][0])):
        step = (gap[low] + gap[high]) / 2
        for row in rows:
            centres = (row[:, low] + row[:, high]) / 2
            if step > 1.01 * (row[0, high] - row[0, low]):
                row[:, low], row[:, high] = centres - step / 2, centres + step / 2
    return boxes


def _display(boxes: Boxes) -> tuple[Grid, torch.Tensor]:
    """The display grid over all boxes, and the spread of their scores onto it."""
    real = ~np.isnan(boxes[:, 0])
    left, top = boxes[real][:, :2].min(0)
    right, bottom = boxes[real][:, 2:].max(0)
    sizes = boxes[real][:, 2:] - boxes[real][:, :2]
    cols, rows = (
        int(np.clip(round(length / np.median(_finest(sizes[:, axis]))), 1, _MAX_CELLS))
        for axis, length in enumerate((right - left, bottom - top))
    )
    across = _shares(boxes[real][:, [0, 2]], np.linspace(left, right, cols + 1))
    down = _shares(boxes[real][:, [1, 3]], np.linspace(top, bottom, rows + 1))
    spread = np.zeros((len(boxes), rows * cols))
    spread[real] = (down[:, :, None] * across[:, None, :]).reshape(real.sum(), -1)
    for position in np.flatnonzero(~real):
        start = position
        while start > 0 and boxes[start - 1, 1] == boxes[position - 1, 1]:
            start -= 1
        spread[position] = spread[start:position].mean(0) if start < position else 1 / (rows * cols)
    return Grid(rows, cols, (float(left), float(top), float(right), float(bottom))), torch.from_numpy(spread.T).float()


def _finest(sizes: Boxes) -> Boxes:
    return np.asarray(sizes[sizes <= sizes.min() * 1.25], dtype=np.float64)


def _shares(intervals: Boxes, edges: Boxes) -> Boxes:
    """(intervals, cells): the part of each interval that lies in each cell; rows sum to one."""
    low = np.maximum(intervals[:, :1], edges[None, :-1])
    high = np.minimum(intervals[:, 1:], edges[None, 1:])
    overlap = np.clip(high - low, 0, None)
    return np.asarray(overlap / overlap.sum(1, keepdims=True), dtype=np.float64)
