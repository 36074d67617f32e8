"""Plotly figures as JSON-ready dicts: no NaN, no arrays, one colour scale for signed values.

Plotly validates every value it is given, which takes most of a page's time for thousands of cells: it builds each kind
of figure once, and numbers are put into a copy. A test has plotly read the finished figures.
"""

import base64
import copy
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from plotly import graph_objects

FOR, AGAINST, MEMBERSHIP = "#1d6f86", "#b5502b", "#9a7b2f"
DIVERGING = [[0.0, AGAINST], [0.5, "rgba(128,128,128,0.08)"], [1.0, FOR]]
"""Rust over nothing to teal: told apart by people of every colour vision, and centred on zero."""

COUNTED, LABELLED = 16, 80
"""Layers up to which cells show their count, and concepts up to which an axis names each."""
SPACED = 4
"""On a logarithmic axis, the least ratio of two ticks that are both named."""

Figure = dict[str, Any]


def layers_by_position(
    positions: npt.NDArray[np.float32], groups: Sequence[tuple[str, int]], labels: Sequence[str]
) -> Figure:
    """`positions` (n_layers, pos) as a heat map, layer 0 at the bottom. `groups`: (modality, number of positions) in
    order; `labels`: one text per position."""
    finite = positions[np.isfinite(positions)]
    largest = float(np.abs(finite).max(initial=0)) or 1.0
    starts = [0, *itertools.accumulate(count for _, count in groups)]
    figure = copy.deepcopy(_layers_by_position())
    figure["data"][0] |= {
        "z": _finite(positions),
        "x": [f"{number} · {label}" for number, label in enumerate(labels)],  # a category axis wants them different
        "zmin": -largest,
        "zmax": largest,
    }
    figure["layout"]["xaxis"] |= {
        "tickvals": [(before + after - 1) / 2 for before, after in itertools.pairwise(starts)],
        "ticktext": [name if 12 * count > starts[-1] else "" for name, count in groups],
    }
    figure["layout"]["yaxis"]["dtick"] = max(1, len(positions) // 8)
    return figure


def cardinality_by_layer(layers: Sequence[float]) -> Figure:
    """Σμ of a concept in each layer, as bars."""
    figure = copy.deepcopy(_cardinality_by_layer())
    figure["data"][0] |= {"x": list(range(len(layers))), "y": [float(value) for value in layers]}
    figure["layout"]["xaxis"]["dtick"] = max(1, len(layers) // 8)
    return figure


def members_by_band(counts: npt.NDArray[np.int64], bands: Sequence[str]) -> Figure:
    """`counts` (bands, n_layers) of members as a heat map: a column each layer, the band of highest memberships at the
    top. Shades go by the logarithm, because low memberships are many."""
    figure = copy.deepcopy(_members_by_band())
    shown = np.log1p(counts)
    figure["data"][0] |= {
        "z": _finite(shown.astype(np.float32)),
        "x": list(range(counts.shape[1])),
        "y": list(bands),
        "text": [[str(count) if count else "" for count in row] for row in counts.tolist()],
        "customdata": counts.tolist(),
        "zmin": 0,
        "zmax": float(shown.max(initial=0)) or 1.0,
    }
    if counts.shape[1] > COUNTED:
        figure["data"][0]["texttemplate"] = ""
    figure["layout"]["xaxis"]["dtick"] = max(1, counts.shape[1] // 8)
    return figure


def likeness(values: npt.NDArray[np.float32], names: Sequence[str], spelled: Sequence[str], of: str) -> Figure:
    """(concepts, concepts) values of `of` in [0, 1] as a heat map, shown in whole hundredths; the first at the top.
    Shades reach their full strength at the largest value between two concepts: each with itself is 1. `spelled`: each
    name as an expression has it, for the link of a cell. Values are packed as plotly's typed arrays are: a third of the
    time and half of the bytes of a list, for hundreds of concepts."""
    figure = copy.deepcopy(_likeness())
    shown = np.rint(100 * values).astype(np.uint8)
    between = shown[~np.eye(len(shown), dtype=bool)]
    figure["data"][0] |= {
        "z": {
            "dtype": "u1",
            "bdata": base64.b64encode(shown.tobytes()).decode("ascii"),
            "shape": f"{len(shown)}, {len(shown)}",
        },
        "x": list(names),
        "y": list(names),
        "zmax": int(between.max(initial=0)) or 100,
        "hovertemplate": f"%{{y}} · %{{x}}<br>{of} %{{z}} %<extra></extra>",
    }
    ticks = {"ticks": "", "showticklabels": len(names) <= LABELLED}
    figure["layout"]["xaxis"] |= ticks
    figure["layout"]["yaxis"] |= ticks
    figure["layout"]["meta"] = {"spelled": list(spelled)}
    return figure


def interactions(names: Sequence[str], single: Sequence[float], values: Sequence[Sequence[float | None]]) -> Figure:
    """(k, k) interactions of pairs of neurons, centred on zero; on the diagonal, on a scale of its own, what each
    carries alone. The first is at the top."""
    figure = copy.deepcopy(_interactions())
    between = np.array([[math.nan if value is None else value for value in row] for row in values], np.float32)
    np.fill_diagonal(between, np.nan)
    alone = np.full_like(between, np.nan)
    np.fill_diagonal(alone, single)
    short = [name.removeprefix("text.") for name in names]
    for trace, shown in zip(figure["data"], (between, alone), strict=True):
        finite = shown[np.isfinite(shown)]
        largest = float(np.abs(finite).max(initial=0)) or 1.0
        trace |= {"z": _finite(shown), "x": short, "y": short, "zmin": -largest, "zmax": largest}
    figure["data"][1]["zmin"] = 0
    return figure


def deletion_curve(
    sizes: Sequence[int],
    ranked: Sequence[float],
    random: Sequence[Sequence[float]],
    whole: float,
    unit: str,
) -> Figure:
    """The target's value when `sizes` neurons are ablated: along the ranking, along each `random` ranking and their
    mean, with the area between; and the level `whole`, where none is. A trace's `meta` names its colour."""
    figure = copy.deepcopy(_deletion_curve(len(random)))
    mean = [float(value) for value in np.mean(random, axis=0)]
    level = [float(whole)] * len(sizes)
    for trace, values in zip(figure["data"], (*random, level, mean, ranked), strict=True):
        trace |= {"x": [int(size) for size in sizes], "y": [float(value) for value in values]}
    figure["layout"]["xaxis"] |= {"tickvals": list(sizes), "ticktext": _labels(sizes)}
    figure["layout"]["yaxis"]["title"]["text"] = unit
    return figure


def _labels(sizes: Sequence[int]) -> list[str]:
    """One for each tick, empty where it would run into that of the next one that is named: the largest is."""
    labels, last = [""] * len(sizes), math.inf
    for k in reversed(range(len(sizes))):
        if last >= SPACED * sizes[k]:
            labels[k], last = str(sizes[k]), sizes[k]
    return labels


def scores_and_effects(
    names: Sequence[str], scores: Sequence[float], effects: Sequence[float], *, equal: bool
) -> Figure:
    """Each neuron's score and the exact effect of ablating it alone; with `equal`, the line on which both are equal."""
    figure = copy.deepcopy(_scores_and_effects())
    both = [float(value) for value in (*scores, *effects)]
    ends = [min(both), max(both)] if equal and both else []
    figure["data"][0] |= {"x": ends, "y": ends}
    figure["data"][1] |= {
        "x": [float(value) for value in scores],
        "y": [float(value) for value in effects],
        "text": list(names),
    }
    return figure


def bin_names(edges: Sequence[float]) -> list[str]:
    """Each bin of a histogram in words: what is above its lower edge and at most its upper one."""
    names = [f"{edge:.4g}".replace("-", "−") for edge in edges]
    return [f"≤ {names[0]}", *(f"{low} … {high}" for low, high in itertools.pairwise(names)), f"> {names[-1]}"]


def activations(counts: Sequence[Sequence[int]], edges: Sequence[float]) -> Figure:
    """Two histograms over one signed logarithmic axis, image positions and text positions, each as shares of its own
    positions; bins that both leave empty at the ends are cut off."""
    figure = copy.deepcopy(_activations())
    both = [sum(pair) for pair in zip(*counts, strict=True)]
    filled = [k for k, count in enumerate(both) if count] or [0]
    shown, names = range(max(0, filled[0] - 1), min(len(both), filled[-1] + 2)), bin_names(edges)
    for trace, row in zip(figure["data"], counts, strict=True):
        whole = sum(row) or 1
        trace |= {
            "x": list(shown),
            "y": [round(row[k] / whole, 6) for k in shown],
            "text": [names[k] for k in shown],
        }
    ticks = [k for k in range(len(edges)) if shown[0] <= k < shown[-1]]
    every = ticks[:: max(1, len(ticks) // 5)]
    figure["layout"]["xaxis"] |= {
        "tickvals": [k + 0.5 for k in every],
        "ticktext": [f"{edges[k]:{'.0f' if abs(edges[k]) >= 100 else '.2g'}}".replace("-", "−") for k in every],
    }
    return figure


def warm() -> None:
    """Build every kind, so that nobody waits for plotly to load its parts."""
    _layers_by_position()
    _cardinality_by_layer()
    _members_by_band()
    _likeness()
    _deletion_curve(1)
    _scores_and_effects()
    _activations()


@functools.cache
def _activations() -> Figure:
    lines = [
        graph_objects.Scatter(
            mode="lines", meta=meta, name=name, fill="tozeroy", line={"width": 1.5, "shape": "hvh"},
            hovertemplate=f"{name}: %{{y:.1%}} of positions<br>%{{text}}<extra></extra>",
        )
        for meta, name in (("for", "image"), ("soft", "text"))
    ]  # fmt: skip
    made = _as_dict(
        lines,
        xaxis={"title": {"text": "activation"}, "zeroline": False, "tickangle": 0},
        yaxis={"title": {"text": "share of positions"}, "tickformat": ".0%", "rangemode": "tozero"},
    )
    made["layout"] |= {
        "margin": {"l": 52, "r": 12, "t": 30, "b": 36},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    }
    return made


@functools.cache
def _layers_by_position() -> Figure:
    bare = {"showgrid": False, "zeroline": False}
    heatmap = graph_objects.Heatmap(
        colorscale=DIVERGING, xgap=1, ygap=1, showscale=False,
        hovertemplate="%{x}<br>layer %{y} · %{z:.3g}<extra></extra>",
    )  # fmt: skip
    return _as_dict(
        heatmap, xaxis={"type": "category", "tickangle": 0, **bare}, yaxis={"title": {"text": "layer"}, **bare}
    )


@functools.cache
def _cardinality_by_layer() -> Figure:
    bar = graph_objects.Bar(
        marker={"color": MEMBERSHIP}, hovertemplate="layer %{x} · Σμ %{y:.2f}<extra></extra>"
    )  # fmt: skip
    return _as_dict(
        bar,
        xaxis={"title": {"text": "layer"}},
        yaxis={"title": {"text": "cardinality Σμ"}, "rangemode": "tozero"},
    )


@functools.cache
def _members_by_band() -> Figure:
    heatmap = graph_objects.Heatmap(
        meta="membership", xgap=1, ygap=1, showscale=False, texttemplate="%{text}",
        hovertemplate="layer %{x} · μ %{y}<br>%{customdata} members<extra></extra>",
    )  # fmt: skip
    return _as_dict(
        heatmap,
        xaxis={"title": {"text": "layer"}, "showgrid": False, "zeroline": False},
        yaxis={"type": "category", "title": {"text": "membership μ"}, "automargin": True, "showgrid": False},
    )


@functools.cache
def _likeness() -> Figure:
    heatmap = graph_objects.Heatmap(meta="membership", showscale=False, zmin=0)
    axis = {"type": "category", "showgrid": False, "zeroline": False, "automargin": True, "tickfont": {"size": 10}}
    return _as_dict(
        heatmap, xaxis={"tickangle": -60, **axis}, yaxis={"autorange": "reversed", **axis}
    )  # fmt: skip


@functools.cache
def _interactions() -> Figure:
    pairs = graph_objects.Heatmap(
        colorscale=DIVERGING, showscale=False, hovertemplate="%{y} and %{x}<br>%{z:.3g} nats<extra></extra>"
    )
    alone = graph_objects.Heatmap(
        meta="membership", showscale=False, hovertemplate="%{y} alone<br>%{z:.3g} nats<extra></extra>"
    )
    axis = {"type": "category", "showgrid": False, "zeroline": False, "automargin": True, "tickfont": {"size": 10}}
    return _as_dict(
        [pairs, alone], xaxis={"tickangle": -45, **axis}, yaxis={"autorange": "reversed", **axis}
    )  # fmt: skip


@functools.cache
def _deletion_curve(random: int) -> Figure:
    at = "%{x} ablated · %{y:.3f}<extra></extra>"
    lines = [
        graph_objects.Scatter(mode="lines", meta="line", line={"width": 1}, showlegend=False, hoverinfo="skip")
        for _ in range(random)
    ]
    lines += [
        graph_objects.Scatter(
            mode="lines", meta="soft", line={"width": 1, "dash": "dot"}, name="none", showlegend=False, hovertemplate=at
        ),
        graph_objects.Scatter(
            mode="lines+markers", meta="soft", line={"width": 2}, marker={"size": 4}, name="random", hovertemplate=at
        ),
        graph_objects.Scatter(
            mode="lines+markers", meta="against", line={"width": 2.5}, marker={"size": 6}, name="ranked",
            fill="tonexty", hovertemplate=at,
        ),
    ]  # fmt: skip
    made = _as_dict(
        lines,
        xaxis={"type": "log", "title": {"text": "neurons ablated"}, "zeroline": False, "tickangle": 0},
        yaxis={"title": {"text": ""}, "automargin": True, "zeroline": False},
    )
    made["layout"] |= {
        "margin": {"l": 52, "r": 12, "t": 30, "b": 36},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "reversed"},
    }
    return made


@functools.cache
def _scores_and_effects() -> Figure:
    line = graph_objects.Scatter(
        mode="lines", meta="soft", line={"width": 1, "dash": "dot"}, showlegend=False, hoverinfo="skip"
    )
    points = graph_objects.Scatter(
        mode="markers", meta="for", marker={"size": 6, "opacity": 0.7}, showlegend=False,
        hovertemplate="%{text}<br>score %{x:.3g} · effect %{y:.3g}<extra></extra>",
    )  # fmt: skip
    axis = {"automargin": True, "nticks": 4, "exponentformat": "e", "tickangle": 0}
    made = _as_dict(
        [line, points],
        xaxis={"title": {"text": "score"}, **axis},
        yaxis={"title": {"text": "exact effect"}, **axis},
    )
    made["layout"]["margin"] = {"l": 52, "r": 12, "t": 30, "b": 36}
    return made


def _as_dict(trace: Any, **axes: Any) -> Figure:
    layout = graph_objects.Layout(
        template=None, margin={"l": 44, "r": 8, "t": 8, "b": 32}, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", font={"size": 12}, **axes,
    )  # fmt: skip
    made: Figure = graph_objects.Figure(trace, layout).to_plotly_json()
    return made


def _finite(values: npt.NDArray[np.float32]) -> list[list[float | None]]:
    """Rows of numbers with 5 digits of the largest; what is not finite becomes null (a gap in the map)."""
    finite = np.isfinite(values)
    largest = float(np.abs(values[finite]).max(initial=0))
    digits = 4 - math.floor(math.log10(largest)) if largest else 0
    rounded: list[list[float | None]] = np.round(values.astype(np.float64), digits).tolist()
    if finite.all():
        return rounded
    return [
        [value if known else None for value, known in zip(row, mask, strict=True)]
        for row, mask in zip(rounded, finite, strict=True)
    ]
