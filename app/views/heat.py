"""The picture with its heat map: patches as rectangles in pixels of the original picture."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app import formats, steerings
from app.arrays import Floats
from app.contexts import Choice, HeatCell, PictureView
from app.tables import Picture
from app.views.load import Loaded
from engine.contract import MAPPED, METHODS

CONCEPTS_AT_HAND = 4
EVIDENCE = "what carried it"
"""What the heat map of the target's own fuzzy set is called on the page."""
NO_MAP = {
    method: f"The {method} method scores only positions that predict the answer: it has no heat map of the picture. "
    "Choose gradient to see one."
    for method in METHODS
    if method not in MAPPED
} | {
    "ablation": "Ablation measures a neuron at all image positions together: it has no heat map of the picture. "
    "Choose gradient to see one."
}


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


def view(loaded: Loaded) -> PictureView:
    picture = loaded.picture
    if picture is None:
        return PictureView("", 0, 0, "", False, "", "", "", (), (), ())
    heat, shown, caption = _chosen(loaded)
    largest = float(np.abs(heat).max()) if heat is not None else 0.0
    grid = loaded.attribution.summary["grid"] if loaded.attribution and loaded.attribution.summary else None
    if heat is not None and grid is not None:
        caption += _strongest(heat)
    return PictureView(
        src=picture_src(picture.hash),
        width=picture.width,
        height=picture.height,
        alt=f"The picture asked about: {loaded.run.question}",
        waiting=loaded.waiting and loaded.state.heat != "off",
        shown=shown,
        caption=caption,
        scale=formats.plain(largest) if largest else "",
        cells=cells(heat, grid, (picture.width, picture.height), largest),
        choices=_choices(loaded),
        notes=_notes(picture),
    )


def _notes(picture: Picture) -> tuple[str, ...]:
    return tuple(picture.notes)


def _chosen(loaded: Loaded) -> tuple[Floats | None, str, str]:
    """(heat map or None, what it shows, the caption's beginning)."""
    heat, row = loaded.heat, loaded.attribution
    if heat == "off":
        return None, "off", "The heat map is off."
    if row is not None and row.state == "failed":
        return None, heat, row.error
    if row is None or row.summary is None:
        return None, heat, "" if loaded.waiting else "There is no heat map for this answer."
    if "heat" not in loaded.arrays:
        return None, heat, NO_MAP.get(row.method, "This method draws no heat map.")
    target = f"to “{loaded.target_text}”"
    kind, _, name = heat.partition(":")
    if kind == "concept":
        return _of_concept(loaded, row.summary, name, target)
    if kind == "neuron":
        layer, index = steerings.neuron(name)
        rank = next((n.rank for n in loaded.neurons if (n.layer, n.index) == (layer, index)), None)
        if rank is None:
            ranked = len(loaded.neurons)
            return None, name, f"{name} is not among the {ranked} neurons that carried this answer most."
        return loaded.arrays["neuron_heats"][rank - 1], name, f"Contribution of {name} {target}."
    if heat == "all":
        count = formats.thousands(loaded.model["n_layers"] * loaded.model["d_mlp"])
        return loaded.arrays["heat"], "all neurons", f"Net contribution of all {count} neurons together {target}."
    words = f"The neurons that carried “{loaded.target_text}”, each by its degree."
    return loaded.arrays.get("evidence_heat"), EVIDENCE, words


def _of_concept(loaded: Loaded, summary: Mapping[str, Any], name: str, target: str) -> tuple[Floats | None, str, str]:
    order = [concept for concept, *_ in summary["concepts"]]
    fact = loaded.concepts.get(name)
    if fact is None or name not in order:
        return None, name, f"This attribution was made with an earlier concept library, which has no {name}."
    # A heat map sums over every member; a steering turns MAX_SET of them at most.
    words = f"Contribution of {name} ({formats.thousands(fact.members)} neurons) {target}."
    return loaded.arrays["concept_heats"][order.index(name)], name, words


def _strongest(heat: Floats) -> str:
    row, column = np.unravel_index(int(np.abs(heat).argmax()), heat.shape)
    value = formats.signed(float(heat[row, column]))
    return f" Strongest patch: row {row + 1}, column {column + 1} ({value})."


def _choices(loaded: Loaded) -> tuple[Choice, ...]:
    state, shown = loaded.state, loaded.state.heat
    offered = [(EVIDENCE, "")]
    if loaded.attribution is not None and loaded.attribution.summary:
        leading = [name for name, *_ in loaded.attribution.summary["concepts"] if name in loaded.concepts]
        offered += [(name, f"concept:{name}") for name in leading[:CONCEPTS_AT_HAND]]
    offered += [("all neurons", "all"), ("off", "off")]
    if shown not in (value for _, value in offered):
        offered.insert(1, (shown.partition(":")[2], shown))
    return tuple(Choice(label, state.url(loaded.run.id, heat=value), shown == value, value) for label, value in offered)
