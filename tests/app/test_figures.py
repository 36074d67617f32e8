"""Figures are what plotly understands, and JSON without NaN."""

import json

import numpy as np
from plotly import graph_objects

from app import figures


def test_layers_by_position() -> None:
    values = np.array([[0.5, -1.0, np.nan, 0.25], [0, np.inf, 0.123456789, 0]], np.float32)
    made = figures.layers_by_position(values, [("image", 3), ("answer", 1)], ["a", "b", "a", "c"])
    trace = made["data"][0]
    assert trace["z"] == [[0.5, -1.0, None, 0.25], [0.0, None, 0.1235, 0.0]]
    assert (trace["zmin"], trace["zmax"]) == (-1.0, 1.0), "centred on zero"
    assert len(set(trace["x"])) == 4
    assert made["layout"]["xaxis"]["tickvals"] == [1.0, 3.0]
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


def test_nothing_at_all() -> None:
    made = figures.layers_by_position(np.zeros((3, 2), np.float32), [("question", 2)], ["a", "b"])
    assert made["data"][0]["zmax"] == 1.0
    graph_objects.Figure(made)


def test_cardinality_by_layer() -> None:
    made = figures.cardinality_by_layer([1.5, 0.0, 2.25])
    assert made["data"][0]["y"] == [1.5, 0.0, 2.25]
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


def test_a_figure_is_nobody_elses() -> None:
    first = figures.cardinality_by_layer([1.0])
    second = figures.cardinality_by_layer([2.0, 3.0])
    assert first["data"][0]["y"] == [1.0]
    assert first["layout"] is not second["layout"]
