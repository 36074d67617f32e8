"""The pages and fragments, with and without htmx."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import event, select, update

from app import formats
from app.tables import ConceptRow
from app.views.page import FRAGMENTS
from engine.contract import MODALITIES, Library, NeuronScore, Question
from engine.fake import FakeEngine
from tests.app.conftest import HTMX, Browser, serving

XSS = "<img src=x onerror=alert(1)>"


def test_ask_answer_and_inspect(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    page = shared.http.get(url).text
    for name in FRAGMENTS:
        assert f'id="{name}"' in page
    data = shared.data(url)
    assert data["answer"].split()[0] in page
    assert data["neurons"][0]["id"] in page
    assert data["concepts"][0]["name"] in page
    picture = re.search(r'src="(/pictures/\w+\.png)"', page)
    assert picture
    stored = shared.http.get(picture[1])
    assert stored.headers["content-type"] == "image/png"
    assert "immutable" in stored.headers["cache-control"]


def test_a_question_without_a_picture(shared: Browser) -> None:
    url = shared.ask("What lives on ice?")
    data = shared.data(url)
    assert data["heatmap"] is None
    assert data["provenance"]["picture"] is None
    assert shared.http.get(url).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/concepts", "/concepts/traffic%20light", "/models", "/concepts?q=bear"]
)
def test_every_page_is_served(shared: Browser, path: str) -> None:
    response = shared.http.get(path)
    assert response.status_code == 200
    assert "HX-Request" in response.headers["Vary"]


def test_concepts_can_be_searched_and_filtered(shared: Browser) -> None:
    assert "polar bear" in shared.http.get("/concepts?q=bear").text
    assert "pizza" not in shared.http.get("/concepts?q=bear").text
    assert "polar bear" not in shared.http.get("/concepts?kind=colour").text
    assert "%" not in re.findall(r"None of the \d+", shared.http.get("/concepts?q=%25").text)[0]


def test_htmx_gets_the_fragment_it_targets(shared: Browser) -> None:
    url = shared.ask()
    response = shared.http.get(f"{url}?sort=image", headers={**HTMX, "HX-Target": "neurons"})
    assert response.text.lstrip().startswith('<section id="neurons"')
    assert "<html" not in response.text
    two = shared.http.get(f"{url}?fragment=picture,answer").text
    assert 'id="picture"' in two
    assert 'id="answer"' in two
    assert 'id="steer"' not in two
    assert "<html" in shared.http.get(url, headers={**HTMX, "HX-Target": "run"}).text


def test_a_post_by_htmx_sends_the_browser_on(shared: Browser) -> None:
    response = shared.http.post("/runs", data={"question": "What is it?"}, headers=HTMX, follow_redirects=False)
    assert response.status_code == 200
    assert response.headers["HX-Redirect"].startswith("/runs/")


def test_another_span_is_computed_by_looking_at_it(browser: Browser, pictures: Path) -> None:
    url = browser.ask("Describe it.", (pictures / "ok.png").read_bytes())
    whole = browser.data(url)
    assert 'data-status="422"' in browser.http.get(f"{url}?span=0-99").text
    part = f"{url}?span=0-2"
    assert browser.http.get(part).status_code == 200
    assert "event: end" in browser.http.get(f"{url}/events?span=0-2").text
    data = browser.http.get(f"{url}.json?span=0-2").json()
    assert data["provenance"]["target"]["span"] == [0, 2]
    assert data["neurons"] != whole["neurons"]
    assert "log-probability" in browser.http.get(part).text
    direct = f"{url}?method=direct"
    browser.http.get(direct)
    assert "event: end" in browser.http.get(f"{url}/events?method=direct").text
    page = browser.http.get(direct).text
    assert "logit" in page
    assert "Choose gradient to see one" in page


def test_posting_a_span_does_the_same_and_repeats_a_failed_one(browser: Browser) -> None:
    url = browser.ask("Describe it.")
    response = browser.http.post(f"{url}/attributions", data={"span": "1-3"}, follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == f"{url}?span=1-3"
    assert browser.http.post(f"{url}/attributions", data={"span": "3-1"}).status_code == 422


def test_heat_maps_of_concepts_and_neurons(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    data = shared.data(url)
    concept, neuron = data["concepts"][0]["name"], data["neurons"][3]["id"]
    shown = shared.http.get(url, params={"heat": f"concept:{concept}", "fragment": "picture"}).text
    assert shown.count("<rect") >= 81
    with shared.services.database.read() as session:
        members = session.scalars(select(ConceptRow.members).where(ConceptRow.name == concept)).first()
    assert f"Contribution of {concept} ({members} neurons) to “{data['answer']}”" in shown
    shown = shared.http.get(url, params={"heat": f"neuron:{neuron}", "fragment": "picture"}).text
    assert f"Contribution of {neuron}" in shown
    off = shared.http.get(url, params={"heat": "off", "fragment": "picture"}).text
    assert "row 1, column 1" not in off
    assert shared.http.get(url, params={"heat": "concept:nonsense"}).status_code == 422
    assert shared.http.get(url, params={"heat": "neuron:text.0.9999"}).status_code == 422


def test_the_heat_map_shows_what_carried_it(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    data = shared.data(url)
    shown = shared.http.get(f"{url}?fragment=picture").text
    assert f"The neurons that carried “{data['answer']}”, each by its degree. Strongest patch: row" in shown
    assert shared.http.get(f"{url}?heat=evidence&fragment=picture").text == shown
    group = shown.split('aria-label="Heat map of"')[1].split("</p>")[0]
    choices = re.findall(r">([^<>]+)</a>", group)
    concepts = [concept["name"] for concept in data["concepts"][:4]]
    assert choices == ["what carried it", *concepts, "all neurons", "input", "off"]
    assert re.search(r'aria-current="true">what carried it<', shown)
    everything = shared.http.get(f"{url}?heat=all&fragment=picture").text
    assert f"Net contribution of all 256 neurons together to “{data['answer']}”. Strongest" in everything
    assert data["heatmap"]["of"] == "evidence"
    assert len(data["heatmap_net"]) == len(data["heatmap"]["rows"])
    for rows, page in ((data["heatmap"]["rows"], shown), (data["heatmap_net"], everything)):
        assert f"row 1, column 1: {formats.signed(rows[0][0])}" in page


def test_both_answers_heat_maps_show_what_carried_them(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    child = shared.turn(url, shared.data(url)["answer"], -1)
    steered = shared.settled(child)["heatmap"]["rows"]
    panel = shared.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}&fragment=steered").text
    assert panel.count("what carried it, one scale") == 2
    assert f"row 1, column 1: {formats.signed(steered[0][0])}" in panel


def test_a_concepts_map_says_how_many_neurons_it_sums_over(browser: Browser, pictures: Path) -> None:
    """All members, though a steering turns 300 at most."""
    url = browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    with browser.services.database.write() as session:
        session.execute(update(ConceptRow).where(ConceptRow.name == "penguin").values(members=1234))
    assert "Contribution of penguin (1,234 neurons)" in browser.http.get(f"{url}?heat=concept:penguin").text


def test_shares_are_those_of_single_neurons(shared: Browser) -> None:
    """Parts of one sign in one neuron and of the other in the next do not cancel."""
    url = shared.ask("What is here?")
    engine = FakeEngine()
    asked = engine.ask(Question(None, "What is here?"))
    text = shared.http.get(f"{url}?fragment=neurons").text
    line = re.search(r'<p class="shares" title="([^"]+)">(.*?)</p>', text, re.DOTALL)
    assert line
    assert "last of which predicts the first token" in line[1]
    told = re.sub(r"<[^>]+>", "", line[2])
    for name, part in zip(MODALITIES, asked.attribution.modality_shares, strict=True):
        assert f"{name} {formats.percent(part).replace('<', '&lt;')}" in told


def test_filters_and_orders(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())

    def listed(**query: str) -> list[str]:
        text = shared.http.get(url, params={"fragment": "neurons", "rows": "100", **query}).text
        return re.findall(r'id="row-(text\.\d+\.\d+)"', text)

    everything = listed()
    assert len(everything) == 100
    assert everything == [neuron["id"] for neuron in shared.data(url)["neurons"]]
    assert {name.split(".")[1] for name in listed(layer="2")} == {"2"}
    assert set(listed(modality="image")) < set(everything)
    assert 0 < len(listed(concept="penguin")) < 100
    assert [name.split(".")[1] for name in listed(sort="layer")] == sorted(name.split(".")[1] for name in everything)
    assert len(listed(rows="5")) == 5


def test_adding_to_the_panel(shared: Browser) -> None:
    url = shared.ask()
    text = shared.http.get(url, params={"add": ["text.1.5", "blue"], "fragment": "steer"}).text
    assert 'name="neuron:text.1.5"' in text
    assert 'name="concept:blue"' in text
    wrong = shared.http.get(url, params={"add": "pengiun", "fragment": "steer"}).text
    assert "Did you mean penguin" in wrong
    assert "its layers go from 0 to 3" in shared.http.get(url, params={"add": "text.9.0", "fragment": "steer"}).text


def test_what_people_type_is_shown_as_text(shared: Browser) -> None:
    url = shared.ask(XSS)
    for page in (url, "/runs", "/"):
        text = shared.http.get(page).text
        assert XSS not in text
        assert "&lt;img src=x" in text
    data = {"question": "What?", "picture_hash": XSS}
    assert XSS not in shared.http.post("/runs", data=data).text
    assert XSS not in shared.http.get(url, params={"add": XSS}).text
    assert XSS not in shared.http.get(f"/concepts/{XSS}").text
    assert XSS not in shared.http.get(f"/runs/{XSS}").text


class Hostile(FakeEngine):
    """A model whose library holds a concept with a dangerous name."""

    def library(self) -> Library:
        known = super().library()
        named = dataclasses.replace(known.concepts[0], name=XSS)
        return Library("hostile", (named, *known.concepts[1:]))


def test_a_concept_may_be_called_anything(tmp_path: Path) -> None:
    with serving(tmp_path, Hostile) as browser:
        url = browser.ask()
        pages = [f"/concepts/{quote(XSS, safe='')}", "/concepts", f"{url}?add={quote(XSS)}"]
        for page in pages:
            response = browser.http.get(page)
            assert response.status_code == 200
            assert XSS not in response.text
            assert "&lt;img src=x" in response.text
        odd = browser.http.get("/concepts/a%2Fb%3Fc")
        assert odd.status_code == 404


def test_figures_are_json_without_nan(shared: Browser) -> None:
    text = shared.http.get(shared.ask()).text
    island = re.search(r'<script type="application/json" id="where-figure">(.*?)</script>', text, re.DOTALL)
    assert island

    def refuse(_: str) -> Any:
        raise AssertionError("NaN or infinity in JSON")

    figure = json.loads(island[1], parse_constant=refuse)
    assert len(figure["data"][0]["z"]) == 4


def test_a_run_list_has_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.queries.PER_PAGE", 3)
    with serving(tmp_path) as browser:
        for number in range(5):
            browser.ask(f"What is number {number}?")
        first = browser.http.get("/runs").text
        assert "number 4" in first
        assert "number 1" not in first
        older = re.search(r'href="(/runs\?before=\w+)"', first)
        assert older
        second = browser.http.get(older[1]).text
        assert "number 1" in second
        assert "number 4" not in second


@pytest.mark.parametrize(
    ("path", "limit"), [("run", 15), ("steered", 18), ("/runs", 3), ("/", 3), ("/concepts", 4), ("/presets", 2)]
)
def test_pages_take_a_fixed_number_of_queries(browser: Browser, pictures: Path, path: str, limit: int) -> None:
    url = browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    for number in range(4):
        browser.ask(f"What is number {number}?")
    if path == "steered":
        child = browser.turn(url, "penguin", -1)
        browser.settled(child)
        path, url = "run", f"{url}?steer={child.rsplit('/', 1)[1]}"
    statements = []

    def count(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    engine = browser.services.database.engine
    event.listen(engine, "before_cursor_execute", count)
    try:
        browser.http.get(url if path == "run" else path)
    finally:
        event.remove(engine, "before_cursor_execute", count)
    selects = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(selects) <= limit, "\n\n".join(selects)


def test_exports(shared: Browser, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    data = shared.data(url)
    assert set(data) >= {"model", "answer", "tokens", "neurons", "concepts", "heatmap", "steered", "timing_ms"}
    assert data["heatmap"]["box"] == [0.0, 0.0, 320.0, 240.0]
    assert len(data["heatmap"]["rows"]) == 9
    assert data["provenance"]["generation"] == {"greedy": True, "max_new_tokens": 32}
    script = shared.http.get(f"{url}.py").text
    compile(script, "run.py", "exec")
    assert repr("What is on the right?") in script
    small = NeuronScore(1, 7, 3.26e-6, (3e-6, 2.5e-7, 0.0, 1e-8), None, 0.1)
    exec(script[script.index("for neuron in") :], {"attribution": SimpleNamespace(neurons=(small,))})  # noqa: S102
    assert capsys.readouterr().out == "text.1.7 3.26e-06 3e-06 2.5e-07 0 1e-08\n", "small scores keep three digits"
    missing = shared.http.get("/runs/nosuchrun.json")
    assert missing.status_code == 404
    assert "no run" in missing.json()["error"]
