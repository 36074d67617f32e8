"""The picture with its heat map: patches as rectangles in pixels of the original picture."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from app import formats
from app.arrays import Floats
from app.contexts import HeatCell, PictureView
from app.views import heat_choice, strip
from app.views.load import Loaded

EVIDENCE = heat_choice.EVIDENCE


def picture_src(picture_hash: str | None) -> str:
    return f"/pictures/{picture_hash}.png" if picture_hash else ""


def cells(
    heat: Floats | None, grid: Sequence[Any] | None, size: tuple[int, int], largest: float
) -> tuple[HeatCell, ...]:
    """`heat` (rows, cols) over `grid` = (rows, cols, (left, top, right, bottom)), each patch clipped to the picture of
    `size` (width, height); patches outside it are left out."""
    if heat is None or grid is None:
        return ()
    rows, cols, (left, top, right, bottom) = grid
    width, height = (right - left) / cols, (bottom - top) / rows
    made = []
    for row in range(rows):
        upper, lower = max(0.0, top + row * height), min(float(size[1]), top + (row + 1) * height)
        for column in range(cols):
            near, far = max(0.0, left + column * width), min(float(size[0]), left + (column + 1) * width)
            if near >= far or upper >= lower:
                continue
            value = float(heat[row, column])
            made.append(
                HeatCell(
                    round(near, 2), round(upper, 2), round(far - near, 2), round(lower - upper, 2),
                    round(min(1.0, abs(value) / largest), 4) if largest and math.isfinite(value) else 0.0,
                    formats.polarity(value), formats.signed(value), row + 1, column + 1,
                )
            )  # fmt: skip
    return tuple(made)


def chosen(loaded: Loaded) -> tuple[Floats | None, str, str]:
    """(heat map, None where there is none; what it shows; the caption's beginning) of a state."""
    found = heat_choice.found(loaded)
    return found.heat, found.shown, found.caption


def view(loaded: Loaded) -> PictureView:
    picture, text = loaded.picture, strip.view(loaded)
    if picture is None:
        return PictureView("", 0, 0, "", False, "", "", "", (), (), (), text)
    found = heat_choice.found(loaded)
    largest = float(np.abs(found.heat).max()) if found.heat is not None else 0.0
    caption = found.caption
    if found.heat is not None and found.grid is not None:
        caption += _strongest(found.heat, found.unit) + found.after
    return PictureView(
        src=picture_src(picture.hash),
        width=picture.width,
        height=picture.height,
        alt=f"The picture asked about: {loaded.run.question}",
        waiting=found.waiting,
        shown=found.shown,
        caption=caption,
        scale=formats.plain(largest) if largest else "",
        cells=cells(found.heat, found.grid, (picture.width, picture.height), largest),
        choices=heat_choice.choices(loaded),
        notes=tuple(picture.notes),
        strip=text,
        ends=found.ends,
        layers=heat_choice.layers(loaded),
        hidden=loaded.state.but(heat="").pairs(),
        switch=heat_choice.switch(loaded),
        retry=f"/runs/{loaded.run.id}/measurements" if found.failed else "",
        retry_fields=(("kind", "input"), *loaded.state.pairs()) if found.failed else (),
        fires=f"/runs/{loaded.run.id}/fires",
    )


def _strongest(heat: Floats, unit: str) -> str:
    row, column = np.unravel_index(int(np.abs(heat).argmax()), heat.shape)
    value = formats.signed(float(heat[row, column]))
    return f" Strongest patch: row {row + 1}, column {column + 1} ({value}{unit})."
