"""The cloud of a run's latents, as a JSON-ready plotly figure. A test has plotly read it."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

DRAWN = 1000
"""Latents that are drawn at most."""
DECADES = 5
"""Below the largest influence at most. What is less, or zero, stands on the lowest line."""
FEW = 1.7
"""Decades below which an axis has more ticks than one a decade."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Floats = npt.NDArray[np.float32]


def heights(influence: Floats) -> tuple[Floats, float]:
    """(where each latent stands, the lowest line): those with next to no influence on the lowest line, clear of all
    others; without any, the lowest line is that of the least."""
    largest = float(influence.max(initial=0.0))
    if largest <= 0:
        return np.ones_like(influence), 1.0
    own = influence >= largest / 10**DECADES
    floor = float(influence[own].min()) / (1 if own.all() else 3)
    return np.where(own, influence, np.float32(floor)).astype(np.float32), floor


def shown(influence: Floats, always: int) -> npt.NDArray[np.int64]:
    """Places of the latents that are drawn: the `always` most influential, and of the others every k-th."""
    order = np.argsort(-influence, kind="stable")
    if len(order) <= DRAWN:
        return order
    rest = order[always:]
    step = math.ceil(len(rest) / max(1, DRAWN - always))
    return np.concatenate([order[:always], rest[::step]])


def cloud(
    influence: Floats, activation: Floats, names: list[str], bounds: tuple[float, float], chosen: int | None, unit: str
) -> dict[str, Any]:
    """A point for each latent: mean activation to the right, influence upwards, both logarithmic. `bounds` = the
    (influence, mean activation) from which on a latent counts among the first tenth; `chosen`: the place of the one
    that is drawn over the picture. A trace's `meta` names its colour."""
    x, (y, floor) = np.maximum(activation, 1e-12), heights(influence)
    left, right = (math.log10(float(edge)) for edge in (x.min(initial=1.0), x.max(initial=1e-12)))
    low, high = math.log10(floor), math.log10(float(y.max(initial=floor)))
    pad, up = 0.06 * max(1.0, right - left), 0.07 * max(1.0, high - low)
    hover = "%{text}<br>influence %{y:.2g} · mean activation %{x:.2g}<extra></extra>"
    line = {
        "type": "scatter", "mode": "lines", "meta": "soft", "line": {"width": 1, "dash": "dot"}, "hoverinfo": "skip",
        "showlegend": False,
    }  # fmt: skip
    first = [chosen] if chosen is not None else []
    return {
        "data": [
            {**line, "x": [10 ** (left - pad), 10 ** (right + pad)], "y": [_round(max(bounds[0], floor))] * 2},
            {**line, "x": [_round(bounds[1])] * 2, "y": [10 ** (low - up), 10 ** (high + up)]},
            {
                "type": "scatter", "mode": "markers", "meta": "for", "name": "latents", "showlegend": False,
                "x": [_round(value) for value in x.tolist()], "y": [_round(value) for value in y.tolist()],
                "text": names, "marker": {"size": 6, "opacity": 0.55}, "hovertemplate": hover,
            },
            {
                "type": "scatter", "mode": "markers", "meta": "gold", "name": "drawn", "showlegend": False,
                "x": [_round(float(x[k])) for k in first], "y": [_round(float(y[k])) for k in first],
                "text": [names[k] for k in first], "marker": {"size": 11, "symbol": "diamond"}, "hovertemplate": hover,
            },
        ],
        "layout": {
            "margin": {"l": 58, "r": 8, "t": 8, "b": 40},
            "annotations": [
                _word("fires little, matters", 0.01, 0.99, "left", "top"),
                _word("fires, matters little", 0.99, 0.07, "right", "bottom"),
            ],
            "xaxis": {
                "type": "log", "title": {"text": "mean activation"}, "range": [left - pad, right + pad],
                "zeroline": False, "tickangle": 0, **_ticks(left, right),
            },
            "yaxis": {
                "type": "log", "title": {"text": f"influence{unit}"}, "range": [low - up, high + up], "zeroline": False,
                **_ticks(low, high),
            },
        },
    }  # fmt: skip


def history(names: list[str], influence: list[float], activation: list[float], unit: str) -> dict[str, Any]:
    """Influence in `unit` (left) and mean activation (right) over runs, oldest first; `names` on hovering."""
    series = (("for", "influence", influence, "y", "circle"), ("soft", "mean activation", activation, "y2", "diamond"))
    count = list(range(1, len(names) + 1))
    axis = {"rangemode": "tozero", "zeroline": False, "nticks": 5}
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines+markers", "meta": meta, "name": name, "yaxis": on, "x": count,
                "y": [_round(value) for value in values], "text": names, "marker": {"size": 7, "symbol": symbol},
                "line": {"width": 1.5}, "hovertemplate": f"%{{text}}<br>{name} %{{y:.3g}}<extra></extra>",
            }
            for meta, name, values, on, symbol in series
        ],
        "layout": {
            "margin": {"l": 58, "r": 52, "t": 28, "b": 36},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "xaxis": {
                "title": {"text": "run, newest last"}, "tickvals": count, "zeroline": False, "tickangle": 0,
                "range": [0.7, len(names) + 0.3],
            },
            "yaxis": {"title": {"text": f"influence {unit}".rstrip()}, **axis},
            "yaxis2": {
                "title": {"text": "mean activation"}, "overlaying": "y", "side": "right", "showgrid": False, **axis,
            },
        },
    }  # fmt: skip


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks between two powers of ten. (Plotly would raise its exponents with a style of its own, which the content
    security policy refuses.)"""
    steps = (1, 2, 5) if high - low < FEW else (1,)
    values = [(step, power) for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    within = [(step, power) for step, power in values if low - 0.05 <= math.log10(step) + power <= high + 0.05]
    return {
        "tickvals": [step * 10.0**power for step, power in within],
        "ticktext": [_spelled(step, power) for step, power in within],
    }


def _spelled(step: int, power: int) -> str:
    if -3 <= power <= 2:
        return f"{step * 10.0**power:g}"
    raised = f"10{str(power).translate(RAISED)}"
    return raised if step == 1 else f"{step}·{raised}"


def _word(text: str, x: float, y: float, across: str, down: str) -> dict[str, Any]:
    return {
        "text": text, "xref": "paper", "yref": "paper", "x": x, "y": y, "xanchor": across, "yanchor": down,
        "showarrow": False, "font": {"size": 10},
    }  # fmt: skip


def _round(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")
