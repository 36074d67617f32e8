"""The curve of an SAE's training, as a JSON-ready plotly figure. A test has plotly read it."""

from collections.abc import Sequence
from typing import Any

LOWEST, HIGHEST = -0.5, 2.0
"""Of the left axis: what is beyond, as in the first steps, is drawn at its edge."""


def curve(points: Sequence[Sequence[float]], steps: int) -> dict[str, Any]:
    """`points` = (step, loss, explained variance, L0, dead share). Shares and the loss on the left axis, L0 on the
    right one; the steps that are still to come have their room. A trace's `meta` names its colour."""
    _, loss, explained, l0, dead = zip(*points, strict=True) if points else ((),) * 5
    low = max(LOWEST, min((0.0, *explained)))
    high = min(HIGHEST, max((1.0, *loss)))
    line = {"type": "scatter", "mode": "lines", "x": [int(point[0]) for point in points]}

    def drawn(values: Sequence[float], digits: int = 4) -> list[float]:
        return [round(value, digits) for value in values]

    def inside(values: Sequence[float]) -> list[float]:
        return drawn([min(max(value, low), high) for value in values])

    return {
        "data": [
            {**line, "meta": "for", "name": "explained variance", "y": inside(explained), "line": {"width": 2.5},
             "customdata": drawn(explained), "hovertemplate": "explains %{customdata:.1%}<extra></extra>"},
            {**line, "meta": "against", "name": "loss", "y": inside(loss), "line": {"width": 1.5, "dash": "dash"},
             "customdata": drawn(loss), "hovertemplate": "loss %{customdata:.3f}<extra></extra>"},
            {**line, "meta": "soft", "name": "dead share", "y": inside(dead), "line": {"width": 1.5, "dash": "dot"},
             "hovertemplate": "dead %{y:.1%}<extra></extra>"},
            {**line, "meta": "gold", "name": "L0 (right)", "y": drawn(l0, 2), "yaxis": "y2", "line": {"width": 1.5},
             "hovertemplate": "L0 %{y:.1f}<extra></extra>"},
        ],
        "layout": {
            "margin": {"l": 46, "r": 46, "t": 8, "b": 62},
            "hovermode": "x",
            "legend": {"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top"},
            "xaxis": {"title": {"text": "step", "standoff": 6}, "range": [0, steps], "zeroline": False, "tickangle": 0,
                      "nticks": 6},
            "yaxis": {"range": [round(low - 0.03, 3), round(high + 0.03, 3)], "zeroline": False},
            "yaxis2": {"overlaying": "y", "side": "right", "showgrid": False, "zeroline": False, "fixedrange": True,
                       "tickmode": "auto", "nticks": 6,
                       "range": [0, round(1.1 * max((1.0, *l0)), 3)]},
        },
    }  # fmt: skip
