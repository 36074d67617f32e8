"""Image positions ↔ patches ↔ pixels of the original picture.

The image processor may resize, crop and pad before it cuts patches. This file follows those steps backwards, so that
row r, column c of the patch grid is a known box of pixels in the picture a person looks at. Nothing is assumed about
the grid: it is read off the processor's own output and checked at load by `engine.selfcheck` with planted patches.
"""

import math
from typing import Any

from engine.contract import Grid, ModelRefused, PictureTooSmall

MIN_SIDE = 8
"""A picture with a shorter side below this is refused: enlarged to the model's size it is a few flat colours, and an
answer about it would be an answer about nothing."""


def check_size(width: int, height: int) -> None:
    """Raise PictureTooSmall for a picture that holds nothing to look at."""
    if min(width, height) < MIN_SIDE:
        raise PictureTooSmall(
            f"The picture is {width} × {height} pixels; the shorter side must have at least {MIN_SIDE}. "
            "Use a larger picture."
        )


def _size(value: Any) -> tuple[int | None, int | None, int | None]:
    """(height, width, shortest edge) of a processor's size entry."""
    get = value.get if hasattr(value, "get") else lambda key: getattr(value, key, None)
    return get("height"), get("width"), get("shortest_edge")


def single_grid(image_processor: Any, width: int, height: int, pixels: tuple[int, int], patch_size: int) -> Grid:
    """The grid of a processor that makes one square or rectangular crop of the picture (the LLaVA 1.x family).

    `pixels` = (height, width) of the tensor that the processor returned for this picture.
    """
    out_height, out_width = pixels
    rows, cols = out_height // patch_size, out_width // patch_size
    resized_height, resized_width = height, width
    if getattr(image_processor, "do_resize", False):
        fixed_height, fixed_width, shortest = _size(image_processor.size)
        if fixed_height and fixed_width:
            resized_height, resized_width = int(fixed_height), int(fixed_width)
        elif shortest:
            short, long = sorted((height, width))
            new_long = int(shortest * long / short)
            resized_height, resized_width = (shortest, new_long) if height <= width else (new_long, shortest)
        else:
            raise ModelRefused(f"The image processor resizes in a way that is not known: {image_processor.size}.")
    top = left = 0.0
    if getattr(image_processor, "do_center_crop", False):
        # Centre crops round down; where the picture is smaller than the crop it is padded, and the offset is negative.
        top = math.floor((resized_height - out_height) / 2)
        left = math.floor((resized_width - out_width) / 2)
    elif (resized_height, resized_width) != (out_height, out_width):
        raise ModelRefused(
            f"The image processor should return {resized_height} × {resized_width} pixels but returned "
            f"{out_height} × {out_width}."
        )
    scale_y, scale_x = height / resized_height, width / resized_width
    box = (
        left * scale_x,
        top * scale_y,
        (left + cols * patch_size) * scale_x,
        (top + rows * patch_size) * scale_y,
    )
    return Grid(rows, cols, box)


def cell_box(grid: Grid, row: int, column: int) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of one patch in pixels of the original picture."""
    left, top, right, bottom = grid.box
    width, height = (right - left) / grid.cols, (bottom - top) / grid.rows
    return (left + column * width, top + row * height, left + (column + 1) * width, top + (row + 1) * height)


def cell_at(grid: Grid, x: float, y: float) -> tuple[int, int] | None:
    """(row, column) of the patch under pixel (x, y), or None outside the grid."""
    left, top, right, bottom = grid.box
    if not (left <= x < right and top <= y < bottom):
        return None
    return int((y - top) * grid.rows / (bottom - top)), int((x - left) * grid.cols / (right - left))
