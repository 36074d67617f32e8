"""Sweeps as values: rows and their fields, points as JSON, the chart, and who waits."""

import json
import math

import pytest
from plotly import graph_objects

from app import sweepchart, swept
from app.audience import Audience
from engine.contract import ConceptTurn, NeuronTurn, RequestError, sweeps

PENGUIN = "concept:penguin"


def test_rows_and_their_fields() -> None:
    assert swept.turn_of("concept:two words") == ConceptTurn("two words", 0)
    assert swept.turn_of("neuron:text.1.2") == NeuronTurn(1, 2, "scale", 1)
    whole = swept.whole(
        [("concept:red", "1"), (PENGUIN, "0"), ("neuron:text.1.2", "0"), ("operation:text.1.2", "add"),
         ("value:text.1.2", "1.5"), ("layers", "1"), ("layers", "2")], PENGUIN,
    )  # fmt: skip
    around = swept.around(whole, PENGUIN)
    assert around["concepts"] == [["red", 1.0]]
    params, neuron = {"steering": around, "row": PENGUIN}, {"steering": around, "row": "neuron:text.1.2"}
    assert swept.at(params, 0.5)["concepts"] == [["penguin", 0.5], ["red", 1.0]]
    again = swept.around(swept.whole(swept.fields_of(around), PENGUIN), PENGUIN)
    assert again == around, "its fields ask for it"
    assert swept.value_in(whole, params) == float(swept.ASIDE)
    assert swept.value_in(None, params) == 0
    assert swept.value_in(None, neuron) == 1
    assert swept.value_in(whole, neuron) == 1, "it is added to, not multiplied"
    with pytest.raises(RequestError, match="no row"):
        swept.turn_of("text.1.2")


def test_numbers_that_are_not_finite_are_null() -> None:
    point = sweeps.SweepPoint(1, "a", (3,), float("nan"), -math.inf)
    assert swept.as_json([point]) == [
        {"value": 1, "text": "a", "ids": [3], "logprob": None, "original": None, "live": False}
    ]


def test_the_chart_is_what_plotly_understands() -> None:
    made = sweepchart.sweep(
        (-1.0, 0.0, 1.0), (0.5, None, 1.0), (0.5, 0.1, 0.0), ("a", "b", "c"), 0.3, "λ", "probability"
    )
    assert made["layout"]["xaxis"]["range"] == [-1.5, 1.5], "every value has the same width"
    assert made["data"][2]["x"] == [0.3, 0.3]
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


def test_whoever_leaves_last_ends_the_waiting() -> None:
    audience = Audience()
    assert audience.join("a", "p") == []
    assert audience.join("a", "q") == []
    assert audience.join("b", "p") == [], "q waits for a"
    assert audience.join("", "q") == ["a"]
    assert audience.join("c", "") == []
    audience.end("b")
    assert audience.join("c", "p") == []
