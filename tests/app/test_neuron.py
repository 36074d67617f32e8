"""The neuron page, its jobs, the search, and which neurons fire inside a box, on the fake engine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, insert

from app import neuronqueries, surveying
from app.library import SMALLEST
from app.tables import Base, ConceptRow, JobRow
from app.views import search, seen
from app.views.strip import visible
from engine.contract import Question
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until

PAGE = "/neurons/fake-1/text.1.7"
HIT = r'href="/neurons/fake-1/(text\.\d+\.\d+)"'


@contextmanager
def counted(browser: Browser) -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    engine = browser.services.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


def job(browser: Browser, kind: str) -> JobRow | None:
    with browser.services.database.read() as session:
        return neuronqueries.newest(session, kind, "fake-1")


def done(browser: Browser, kind: str) -> JobRow:
    row: JobRow = until(lambda: job(browser, kind), lambda row: row is not None and not row.live)
    assert row.state == "done", row.error
    return row


def survey(browser: Browser) -> JobRow:
    response = browser.http.post("/neurons/fake-1/survey", data={"neuron": "text.1.7"}, follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == f"{PAGE}#seen"
    return done(browser, "survey")


def settled(browser: Browser, path: str = PAGE) -> str:
    """The page once it asks for nothing any more."""
    page: str = until(lambda: browser.http.get(path).text, lambda text: "every 1s" not in text)
    return page


def test_the_page_looks_up_what_is_quick(browser: Browser) -> None:
    page = settled(browser)
    lens = FakeEngine().lens(1, 7)
    for token in (*lens.promoted, *lens.suppressed):
        assert visible(token.text) in page.replace("&lt;", "<").replace("&gt;", ">")
    for name, _ in lens.alike:
        assert f'href="/neurons/fake-1/{name}"' in page
    assert "Nothing was asked yet." in page
    with browser.services.database.read() as session:
        row = neuronqueries.newest(session, "neuron", "fake-1")
    assert row is not None
    settled(browser)
    assert job(browser, "neuron").id == row.id  # type: ignore[union-attr]


def test_memberships_are_shown_strongest_first(browser: Browser) -> None:
    concepts = FakeEngine().library().concepts
    shared = sum((concept.memberships >= SMALLEST).astype(int) for concept in concepts)
    layer, index = np.argwhere(shared >= 2)[0].tolist()
    page = settled(browser, f"/neurons/fake-1/text.{layer}.{index}")
    mine = [(float(c.memberships[layer, index]), c.name) for c in concepts if c.memberships[layer, index] >= SMALLEST]
    names = [name for _, name in sorted(mine, key=lambda pair: (-pair[0], pair[1]))]
    assert re.findall(r'<a class="serif" href="/concepts/[^"]+" title="\w+">([^<]+)</a>', page) == names
    assert f"{len(names)} of 12 concepts" in page


def test_names_lead_to_the_loaded_models_page(browser: Browser) -> None:
    response = browser.http.get("/neurons/text.1.7", follow_redirects=False)
    assert response.headers["location"] == PAGE
    assert browser.http.get("/neurons/fake-1/text.01.007", follow_redirects=False).headers["location"] == PAGE
    for path, words in (
        ("/neurons/fake-1/text.1.64", "indices to 63"), ("/neurons/fake-1/nonsense", "text.LAYER.INDEX"),
        ("/neurons/elsewhere/text.0.0", "No model of revision"),
    ):  # fmt: skip
        response = browser.http.get(path)
        assert response.status_code == 404
        assert words in response.text
    page = settled(browser, "/neurons/fake-1/text.0.0")
    assert re.findall(r'title="(text\.\d\.\d+)">\w|title="(text\.\d\.\d+)">', page)
    assert 'href="/neurons/fake-1/text.0.1"' in page
    assert 'href="/neurons/fake-1/text.1.0"' in page
    assert "text.-1.0" not in page


def test_a_survey_fills_the_page(browser: Browser, pictures: Path) -> None:
    with pytest.raises(AssertionError):
        survey(browser)  # nothing was asked yet
    url = browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    browser.ask("What lives on ice?")
    assert "Survey 2 questions" in settled(browser)
    row = survey(browser)
    page = settled(browser)
    assert row.result is not None
    stored = surveying.record(surveying.path_of(browser.services.store, row.result["file"]), 64 + 7)
    assert stored is not None
    with browser.services.database.read() as session:
        cases = surveying.asked(session, "fake-1")
    pixels = browser.services.store.load(cases[1][0])
    expected = FakeEngine().survey([Question(None, cases[0][1]), Question(pixels, cases[1][1])]).neurons[64 + 7]
    assert stored.tobytes() == expected.tobytes()
    assert page.count("row 1, column 1:") == 1
    assert f'href="{url}">What is on the right?</a>' in page
    assert "<mark>" in page
    assert "Over 2 questions of runs" in page
    assert "That is few" in page
    assert "Survey 2 questions" not in page
    browser.ask("And this?")
    assert "More was asked since." in settled(browser)
    first = surveying.path_of(browser.services.store, row.result["file"])
    again = survey(browser)
    assert again.id != row.id
    assert not first.exists()
    assert len(list(first.parent.iterdir())) == 1
    assert "Over 3 questions of runs" in settled(browser)


def test_a_lost_survey_is_as_none(browser: Browser, pictures: Path) -> None:
    browser.ask("What is it?", (pictures / "ok.png").read_bytes())
    row = survey(browser)
    assert row.result is not None
    settled(browser)
    surveying.path_of(browser.services.store, row.result["file"]).unlink()
    page = settled(browser)
    assert "Pictures that it answers to most" not in page


class Endless(FakeEngine):
    """Its survey goes on until it is cancelled."""

    def survey(self, *args: Any) -> Any:
        until(args[-1], bool)
        return super().survey(*args)


def test_a_survey_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routes.neurons.PATIENCE", 0.01)
    with serving(tmp_path, Endless) as browser:
        for k in range(6):
            browser.ask(f"What is number {k}?")
        browser.http.post("/neurons/fake-1/survey", data={"neuron": "text.1.7"})
        row = job(browser, "survey")
        assert row is not None
        page = browser.http.get(PAGE).text
        assert f"/neurons/jobs/{row.id}/cancel" in page
        browser.http.post(f"/neurons/jobs/{row.id}/cancel", data={"neuron": "text.1.7"})
        until(lambda: job(browser, "survey"), lambda row: not row.live)
        assert job(browser, "survey").state == "cancelled"  # type: ignore[union-attr]
        page = settled(browser)
        assert "The last survey was cancelled." in page
        assert "Survey 6 questions" in page
        assert browser.http.post("/neurons/jobs/nothing/cancel", data={}).status_code == 422


def test_a_label_stands_in_the_list_of_a_run(browser: Browser) -> None:
    url = browser.ask("What lives on ice?")
    first = browser.data(url)["neurons"][0]["id"]
    browser.http.post(f"/neurons/fake-1/{first}/note", data={"label": "<i>icy</i> things"})
    called = re.findall(r'<span class="called" title="([^"]+)">([^<]+)</span>', browser.http.get(url).text)
    assert called == [("&lt;i&gt;icy&lt;/i&gt; things",) * 2]


def test_a_label_and_a_note_are_kept_escaped_and_limited(browser: Browser) -> None:
    said = {"label": "<b>round</b>\nthings", "note": "Line one\r\nline two"}
    response = browser.http.post(f"{PAGE}/note", data=said, follow_redirects=False)
    assert response.headers["location"] == PAGE
    page = browser.http.get(PAGE).text
    assert "&lt;b&gt;round&lt;/b&gt; things" in page
    assert "Line one\nline two</textarea>" in page
    found = browser.http.get("/search?q=round").text
    assert 'href="/neurons/fake-1/text.1.7"' in found
    assert "line two" in browser.http.get("/search?q=LINE").text
    assert "text.1.7" not in browser.http.get("/search?q=%25").text
    for field, limit in (("label", 80), ("note", 4000)):
        response = browser.http.post(f"{PAGE}/note", data={field: "x" * (limit + 1)})
        assert response.status_code == 422
        assert f"at most {limit}" in response.text
    browser.http.post(f"{PAGE}/note", data={"label": "\u200b", "note": ""})
    assert "text.1.7" not in browser.http.get("/search?q=round").text


def test_runs_in_which_it_was_ranked(browser: Browser, pictures: Path) -> None:
    url = browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    first = browser.data(url)["neurons"][0]["id"]
    shown = browser.http.get(url).text
    assert f'href="/neurons/fake-1/{first}"' in shown
    page = settled(browser, f"/neurons/fake-1/{first}")
    rows = page.split('class="ranked"')[1]
    assert f'href="{url}"' in rows
    assert '<td class="figure">1</td>' in rows


def test_search_by_token_needs_the_lens_of_all(browser: Browser) -> None:
    page = browser.http.get("/search?q=penguin").text
    assert 'href="/concepts/penguin"' in page
    assert "Read all neurons’ tokens" in page
    response = browser.http.post("/neurons/fake-1/promotions", data={"q": "penguin"}, follow_redirects=False)
    assert response.headers["location"] == "/search?q=penguin"
    done(browser, "promotions")
    page = browser.http.get("/search?q=penguin").text
    found = FakeEngine().promotions()
    token = next(k for k, text in found.texts.items() if text == " penguin")
    promoting = [f"text.{layer}.{index}" for layer, index, _ in np.argwhere(found.ids == token).tolist()]
    assert promoting
    hits = re.findall(HIT, page)
    assert len(promoting) <= neuronqueries.FOUND
    assert sorted(hits) == sorted(promoting)
    assert re.findall(HIT, browser.http.get("/search?q=zzz+Penguin").text) == hits, "words, where no token has them all"
    ranks = [int(rank) for rank in re.findall(r"number (\d) of its tokens", page)]
    assert ranks == sorted(ranks)
    assert "Read all neurons" not in page


def test_search_by_name_and_for_nothing(browser: Browser) -> None:
    assert 'href="/neurons/fake-1/text.3.63"' in browser.http.get("/search?q=text.3.63").text
    assert "Nothing is called that." in browser.http.get("/search?q=text.3.64").text
    assert "Nothing is called that." in browser.http.get("/search?q=zzz").text
    assert browser.http.get("/search").status_code == 200


def test_which_neurons_fire_inside_a_box(browser: Browser, pictures: Path) -> None:
    url = browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    assert f'href="{url}/fires"' in browser.http.get(url).text
    empty = browser.http.get(f"{url}/fires").text
    assert "Draw a box first." in empty
    width, height = map(int, re.findall(r"picture is (\d+) × (\d+) pixels", empty)[0])
    box = f"{url}/fires?left=0&top=0&right={width // 2}&bottom={height // 2}"
    page = settled(browser, box)
    with browser.services.database.read() as session:
        picture = surveying.asked(session, "fake-1")[0][0]
    question = Question(browser.services.store.load(picture), "What is on the right?")
    found = FakeEngine().fires(question, (0, 0, width // 2, height // 2))
    assert re.findall(r'<a href="/neurons/fake-1/(text\.\d+\.\d+)">', page) == [one.neuron for one in found.neurons]
    assert f"over {found.cells} patches" in page
    outside = browser.http.get(f"{url}/fires?left=9000&top=0&right=9001&bottom=5").text
    assert "holds no pixel" in outside
    assert "a number of pixels" in browser.http.get(f"{url}/fires?left=x&top=0&right=5&bottom=5").text
    narrow = settled(browser, f"{url}/fires?left=0&top=0&right=1&bottom=1")
    assert "No patch has its centre in that box." in narrow
    text = browser.ask("What lives on ice?")
    assert browser.http.get(f"{text}/fires").status_code == 404


@pytest.mark.parametrize(
    ("edges", "box"),
    [
        (("1", "2", "30", "40"), (1, 2, 30, 40)), (("30", "40", "1", "2"), (1, 2, 30, 40)),
        (("-5", "0", "999", "9.6"), (0, 0, 100, 10)), (("", "", "", ""), None), (("nan", "0", "1", "1"), None),
        (("1e999", "0", "1", "1"), None), (("5", "5", "5", "9"), None),
    ],
)  # fmt: skip
def test_boxes_are_put_in_order_and_clipped(edges: tuple[str, ...], box: tuple[int, ...] | None) -> None:
    found, message = search.box_of(edges, 100, 50)
    assert found == box
    assert bool(message) == (box is None and any(edges))


def test_snippets_mark_the_token_at_a_position() -> None:
    tokens = [["<s>", 1], ["<image>", 81], [" what", 1], [" lives", 1]]
    assert seen.snippet(tokens, 82) == ("<s>▢", " what", " lives")
    assert seen.snippet(tokens, 83) == ("<s>▢ what", " lives", "")
    assert seen.snippet(tokens, 99) == ("", "", "")


def test_another_models_neuron_shows_what_is_stored(browser: Browser) -> None:
    with browser.services.database.write() as session:
        session.add(
            ConceptRow(
                model_revision="other", library_revision="l", name="owl", kind="object", probes=1, cardinality=1.0,
                members=1, layers=[1.0], figures={"passes": 0.0}, recipe={},
            )
        )  # fmt: skip
        session.flush()
        owl = session.query(ConceptRow).filter_by(name="owl").one().id
        session.execute(
            insert(Base.metadata.tables["memberships"]), [{"concept_id": owl, "layer": 90, "index": 7, "mu": 0.8}]
        )
    page = browser.http.get("/neurons/other/text.90.7").text
    assert "a model that is not loaded now" in page
    assert "owl" in page
    assert "weak" in page
    assert "It is computed when the model" in page
    assert job(browser, "neuron") is None
    for path in ("survey", "promotions", "text.90.7/look"):
        response = browser.http.post(f"/neurons/other/{path}", data={"neuron": "text.90.7"})
        assert response.status_code == 422
        assert "takes the model to which the neuron belongs" in response.text
    browser.http.post("/neurons/other/text.90.7/note", data={"label": "night"})
    assert "night" in browser.http.get("/neurons/other/text.90.7").text


def test_the_number_of_queries_does_not_grow(browser: Browser, pictures: Path) -> None:
    """With one run and twelve concepts, or with many more of both."""
    browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    survey(browser)
    settled(browser)
    with counted(browser) as few:
        browser.http.get(PAGE)
    with browser.services.database.write() as session:
        for k in range(300):
            session.add(
                ConceptRow(
                    model_revision="fake-1", library_revision="l", name=f"made {k}", kind="object", probes=1,
                    cardinality=1.0, members=1, layers=[1.0], figures={}, recipe={},
                )
            )  # fmt: skip
        session.flush()
        made = [row.id for row in session.query(ConceptRow).filter(ConceptRow.name.like("made %"))]
        rows = [{"concept_id": concept, "layer": 1, "index": 7, "mu": 0.5} for concept in made]
        session.execute(insert(Base.metadata.tables["memberships"]), rows)
    with counted(browser) as many:
        page = browser.http.get(PAGE).text
    assert "of 312 concepts" in page
    assert len(re.findall(r">made \d+</a>", page)) == 300
    assert len(many) == len(few) <= 21
    with counted(browser) as found:
        browser.http.get("/search?q=made")
    assert len(found) <= 8
