"""Two states side by side."""

import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import event, update

from app.tables import Run
from app.views import sides
from engine.contract import ModelInfo, Question, Target
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until


def run_id(url: str) -> str:
    return url.rsplit("/", 1)[1]


def comparison(browser: Browser, a: str, b: str, **more: str) -> dict[str, Any]:
    """The figures, once both sides are there."""
    query = {"a": a, "b": b, **more}
    response = until(lambda: browser.http.get("/compare.json", params=query), lambda got: got.status_code != 202)
    assert response.status_code == 200, response.text
    return dict(response.json())


def page(browser: Browser, a: str, b: str, **more: str) -> str:
    comparison(browser, a, b)
    response = browser.http.get("/compare", params={"a": a, "b": b, **more})
    assert response.status_code == 200, response.text
    return response.text


def opacities(text: str) -> list[float]:
    """The largest opacity of each heat map of a page."""
    maps = re.findall(r'<svg class="heat".*?</svg>', text, re.DOTALL)
    return [max(map(float, re.findall(r'fill-opacity="([\d.]+)"', one)), default=0.0) for one in maps]


@pytest.fixture
def pair(shared: Browser, pictures: Path) -> tuple[str, str]:
    """Two questions about one picture."""
    picture = (pictures / "ok.png").read_bytes()
    return run_id(shared.ask("What is on the right?", picture)), run_id(shared.ask("Describe it.", picture))


def test_the_figures_are_those_of_the_scores(shared: Browser, pictures: Path, pair: tuple[str, str]) -> None:
    """Against the engine's own scores and the definitions, written out."""
    data = comparison(shared, *pair, top="50")
    engine, scores = FakeEngine(), []
    pixels = np.asarray(Image.open(pictures / "ok.png").convert("RGB"))
    for side in ("a", "b"):
        ids = [token["id"] for token in shared.data(f"/runs/{data[side]['run']}")["tokens"]]
        question = Question(pixels, data[side]["question"])
        scores.append(engine.attribute(question, ids, Target(), top=50).scores)
    names = [f"text.{layer}.{index}" for layer, index in np.ndindex(scores[0].shape)]
    ranked = [[names[k] for k in np.argsort(-np.abs(one.ravel()), kind="stable")] for one in scores]
    first, second = (set(order[:50]) for order in ranked)
    groups = {name: [row["id"] for row in rows] for name, rows in data["neurons"].items()}
    assert set(groups["both"]) == first & second
    assert groups["only_a"] == [name for name in ranked[0][:50] if name not in second]
    assert groups["only_b"] == [name for name in ranked[1][:50] if name not in first]
    overlap = data["overlap"]
    assert overlap["shared"] == len(first & second) > 0
    assert overlap["jaccard"] == pytest.approx(len(first & second) / len(first | second))
    union = [names.index(name) for name in first | second]
    a, b = (np.argsort(np.argsort(one.ravel()[union])) for one in scores)
    assert overlap["spearman"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    shares = [np.maximum(one.ravel(), 0) / np.maximum(one, 0).sum() for one in scores]
    assert overlap["similarity"] == pytest.approx(np.minimum(*shares).sum() / np.maximum(*shares).sum(), rel=1e-5)
    weaker = [min(abs(row["a"]["score"]), abs(row["b"]["score"])) for row in data["neurons"]["both"]]
    assert weaker == sorted(weaker, reverse=True)
    for row in data["neurons"]["only_a"]:
        place = names.index(row["id"])
        assert row["b"]["score"] == pytest.approx(float(scores[1].ravel()[place]))
        assert row["b"]["rank"] == ranked[1].index(row["id"]) + 1 > 50


def test_both_heat_maps_have_one_scale(shared: Browser, pair: tuple[str, str]) -> None:
    for heat in ("", "all", "layer:2", "concept:penguin"):
        text = page(shared, *pair, heat=heat)
        largest = comparison(shared, *pair, heat=heat)["heatmap"]["largest"]
        assert largest[0] == largest[1]
        strongest = opacities(text)
        assert max(strongest) == 1.0
        assert min(strongest) < 0.999
        own = page(shared, *pair, heat=heat, scale="own")
        assert opacities(own) == [1.0, 1.0]
        assert own.count("Its own scale: ±") == 2
        assert "Its own scale" not in text


def test_scores_of_two_methods_share_no_scale_but_ranks_do(shared: Browser, pair: tuple[str, str]) -> None:
    a, b = pair[0], f"{pair[0]}?method=integrated"
    text = page(shared, a, b)
    assert "The scores are not comparable: side A has gradient of a log-probability, side B integrated" in text
    assert "each side has its own scale" in text
    assert ">one scale</a>" not in text
    assert opacities(text) == [1.0, 1.0]
    data = comparison(shared, a, b)
    assert not data["comparable"]
    assert data["overlap"]["shared"] > 0
    direct = page(shared, a, f"{a}?method=direct")
    assert "side B direct of a logit" in direct
    assert "has no heat map of the picture" in direct
    logit = page(shared, a, f"{a}?quantity=logit")
    assert "gradient of a logit." in logit


def test_a_neuron_is_shown_on_both_sides(shared: Browser, pair: tuple[str, str]) -> None:
    neuron = comparison(shared, *pair)["neurons"]["both"][0]["id"]
    text = page(shared, *pair, heat=f"neuron:{neuron}")
    assert text.count(f"Contribution of {neuron}") == 2
    assert re.search(r'aria-current="true">contribution<', text)
    activation = page(shared, *pair, heat=f"activation:{neuron}")
    assert activation.count(f"Activation of {neuron}") == 2
    assert f"/runs/{pair[1]}?add={neuron}" in text
    ends = page(shared, pair[0], f"{pair[0]}?method=integrated", heat=f"activation:{neuron}")
    assert ">one scale</a>" in ends  # activations are the same whatever explains them


def test_what_is_missing_is_computed(browser: Browser, pictures: Path) -> None:
    a = run_id(browser.ask("Describe it.", (pictures / "ok.png").read_bytes()))
    text = page(browser, f"{a}?span=0-1", f"{a}?span=1-2")
    assert "every 1s" not in text
    assert "“the”, 1 of 16 tokens" in text
    assert "“picture”, 1 of 16 tokens" in text


def test_a_comparison_waits_for_a_run(slow: Browser) -> None:
    done = run_id(slow.ask("What is it?"))
    running = run_id(slow.ask("Describe everything.", wait=False))
    response = slow.http.get("/compare", params={"a": done, "b": running})
    assert response.status_code == 200
    assert 'hx-trigger="every 1s"' in response.text
    assert '<noscript><meta http-equiv="refresh" content="1"></noscript>' in response.text
    assert "its answer follows" in response.text or "Its neurons are being found" in response.text
    assert slow.http.get("/compare.json", params={"a": done, "b": running}).status_code == 202
    assert comparison(slow, done, running)["b"]["answer"]


def test_every_spelling_of_an_address(shared: Browser, pair: tuple[str, str]) -> None:
    a, b = pair
    shared.http.get(f"/runs/{b}?span=0-1")
    canonical = "/compare?" + urlencode({"a": a, "b": f"{b}?span=0-1"}, quote_via=quote)
    state = "?span=0-1&sort=image&panel=abc&rows=5"
    for address in (f"{b}{state}", f"/runs/{b}{state}", f" http://localhost:8000/runs/{b}{state}#neurons "):
        response = shared.http.get("/compare", params={"a": a, "b": address}, follow_redirects=False)
        assert response.status_code == 303
        assert response.headers["location"] == canonical
    assert shared.http.get(canonical, follow_redirects=False).status_code == 200
    with_heat = shared.http.get("/compare", params={"a": f"/runs/{a}?heat=all", "b": b}, follow_redirects=False)
    assert with_heat.headers["location"] == f"/compare?a={a}&b={b}&heat=all"
    off = shared.http.get("/compare", params={"a": f"/runs/{a}?heat=off", "b": b}, follow_redirects=False)
    assert off.headers["location"] == f"/compare?a={a}&b={b}"


@pytest.mark.parametrize(
    ("address", "status", "told"),
    [
        ("http://example.org/x", 422, "is not the address of a run’s page"),
        ("<img src=x>", 422, "for example k3v9x2mmqa?span=0-1&amp;method=direct"),
        ("nosuchrun", 404, "There is no run “nosuchrun”"),
        ("{a}?span=0-99", 422, "are not a span of this answer"),
        ("{a}?method=magic", 422, "There is no method “magic”"),
        ("{a}?say=%00", 422, "is not the address"),
    ],
)
def test_a_wrong_address_keeps_the_other_side(
    shared: Browser, pair: tuple[str, str], address: str, status: int, told: str
) -> None:
    typed = address.format(a=pair[0])
    for query in ({"a": pair[1], "b": typed}, {"a": typed, "b": pair[1]}):
        response = shared.http.get("/compare", params=query)
        assert response.status_code == status
        assert told in response.text
        kept, missing = ("a", "b") if query["a"] == pair[1] else ("b", "a")
        assert f'<input type="hidden" name="{kept}" value="{pair[1]}">' in response.text
        assert f'id="address-{missing}"' in response.text
        assert "<img src=x>" not in response.text
    assert shared.http.get("/compare.json", params={"a": typed, "b": pair[1]}).status_code == status


def test_one_run_alone_is_offered_company(browser: Browser, pictures: Path) -> None:
    picture = (pictures / "ok.png").read_bytes()
    a = browser.ask("What is on the right?", picture)
    alike = browser.ask("Describe it.", picture)
    same_question = browser.ask("What is on the right?")
    for number in range(2):
        browser.ask(f"What is number {number}?")
    comparison(browser, run_id(a), f"{run_id(a)}?method=direct")
    child = browser.turn(a, browser.data(a)["answer"], -1)
    browser.settled(child)
    text = browser.http.get("/compare", params={"a": run_id(a)}).text
    assert f'value="{run_id(a)}"' in text
    runs = re.findall(r'href="/compare\?a=[^"]*b=([^"]*)"', text)
    assert runs[:2] == [f"{run_id(a)}%3Fmethod%3Ddirect", run_id(child)]
    assert runs[2:5] == [run_id(child), run_id(alike), run_id(same_question)]
    assert len(runs) == 7
    of_child = browser.http.get("/compare", params={"b": run_id(child)}).text
    assert f'href="/compare?a={run_id(a)}&amp;b={run_id(child)}">the original run' in of_child


def test_every_suggestion_leads_to_what_it_says(browser: Browser) -> None:
    a = run_id(browser.ask("Describe it."))
    for state in ("span=1-3", "say=%20a%20cat", "span=2-5&against=dog&exact=1", "quantity=logit", "leave=special"):
        comparison(browser, a, f"{a}?{state}")
    text = browser.http.get("/compare", params={"a": a}).text
    offered = re.findall(r'href="(/compare\?a=[^"]*)">(“[^<]*, by gradient)<', text)
    assert len(offered) == 5
    for href, label in offered:
        with browser.services.database.engine.connect() as before:
            count = before.exec_driver_sql("select count(*) from attributions").scalar()
        shown = browser.http.get(href.replace("&amp;", "&"))
        assert shown.status_code == 200
        assert f"<dd>{label.removesuffix(', by gradient')}</dd>" in shown.text
        with browser.services.database.engine.connect() as after:
            assert after.exec_driver_sql("select count(*) from attributions").scalar() == count


def test_without_a_run_the_page_teaches(shared: Browser, pair: tuple[str, str]) -> None:
    text = shared.http.get("/compare").text
    assert "Two pictures, two questions, two targets" in text
    assert 'id="address-a"' in text
    assert 'id="address-b"' in text
    assert f'href="/compare?a={pair[0]}"' in text


def test_two_runs_are_ticked_in_the_list(shared: Browser, pair: tuple[str, str]) -> None:
    a, b = (f"/runs/{one}" for one in pair)
    text = shared.http.get("/runs").text
    assert f'<input type="checkbox" name="run" value="{a}"' in text
    two = shared.http.get("/compare", params={"run": [a, b]})
    assert two.url.path == "/compare"
    assert dict(two.url.params) == {"a": pair[0], "b": pair[1]}
    assert "Carried both" in two.text
    assert 'id="address-b"' in shared.http.get("/compare", params={"run": [a]}).text
    three = shared.http.get("/compare", params={"run": [a, b, a]})
    assert three.status_code == 422
    assert "3 runs are ticked" in three.text


def test_a_runs_page_leads_to_its_comparison(shared: Browser, pair: tuple[str, str]) -> None:
    text = shared.http.get(f"/runs/{pair[1]}?span=0-1&heat=all").text
    found = re.search(r'<a href="(/compare\?a=[^"]+)" data-compare', text)
    assert found
    chosen = shared.http.get(found[1]).text
    assert "“the”, 1 of 16 tokens" in chosen
    assert '<input type="hidden" name="heat" value="all">' in chosen


def test_the_same_state_twice_is_said(shared: Browser, pair: tuple[str, str]) -> None:
    whole = len(shared.data(f"/runs/{pair[1]}")["tokens"])
    for other in (pair[1], f"{pair[1]}?span=0-{whole}"):
        text = page(shared, pair[1], other)
        assert "the same state of the same run" in text
        data = comparison(shared, pair[1], other)
        assert data["overlap"]["jaccard"] == 1
        assert data["overlap"]["similarity"] == pytest.approx(1)
    assert "the same state" not in page(shared, *pair)


def test_swapped_sides_have_the_same_figures(shared: Browser, pair: tuple[str, str]) -> None:
    there, back = comparison(shared, *pair), comparison(shared, *reversed(pair))
    assert there["overlap"] == pytest.approx(back["overlap"])
    assert there["neurons"]["only_a"][0]["a"] == back["neurons"]["only_b"][0]["b"]
    swap = f'href="/compare?a={pair[1]}&amp;b={pair[0]}"'
    assert swap in page(shared, *pair)


def test_a_question_without_a_picture(shared: Browser, pair: tuple[str, str]) -> None:
    text_only = run_id(shared.ask("What lives on ice?"))
    mixed = page(shared, text_only, pair[0])
    assert "Asked without a picture" in mixed
    assert len(opacities(mixed)) == 1
    both = page(shared, text_only, run_id(shared.ask("What is a bear?")))
    assert 'class="heat-bar"' not in both
    assert "Carried both" in both


def test_a_run_that_failed_is_still_shown(browser: Browser) -> None:
    good, bad = run_id(browser.ask("What is it?")), run_id(browser.ask("Describe it."))
    with browser.services.database.write() as session:
        session.execute(update(Run).where(Run.id == bad).values(state="failed", error="Out of memory.", answer=None))
    response = browser.http.get("/compare", params={"a": good, "b": bad})
    assert response.status_code == 200
    assert "This run failed, so its neurons were not found. Out of memory." in response.text
    assert "every 1s" not in response.text
    assert "Neurons are compared once both sides have them" in response.text
    data = browser.http.get("/compare.json", params={"a": good, "b": bad}).json()
    assert data["overlap"] is None
    assert data["neurons"] is None


def test_a_steered_run_beside_its_original(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    answer = shared.data(url)["answer"]
    child = shared.turn(url, answer, -1)
    shared.settled(child)
    text = page(shared, run_id(url), run_id(child))
    assert f"steered: {answer} λ −1" in text
    silenced = comparison(shared, run_id(url), run_id(child), top="100")["neurons"]["only_a"]
    assert any(row["b"] == {"score": 0.0, "rank": None} for row in silenced)


class Other(FakeEngine):
    """Another model, of another size."""

    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), revision="fake-2", name="other")


def test_neurons_of_two_models_are_never_compared(tmp_path: Path, pictures: Path) -> None:
    picture = (pictures / "ok.png").read_bytes()
    with serving(tmp_path) as browser:
        a = run_id(browser.ask("What is on the right?", picture))
    with serving(tmp_path, Other) as browser:
        b = run_id(browser.ask("What is on the right?", picture))
        assert a != b
        text = page(browser, a, b)
        assert "answered by different models" in text
        assert "so there is no list of them" in text
        assert "fake, fake-1" in text
        assert "other, fake-2" in text
        data = comparison(browser, a, b)
        assert not data["one_model"]
        assert data["overlap"] is None
        assert data["neurons"] is None
        assert len(opacities(text)) == 2
        assert all(row["similarity_a"] is not None for row in data["concepts"])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"heat": "input"}, "A comparison has no heat map “input”"),
        ({"heat": "concept:pengiun"}, "Did you mean penguin"),
        ({"heat": "layer:99"}, "There is no layer 99 on either side"),
        ({"heat": "neuron:text.0.9999"}, "There is no neuron"),
        ({"top": "7"}, "“7” strongest neurons"),
        ({"scale": "odd"}, "There is no scale “odd”"),
    ],
)
def test_a_choice_that_does_not_exist(shared: Browser, pair: tuple[str, str], query: dict[str, str], told: str) -> None:
    response = shared.http.get("/compare", params={"a": pair[0], "b": pair[1], **query})
    assert response.status_code == 422
    assert told in response.text
    assert all(f'href="/runs/{run}"' in response.text for run in pair), "what was compared stays"
    assert f'name="a" value="{pair[0]}"' in shared.http.get("/compare", params={"a": pair[0], **query}).text


def test_json_needs_two_sides(shared: Browser, pair: tuple[str, str]) -> None:
    response = shared.http.get("/compare.json", params={"a": pair[0]})
    assert response.status_code == 422
    assert "needs two addresses" in response.json()["error"]


def test_addresses_are_read_back() -> None:
    for text in ("abc2", "abc2?span=0-1&method=direct", "abc2?say=%20a%20%26%20b&exact=1&leave=special"):
        side, _ = sides.read(text)
        assert side.address == text
        assert sides.read(f"http://localhost/runs/{side.address}")[0] == side


def queries(browser: Browser, ask: Callable[[], Any]) -> list[str]:
    statements: list[str] = []

    def count(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    engine = browser.services.database.engine
    event.listen(engine, "before_cursor_execute", count)
    try:
        ask()
    finally:
        event.remove(engine, "before_cursor_execute", count)
    return [statement for statement in statements if statement.startswith("SELECT")]


def test_a_comparison_takes_no_more_queries_than_two_pages(shared: Browser, pair: tuple[str, str]) -> None:
    """However many runs, neurons and concepts there are; the choice takes four more than a page."""
    query = {"a": pair[0], "b": pair[1]}
    comparison(shared, *pair)
    one = [queries(shared, lambda path=f"/runs/{run}": shared.http.get(path)) for run in pair]
    for _ in range(3):
        shared.ask(f"What is {time.monotonic()}?")
    both = queries(shared, lambda: shared.http.get("/compare", params={**query, "top": "100"}))
    assert len(both) <= len(one[0]) + len(one[1])
    chosen = queries(shared, lambda: shared.http.get("/compare", params={"a": pair[0]}))
    assert len(chosen) <= len(one[0]) + 4
    assert len(queries(shared, lambda: shared.http.get("/compare"))) == 2
