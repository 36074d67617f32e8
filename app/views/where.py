"""Where it happened: layers × positions, as a figure and as a table."""

import numpy as np

from app import figures, formats
from app.contexts import WhereView
from app.views.load import Loaded
from engine.contract import MODALITIES

COLUMNS = ("layer", *MODALITIES, "sum")


def view(loaded: Loaded) -> WhereView:
    row = loaded.attribution
    if row is None or row.summary is None or "positions" not in loaded.arrays:
        return WhereView(loaded.waiting, {}, "", COLUMNS, ())
    positions, sums = loaded.arrays["positions"], loaded.arrays["layer_sums"]
    groups = [(name, count) for name, count in row.summary["modalities"]]
    labels = _labels(loaded, positions.shape[1])
    layer, position = np.unravel_index(int(np.abs(np.nan_to_num(positions)).argmax()), positions.shape)
    order = " → ".join(dict.fromkeys(name for name, _ in groups))
    return WhereView(
        waiting=False,
        figure=figures.layers_by_position(positions, groups, labels),
        caption=(
            f"{order}, layer 0 at the bottom. Strongest: layer {layer} at {labels[position]} "
            f"({formats.signed(float(positions[layer, position]))}). "
            f"Sum of all contributions {formats.signed(float(positions.sum(dtype=np.float64)))}."
        ),
        columns=COLUMNS,
        rows=tuple(
            (str(number), *(formats.signed(float(part)) for part in parts), formats.signed(float(parts.sum())))
            for number, parts in reversed(list(enumerate(sums)))
        ),
    )


def _labels(loaded: Loaded, count: int) -> list[str]:
    """One text for each absolute position of prompt + answer."""
    answer = loaded.run.answer or {"prompt": [], "tokens": []}
    grid = loaded.attribution.summary["grid"] if loaded.attribution and loaded.attribution.summary else None
    labels = []
    patch = 0
    for text, _, modality, repeated in answer["prompt"]:
        for _ in range(repeated):
            if modality == "image" and grid and patch < grid[0] * grid[1]:
                labels.append(f"patch row {patch // grid[1] + 1}, column {patch % grid[1] + 1}")
                patch += 1
            else:
                labels.append(f"{modality} “{text.strip()}”")
    labels += [f"answer “{token['text'].strip()}”" for token in answer["tokens"]]
    return [*labels, *("" for _ in range(count - len(labels)))][:count]
