"""Figures are what plotly understands, and JSON without NaN."""

import base64
import json

import numpy as np
import pytest
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


def test_likeness_is_packed_in_whole_hundredths() -> None:
    made = figures.likeness(np.array([[1, 0.126], [0.5, 1]], np.float32), ["a", "b"], ["a", "b"], "inclusion")
    trace = made["data"][0]
    assert trace["z"] == {"dtype": "u1", "bdata": base64.b64encode(bytes([100, 13, 50, 100])).decode(), "shape": "2, 2"}
    assert trace["zmax"] == 50, "each with itself does not count"
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


def test_a_figure_is_nobody_elses() -> None:
    first = figures.cardinality_by_layer([1.0])
    second = figures.cardinality_by_layer([2.0, 3.0])
    assert first["data"][0]["y"] == [1.0]
    assert first["layout"] is not second["layout"]


def test_deletion_curve() -> None:
    made = figures.deletion_curve(
        (1, 2, 5), (-1.0, -2.0, -4.0), ((-0.1, -0.2, -0.3), (-0.3, -0.2, -0.1)), -0.05, "logit"
    )
    first, second, level, mean, ranked = made["data"]
    assert (first["y"], second["y"]) == ([-0.1, -0.2, -0.3], [-0.3, -0.2, -0.1])
    assert level["y"] == [-0.05] * 3
    assert mean["y"] == [-0.2, -0.2, -0.2]
    assert ranked["y"] == [-1.0, -2.0, -4.0]
    assert ranked["fill"] == "tonexty", "the area between it and the trace before, the random mean"
    assert all(trace["x"] == [1, 2, 5] for trace in made["data"])
    assert made["layout"]["xaxis"]["type"] == "log"
    assert made["layout"]["xaxis"]["tickvals"] == [1, 2, 5]
    assert made["layout"]["yaxis"]["title"]["text"] == "logit"
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


def test_the_names_of_sizes_do_not_run_into_each_other() -> None:
    sizes = (1, 2, 5, 10, 20, 50, 100, 200, 500)
    level = [0.0] * len(sizes)
    axis = figures.deletion_curve(sizes, level, (level,), 0.0, "logit")["layout"]["xaxis"]
    assert axis["tickvals"] == list(sizes), "every size keeps its tick"
    assert axis["ticktext"] == ["1", "", "5", "", "20", "", "100", "", "500"]


@pytest.mark.parametrize("equal", [False, True])
def test_scores_and_effects(*, equal: bool) -> None:
    made = figures.scores_and_effects(("text.0.1", "text.0.2"), (1.0, -2.0), (0.5, 3.0), equal=equal)
    formats = {made["layout"][axis]["exponentformat"] for axis in ("xaxis", "yaxis")}
    assert formats == {"e"}, "powers would be raised by an inline style, which the content security policy refuses"
    line, points = made["data"]
    assert line["x"] == line["y"] == ([-2.0, 3.0] if equal else [])
    assert (points["x"], points["y"], points["text"]) == ([1.0, -2.0], [0.5, 3.0], ["text.0.1", "text.0.2"])
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)
