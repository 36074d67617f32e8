"""The chart of a sweep, as a JSON-ready plotly figure. A test has plotly read it."""

from collections.abc import Sequence
from typing import Any

HOVER = "%{text}<br>%{y:.3f} %{fullData.name}<extra></extra>"


def sweep(
    values: Sequence[float],
    given: Sequence[float | None],
    default: Sequence[float | None],
    labels: Sequence[str],
    current: float | None,
    title: str,
    unit: str,
) -> dict[str, Any]:
    """Two lines over the values of one row: the probability of the answer `given` at each, and of the `default` answer
    there; null where there is none yet. `labels`: a text per value. A dotted line stands at `current`, where there is
    one. The axis gives each value the same width, so that a strip of as many equal cells fits above it. A trace's
    `meta` names its colour."""
    half = (values[1] - values[0]) / 2 if len(values) > 1 else 0.5
    common = {"type": "scatter", "x": list(values), "cliponaxis": False}
    now = [] if current is None else [current, current]
    return {
        "data": [
            {
                **common, "mode": "lines+markers", "meta": "gold", "name": "answer given", "y": list(given),
                "line": {"width": 2.5}, "marker": {"size": 8}, "text": list(labels), "hovertemplate": HOVER,
            },
            {
                **common, "mode": "lines+markers", "meta": "soft", "name": "default answer", "y": list(default),
                "line": {"width": 1.5, "dash": "dash"}, "marker": {"size": 4}, "text": list(labels),
                "hovertemplate": "%{y:.3f} %{fullData.name}<extra></extra>",
            },
            {
                "type": "scatter", "mode": "lines", "meta": "ink", "x": now, "y": [0, 1][: len(now)], "name": "now",
                "line": {"width": 1, "dash": "dot"}, "showlegend": False, "hoverinfo": "skip",
            },
        ],
        "layout": {
            "margin": {"l": 46, "r": 10, "t": 8, "b": 58},
            "hovermode": "x",
            "hoverdistance": -1,
            "legend": {"orientation": "h", "x": 0, "y": -0.27, "yanchor": "top"},
            "xaxis": {
                "title": {"text": title, "standoff": 6}, "range": [values[0] - half, values[-1] + half],
                "tickvals": [value for value in values if value == round(value)], "tickangle": 0, "zeroline": False,
            },
            "yaxis": {"title": {"text": unit}, "range": [0, 1.03], "dtick": 0.25, "zeroline": False},
        },
    }  # fmt: skip
