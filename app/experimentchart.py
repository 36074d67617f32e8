"""The charts of an experiment with latents, as JSON-ready plotly figures. A test has plotly read them."""

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = {"influence": "for", "activation": "against", "bottom": "soft", "random": "gold"}
"""A trace's `meta` names its colour."""
DASHES = {"influence": "solid", "activation": "dash", "bottom": "dot", "random": "dashdot"}
Ends = tuple[float, float, float]
SYMBOLS = {"influence": "circle", "activation": "square", "bottom": "diamond", "random": "x"}


def by_size(
    sizes: Sequence[str],
    series: Mapping[str, Sequence[tuple[float, float, float]]],
    names: Mapping[str, str],
    what: str,
) -> dict[str, Any]:
    """A line for each method over the K of `sizes`: (share, low, high) in [0, 1] at each, drawn in percent with its
    interval. `names`: the methods in words; `what`: the axis in words."""
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines+markers", "meta": COLOURS[method], "name": names[method],
                "x": list(sizes), "y": [_percent(value) for value, _, _ in points], "cliponaxis": False,
                "line": {"width": 2, "dash": DASHES[method]}, "marker": {"size": 8, "symbol": SYMBOLS[method]},
                "error_y": {
                    "type": "data", "symmetric": False, "thickness": 1, "width": 4,
                    "array": [_percent(max(high - value, 0.0)) for value, _, high in points],
                    "arrayminus": [_percent(max(value - low, 0.0)) for value, low, _ in points],
                },
                "hovertemplate": f"K = %{{x}}: %{{y:.1f}} % {names[method]}<extra></extra>",
            }
            for method, points in series.items()
        ],
        "layout": {
            "margin": {"l": 46, "r": 12, "t": 10, "b": 66},
            "legend": {"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top"},
            "xaxis": {"type": "category", "title": {"text": "K", "standoff": 4}, "tickangle": 0, "zeroline": False},
            "yaxis": {"title": {"text": what}, "range": [-2, 103], "dtick": 25, "zeroline": False},
        },
    }  # fmt: skip


def _percent(value: float) -> float:
    return round(100 * value, 2)
