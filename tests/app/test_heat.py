"""Heat maps lie over the picture's own pixels; numbers and names are written in one way."""

import datetime as dt
import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import formats, steerings
from app.arrays import pack, unpack
from app.state import PageState, parse
from app.tables import AttributionRow, JobRow, Run
from app.views.heat import cells
from app.views.heat_choice import CANCELLED, CANCELS
from app.views.strip import NUMBERED, PART, shown
from engine.contract import ConceptTurn, NeuronTurn, RequestError, Steering
from engine.fake_world import COLS, N_LAYERS, ROWS
from tests.app.conftest import Browser, until


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
        method=st.sampled_from(["", "direct"]),
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


def seen(browser: Browser, url: str, **state: str) -> str:
    return html.unescape(browser.http.get(url, params={**state, "fragment": "picture"}).text)


def drawn(page: str) -> int:
    return page.count("<title>row ")


@pytest.fixture(scope="module")
def run(shared: Browser, pictures: Path) -> str:
    return shared.ask("What is 👩\u200d🚀 on the مرحبا right?", (pictures / "ok.png").read_bytes())


def test_every_kind_of_heat_map_says_what_it_is(shared: Browser, run: str) -> None:
    data = shared.data(run)
    said, neuron = data["answer"], data["neurons"][0]["id"]
    layer = seen(shared, run, heat="layer:2")
    assert f"Net contribution of all 64 neurons of layer 2 together to “{said}”. Strongest patch: row" in layer
    assert re.search(r'<option value="layer:2" selected>layer 2<', layer)
    assert len(re.findall(r'<option value="layer:\d+"', layer)) == N_LAYERS
    contribution = seen(shared, run, heat=f"neuron:{neuron}")
    assert f"Contribution of {neuron} to “{said}”." in contribution
    assert re.search(r'aria-current="true">contribution<', contribution)
    assert ">for</span>" in contribution
    activation = seen(shared, run, heat=f"activation:{neuron}")
    assert f"Activation of {neuron} on each patch" in activation
    assert re.search(r'aria-current="true">activation<', activation)
    assert ">positive</span>" in activation
    assert "nats" in contribution
    assert "nats" not in activation.split('<details id="picture-text"')[0]
    maps = [layer, contribution, activation]
    assert all(drawn(page) == ROWS * COLS for page in maps)
    assert len({tuple(re.findall(r"<title>([^<]+)", page)) for page in maps}) == 3


def test_layers_are_chosen_without_javascript(shared: Browser, run: str) -> None:
    page = seen(shared, run, span="0-1", heat="all")
    form = page.split('id="heat-layers"')[1].split("</form>")[0]
    assert '<input type="hidden" name="span" value="0-1">' in form
    assert "<noscript><button" in form
    assert 'name="heat" value' not in form


def measured(browser: Browser, run_id: str) -> JobRow | None:
    with browser.services.database.read() as session:
        return session.query(JobRow).filter_by(run_id=run_id, kind="input").first()


def test_the_input_map_is_computed_when_it_is_asked_for(browser: Browser, pictures: Path) -> None:
    url = browser.ask("What is on the left?", (pictures / "ok.png").read_bytes())
    first = seen(browser, url, heat="input")
    assert drawn(first) in (0, ROWS * COLS)
    page = until(lambda: seen(browser, url, heat="input"), lambda page: drawn(page) == ROWS * COLS)
    assert "How much each patch’s own embedding raises “" in page
    assert "to first order. Strongest patch: row" in page
    assert "Drawn from hashes: there are no embeddings." in page
    row = measured(browser, url.rsplit("/", 1)[1])
    assert row is not None
    assert row.result
    heat = unpack(row.arrays)["heat"] if row.arrays else None
    assert heat is not None
    strongest = np.unravel_index(np.abs(heat).argmax(), heat.shape)
    assert f"row {strongest[0] + 1}, column {strongest[1] + 1} (" in page
    with browser.services.database.write() as session:
        job = session.get_one(JobRow, row.id)
        job.state, job.error = "failed", "The machine ran out of memory."
    page = seen(browser, url, heat="input")
    assert "The machine ran out of memory." in page
    action = re.search(r'<form method="post" action="([^"]+)"', page)
    assert action
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page[action.end() :]))
    assert browser.http.post(action[1], data=fields, follow_redirects=False).status_code == 303
    until(lambda: seen(browser, url, heat="input"), lambda page: drawn(page) == ROWS * COLS)


def change(browser: Browser, run_id: str, checks: list[Any] | None = None, **arrays: Any) -> None:
    """Rewrite what is stored of a run's attribution; an array of None is dropped."""
    with browser.services.database.write() as session:
        row = session.query(AttributionRow).filter_by(run_id=run_id).one()
        assert row.arrays
        kept = {name: array for name, array in unpack(row.arrays).items() if name not in arrays}
        row.arrays = pack({**kept, **arrays})
        row.summary = {**(row.summary or {}), **({"checks": checks} if checks is not None else {})}


def test_a_map_that_is_empty_or_not_kept_says_why(browser: Browser, pictures: Path) -> None:
    url = browser.ask("What is on the left?", (pictures / "ok.png").read_bytes())
    run_id, neuron = url.rsplit("/", 1)[1], browser.data(url)["neurons"][0]["id"]
    change(browser, run_id, layer_heats=None, activation_heats=None)
    assert "No maps of single layers are kept with this attribution." in seen(browser, url, heat="layer:1")
    assert "No activations on patches are kept" in seen(browser, url, heat=f"activation:{neuron}")
    nothing = np.zeros((ROWS, COLS), np.float32)
    change(browser, run_id, heat=nothing, layer_heats=np.stack([nothing] * N_LAYERS))
    page = seen(browser, url, heat="all")
    assert "Every patch’s value is zero" in page
    assert drawn(page) == 0
    change(browser, run_id, [[CANCELS, True, "each layer's scores sum to zero"]])
    for heat in ("all", "layer:1"):
        page = seen(browser, url, heat=heat)
        assert page.count(CANCELLED) == 2, "the heat map and the text strip"
        assert drawn(page) == 0
    assert drawn(seen(browser, url, heat=f"neuron:{neuron}")) == ROWS * COLS


def chips(page: str) -> list[tuple[str, str, int, str]]:
    """(classes, tooltip, count, text) of each chip of the text strip."""
    found = re.findall(
        r'<li class="piece ([^"]+)" title="([^"]*)" data-count="(\d+)">.*?<span dir="auto">(.*?)</span>',
        page,
        re.DOTALL,
    )
    return [(kind, about, int(count), text) for kind, about, count, text in found]


def totals(browser: Browser, run_id: str, **of: Any) -> np.typing.NDArray[np.float64]:
    with browser.services.database.read() as session:
        row = session.query(AttributionRow).filter_by(run_id=run_id, **of).one()
        assert row.arrays
        return np.asarray(unpack(row.arrays)["positions"].sum(axis=0, dtype=np.float64))


def test_the_text_strip_has_each_token_with_its_score(shared: Browser, run: str) -> None:
    run_id = run.rsplit("/", 1)[1]
    found, scores = chips(seen(shared, run)), totals(shared, run_id, method="gradient", key=key_of(shared, run_id))
    assert sum(count for _, _, count, _ in found) == len(scores)
    texts = [text for *_, text in found]
    assert texts[:3] == ["<s>", "USER:", "picture × 81"]
    assert "·👩\u200d🚀" in texts
    assert "·مرحبا" in texts
    at = 0
    for kind, about, count, _ in found:
        assert about.endswith(formats.signed(float(scores[at : at + count].sum())))
        assert (f"position {at} " in about) == (count == 1)
        assert ("target" in kind) == kind.startswith("answer")
        at += count


def key_of(browser: Browser, run_id: str) -> str:
    with browser.services.database.read() as session:
        return f"0-{len(session.get_one(Run, run_id).answer['tokens'])}"  # type: ignore[index]


def test_a_text_and_a_contrast_show_their_own_tokens(browser: Browser) -> None:
    url = browser.ask("What is this?")
    run_id = url.rsplit("/", 1)[1]
    state = {"say": " polar bear on ice", "against": " lemon", "exact": "1"}
    page = until(lambda: seen(browser, url, **state), lambda page: "Each token’s contribution" in page)
    assert '<details id="picture-text" class="in-text" open>' in page
    answer = [chip for chip in chips(page) if chip[0].startswith("answer")]
    with browser.services.database.read() as session:
        row = next(r for r in session.query(AttributionRow).filter_by(run_id=run_id) if r.key.startswith("0-0:"))
        summary = row.summary or {}
    assert answer[0][3].startswith("·polar | ·lemon")
    assert [text for *_, text in answer[1:2]] == ["·bear"]
    ids = [re.findall(r"id (\d+)", about) for _, about, *_ in answer]
    assert [int(found[0]) for found in ids] == summary["explained"]
    assert int(ids[0][1]) == summary["explained_against"][0]
    assert sum(count for _, _, count, _ in chips(page)) == len(totals(browser, run_id, key=row.key))


def test_tokens_are_never_put_to_positions_that_are_not_theirs(browser: Browser) -> None:
    url = browser.ask("What is this?")
    run_id = url.rsplit("/", 1)[1]
    change(browser, run_id, positions=np.ones((N_LAYERS, 5), np.float32))
    page = seen(browser, url)
    assert NUMBERED in page
    assert [text for *_, text in chips(page)] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("text", "visible"),
    [(" a", "·a"), ("\n\t", "↵⇥"), ("", PART), (" ", "·"), ("\u200d", "U+200D"), ("\ufe0f", "U+FE0F"),
     ("\u0301", "◌\u0301"), ("👩\u200d👧", "👩\u200d👧"), (" 漢字", "·漢字"), (None, "id 7"), ("a\u00a0", "a⍽")],
)  # fmt: skip
def test_white_space_and_what_has_no_shape_can_be_seen(text: str | None, visible: str) -> None:
    assert shown(text, 7) == visible
