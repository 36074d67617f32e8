"""Heat maps lie over the picture's own pixels; numbers and names are written in one way."""

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import formats, steerings
from app.state import PageState, parse
from app.views.heat import cells
from engine.contract import ConceptTurn, NeuronTurn, RequestError, Steering


def test_a_patch_covers_its_pixels() -> None:
    heat = np.zeros((2, 4), np.float32)
    heat[1, 3] = -2
    made = cells(heat, (2, 4, (0, 0, 400, 100)), (400, 100), 2.0)
    assert len(made) == 8
    last = made[-1]
    assert (last.x, last.y, last.width, last.height) == (300, 50, 100, 50)
    assert (last.row, last.column, last.opacity, last.polarity, last.value) == (2, 4, 1.0, "against", "−2.000")


def test_padding_is_cut_off_and_a_crop_leaves_a_rim() -> None:
    heat = np.ones((4, 4), np.float32)
    padded = cells(heat, (4, 4, (0, -100, 400, 300)), (400, 200), 1.0)
    assert {cell.row for cell in padded} == {2, 3}
    half = cells(heat, (4, 4, (0, -50, 400, 350)), (400, 300), 1.0)
    assert {(cell.row, cell.y, cell.height) for cell in half if cell.column == 1} == {
        (1, 0, 50), (2, 50, 100), (3, 150, 100), (4, 250, 50)
    }  # fmt: skip
    cropped = cells(heat, (4, 4, (100, 0, 300, 200)), (400, 200), 1.0)
    assert min(cell.x for cell in cropped) == 100
    assert max(cell.x + cell.width for cell in cropped) == 300


def test_a_flat_map_has_no_colour() -> None:
    assert {cell.opacity for cell in cells(np.zeros((2, 2), np.float32), (2, 2, (0, 0, 9, 9)), (9, 9), 0.0)} == {0.0}
    assert cells(None, (2, 2, (0, 0, 9, 9)), (9, 9), 1.0) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4184, "+0.418"), (-0.149, "−0.149"), (0.0, "+0.000"), (-0.0, "+0.000"), (0.0042, "+0.0042"),
     (-0.00001, "−1.0·10⁻⁵"), (12.5, "+12.500"), (float("nan"), "not finite")],
)  # fmt: skip
def test_signed_numbers(value: float, text: str) -> None:
    assert formats.signed(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.998, "99.8 %"), (0.91, "91 %"), (0.004, "0.4 %"), (0.0, "0 %"), (0.0001, "<0.1 %")],
)
def test_percent(value: float, text: str) -> None:
    assert formats.percent(value) == text


def test_ago() -> None:
    now = dt.datetime(2030, 1, 2, tzinfo=dt.UTC)
    told = [formats.ago(now - dt.timedelta(seconds=s), now) for s in (5, 60, 7200, 86_400)]
    assert told == ["just now", "1 minute ago", "2 hours ago", "1 day ago"]


def test_a_steering_has_one_spelling() -> None:
    one = Steering((ConceptTurn("b", -1), ConceptTurn("a", 0.5), ConceptTurn("c", 0)), (NeuronTurn(1, 2, "scale", 1),))
    assert steerings.to_json(one) == {"concepts": [["a", 0.5], ["b", -1]], "neurons": [], "positions": "all"}
    assert steerings.to_json(steerings.from_json(steerings.to_json(one))) == steerings.to_json(one)
    form = [("concept:a", "0.50"), ("concept:b", "−1"), ("neuron:text.1.2", "1"), ("panel", "x")]
    assert steerings.from_form(form) == steerings.to_json(one)
    words = steerings.in_words({"concepts": [["a", -1]], "neurons": [[3, 17, "scale", 0]], "positions": "image"}, 1)
    assert words == "a λ −1 · text.3.17 × 0 · image positions · 1 neuron"


@given(
    st.builds(
        PageState,
        span=st.none() | st.tuples(st.integers(0, 9), st.integers(10, 20)),
        method=st.sampled_from(["gradient", "direct"]),
        heat=st.sampled_from(["all", "off", "concept:traffic light", "concept:a&b=c", "neuron:text.3.17"]),
        layer=st.none() | st.integers(0, 99),
        modality=st.sampled_from(["", "image"]),
        concept=st.text("abc &=?#/é", max_size=8).map(str.strip),
        sort=st.sampled_from(["score", "layer"]),
        steer=st.sampled_from(["", "abc"]),
        add=st.lists(st.text("xyz &%", min_size=1, max_size=4).map(str.strip).filter(bool), unique=True).map(tuple),
        rows=st.integers(1, 200),
    )
)
def test_a_url_says_the_whole_state(state: PageState) -> None:
    from urllib.parse import parse_qsl, urlsplit

    url = state.url("run")
    assert parse(parse_qsl(urlsplit(url).query, keep_blank_values=True)) == state


@pytest.mark.parametrize(
    "query", [("span", "2-1"), ("span", "x"), ("method", "y"), ("layer", "1.5"), ("sort", "z"), ("rows", "-1")]
)
def test_a_state_that_is_none_is_refused(query: tuple[str, str]) -> None:
    with pytest.raises(RequestError):
        parse([query])
