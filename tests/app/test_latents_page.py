"""The page of one latent: survey, pictures, labels, history, neighbours; exact ablation of a ranking; what the search
and the neuron page know of latents."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import figures_latents, formats, latentqueries, neuronqueries, surveying
from app.tables import JobRow
from app.views import exact as view
from app.views import latent as latent_view
from engine.contract import Floats, Question, Target, saes, spearman
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until
from tests.app.measuring import ended
from tests.app.test_compare import queries
from tests.app.test_latents import SAE, Without, card, rank

Pages = Callable[[int], str]


def page_of(index: int) -> str:
    return f"/latents/fake-1/sae.{SAE}.{index}"


def settled(browser: Browser, path: str) -> str:
    """A page once it asks for nothing any more, on one line."""
    text = until(lambda: browser.http.get(path).text, lambda text: "every 1s" not in text)
    return " ".join(html.unescape(text).split())


def done(browser: Browser, kind: str) -> JobRow:
    def row() -> JobRow | None:
        with browser.services.database.read() as session:
            return neuronqueries.newest(session, kind, "fake-1")

    found: JobRow = until(row, lambda row: row is not None and not row.live)
    assert found.state == "done", found.error
    return found


def survey(browser: Browser, index: int = 7) -> JobRow:
    name = f"sae.{SAE}.{index}"
    response = browser.http.post("/latents/fake-1/survey", data={"name": name}, follow_redirects=False)
    assert response.status_code == 303, response.text
    assert response.headers["location"] == f"{page_of(index)}#seen"
    return done(browser, "latentsurvey")


def listed(browser: Browser, url: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.http.get(f"{url}/latents.json", params={"job": job}).json()["latents"]
    return found


@pytest.fixture(scope="module")
def picture(pictures: Path) -> bytes:
    return (pictures / "ok.png").read_bytes()


def test_a_survey_fills_the_page(browser: Browser, picture: bytes) -> None:
    response = browser.http.post("/latents/fake-1/survey", data={"name": f"sae.{SAE}.7"})
    assert response.status_code == 422
    assert "nothing to survey yet" in response.text
    url = browser.ask("What is on the right?", picture)
    browser.ask("What lives on ice?")
    assert "Survey 2 questions" in settled(browser, page_of(7))
    row = survey(browser)
    assert row.result is not None
    with browser.services.database.read() as session:
        cases = surveying.asked(session, "fake-1")
    asked = [Question(browser.services.store.load(name) if name else None, text) for name, text, _ in cases]
    expected = FakeEngine().latent_survey(SAE, asked).neurons
    stored = np.load(surveying.path_of(browser.services.store, row.result["file"]))
    assert stored.tobytes() == expected.tobytes()
    index = int(expected["value"][:, 0, 0].argmax())
    text = settled(browser, page_of(index))
    assert "Over 2 questions of runs" in text
    assert "of every latent" not in text, "it is there: nothing is taught any more"
    assert f'href="{url}">What is on the right?</a>' in text
    (seen,) = FakeEngine().seen_latents(SAE, [index], asked)
    (drawn,) = [one.heat for one in seen if one.heat is not None]
    cells = re.findall(r'fill-opacity="([\d.]+)"><title>row (\d+), column (\d+)', text)
    for opacity, line, column in cells:
        assert float(opacity) == pytest.approx(drawn[int(line) - 1, int(column) - 1] / drawn.max(), abs=2e-3)
    assert len(cells) == drawn.size
    active = f"{100 * expected[index]['positive'][0]:.0f} %"
    assert re.search(rf'<th scope="row">active</th><td class="figure">{active}', text)
    assert "More was asked since." not in text
    assert "Survey" not in re.findall(r'<button type="submit" class="small">([^<]+)', text)


def test_a_latent_that_is_never_active_has_no_pictures(browser: Browser) -> None:
    browser.ask("Hm?")
    row = survey(browser)
    assert row.result is not None
    stored = np.load(surveying.path_of(browser.services.store, row.result["file"]))
    silent = np.flatnonzero((stored["value"] == 0).all((1, 2)))
    assert len(silent)
    text = settled(browser, page_of(int(silent[0])))
    assert "Words that it answers to most" not in text
    assert re.search(r'<th scope="row">active</th><td class="figure">–</td><td class="figure">0 %</td>', text)


class Endless(FakeEngine):
    """Its survey of latents goes on until it is cancelled."""

    def latent_survey(self, *args: Any) -> Any:
        until(args[-1], bool)
        return super().latent_survey(*args)


def test_a_survey_can_be_stopped_and_another_model_cannot_be_surveyed(tmp_path: Path) -> None:
    with serving(tmp_path, Endless) as browser:
        browser.ask("What is this?")
        url = browser.ask("And that?")
        rank(browser, url)
        browser.http.post("/latents/fake-1/survey", data={"name": f"sae.{SAE}.7"})
        with browser.services.database.read() as session:
            row = neuronqueries.newest(session, "latentsurvey", "fake-1")
        assert row is not None
        assert f'action="/neurons/jobs/{row.id}/cancel"' in browser.http.get(page_of(7)).text
        response = browser.http.post(
            f"/neurons/jobs/{row.id}/cancel", data={"name": f"sae.{SAE}.7"}, follow_redirects=False
        )
        assert response.headers["location"] == f"/latents/sae.{SAE}.7"
        ended(browser, row.id, "cancelled")
        assert "The last survey was cancelled." in settled(browser, page_of(7))
    with serving(tmp_path, Without) as browser:
        response = browser.http.post("/latents/fake-1/survey", data={"name": f"sae.{SAE}.7"})
        assert response.status_code == 422
        assert "is not attached to the loaded model" in response.text


def test_a_label_is_kept_escaped_limited_and_shown_wherever_it_is_listed(browser: Browser, picture: bytes) -> None:
    url = browser.ask("What is this?", picture)
    job = rank(browser, url)
    first = listed(browser, url, job)[0]["index"]
    said = {"label": "<b>round</b>\nthings", "note": "Line one\r\nline two"}
    response = browser.http.post(f"{page_of(first)}/note", data=said, follow_redirects=False)
    assert response.headers["location"] == page_of(first)
    text = browser.http.get(page_of(first)).text
    assert "&lt;b&gt;round&lt;/b&gt; things</span></h1>" in text
    assert "Line one\nline two</textarea>" in text
    assert "&lt;b&gt;round&lt;/b&gt; things" in browser.http.get(url).text.split('id="latents"')[1]
    near = next(k for k in range(96) if first in [other for other, _ in FakeEngine().latent_lens(SAE, k).alike])
    assert "<b>round</b> things</small></a>" in settled(browser, page_of(near))
    for query in ("round", "LINE"):
        assert f'href="{page_of(first)}"' in browser.http.get(f"/search?q={query}").text
    assert "Labels and notes of latents" not in browser.http.get("/search?q=%25").text
    for field, limit in (("label", 80), ("note", 4000)):
        response = browser.http.post(f"{page_of(first)}/note", data={field: "x" * (limit + 1)})
        assert response.status_code == 422
        assert f"at most {limit}" in response.text
    assert browser.http.post(f"/latents/fake-1/sae.{SAE}.96/note", data={"label": "x"}).status_code == 404
    browser.http.post(f"{page_of(first)}/note", data={"label": "\u200b", "note": ""})
    with browser.services.database.read() as session:
        assert latentqueries.note(session, "fake-sae-1", first) is None


def test_neighbours_by_index_and_by_influence(browser: Browser, picture: bytes) -> None:
    url = browser.ask("What is this?", picture)
    ranked = [one["index"] for one in listed(browser, url, rank(browser, url))]
    text = settled(browser, page_of(0))
    assert '<span class="none">← latent</span>' in text
    assert f'href="{page_of(1)}" title="sae.{SAE}.1">latent →</a>' in text
    for place, sides in ((0, {1: "less"}), (3, {2: "more", 4: "less"}), (len(ranked) - 1, {len(ranked) - 2: "more"})):
        beside = re.findall(r'<p class="beside">(.*?)</p>', settled(browser, page_of(ranked[place])))[0]
        found = re.findall(r'href="([^"]+)"[^>]*>(\w+) influential', beside)
        assert dict(found) == {page_of(ranked[other]): word for other, word in sides.items()}


def test_its_history_over_runs(browser: Browser, picture: bytes) -> None:
    texts = [f"What is number {k}?" for k in range(3)]
    urls = [browser.ask(text, picture) for text in texts]
    ranked = [{one["index"]: one for one in listed(browser, url, rank(browser, url))} for url in urls]
    index = next(k for k in ranked[0] if all(k in one for one in ranked))
    once = next((k for k in ranked[0] if not any(k in one for one in ranked[1:])), None)
    text = settled(browser, page_of(index))
    table = re.findall(r'<th scope="row">(\d)\. ([^<]+)</th><td class="figure">([^<]+)</td>', text)
    assert [(int(number), name) for number, name, _ in table[:3]] == list(enumerate(texts, 1)), "newest last"
    for one, (_, _, influence) in zip(ranked, table, strict=False):
        assert influence == formats.plain(one[index]["influence"])
    assert "The 3 newest runs that list it, newest last" in text
    if once is not None:
        assert "history-figure" not in settled(browser, page_of(once))
    rank(browser, urls[0], latents__quantity="probability")
    other = settled(browser, page_of(index))
    assert "by the probability of the whole answer" not in other, "one variant alone is not drawn with the others'"
    assert latent_view._history([]) is None


def test_the_history_is_a_figure_that_plotly_reads() -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    made = figures_latents.history(["1. a", "2. b"], [0.123456, 0.0], [3.0, 1.0], "10⁻³")
    figure = graph_objects.Figure(made)
    assert [list(trace.y) for trace in figure.data] == [[0.1235, 0.0], [3.0, 1.0]]
    assert figure.data[1].yaxis == "y2"
    assert figure.layout.yaxis.title.text == "influence 10⁻³"


def ablated(browser: Browser, url: str, job: str, **more: str) -> str:
    """The id of the ablation's job."""
    data = {"latents": job, **more}
    response = browser.http.post(f"{url}/latents/exact", data=data, follow_redirects=False)
    assert response.status_code == 303, response.text
    assert f"latents={job}" in response.headers["location"]
    with browser.services.database.read() as session:
        row = latentqueries.of_run(session, url.rsplit("/", 1)[1], job)
        assert row is not None
        found = latentqueries.exact(session, [row])[job]
    ended(browser, found.id)
    return found.id


def test_the_first_ones_are_ablated_exactly(browser: Browser, picture: bytes) -> None:
    url = browser.ask("What is this?", picture)
    job = rank(browser, url)
    assert "Check the first 20 by exact ablation" in card(browser.http.get(url).text)
    first = [one["index"] for one in listed(browser, url, job)[:20]]
    again = ablated(browser, url, job)
    assert ablated(browser, url, job) == again, "one ranking, one row"
    data = browser.data(url)
    asked = Question(
        browser.services.store.load(data["provenance"]["picture"]),
        data["provenance"]["question"],
        data["provenance"]["generation"]["max_new_tokens"],
    )
    ids = [token["id"] for token in data["tokens"]]
    expected: Floats = FakeEngine().latent_ablation(asked, ids, SAE, first)
    told = listed(browser, url, job)
    assert [one["exact_loss"] for one in told[:20]] == pytest.approx(expected.tolist())
    assert all("exact_loss" not in one for one in told[20:])
    text = card(browser.http.get(url, params={"latents": job}).text)
    assert "exact loss</th>" in text
    rho = spearman([one["influence"] for one in told[:20]], expected)
    assert f"over these 20: {rho:.2f}".replace("-", "−") in text
    assert "Check the first" not in text
    assert "exact loss" in settled(browser, page_of(first[0]))
    assert "exact loss" not in settled(browser, page_of(told[25]["index"]))


class Held(FakeEngine):
    """Its ablations wait until they are cancelled."""

    def latent_ablation(self, *args: Any, **kwargs: Any) -> Floats:
        until(args[-1], bool)
        return super().latent_ablation(*args, **kwargs)


def test_an_ablation_can_be_stopped_and_wrong_ones_are_refused(tmp_path: Path, picture: bytes) -> None:
    with serving(tmp_path, Held) as browser:
        url = browser.ask("What is this?", picture)
        response = browser.http.post(f"{url}/latents/exact")
        assert response.status_code == 422
        assert "Rank them first." in response.text
        job = rank(browser, url)
        browser.http.post(f"{url}/latents/exact", data={"latents": job})
        text = browser.http.get(url, params={"latents": job}).text
        assert "Ablating the first 20" in card(text)
        assert "sse-connect" in card(text)
        (cancel,) = set(re.findall(r'action="(/measurements/\w+/cancel)"', card(text)))
        browser.http.post(cancel, data={"latents": job})
        ended(browser, cancel.split("/")[2], "cancelled")
        assert "Cancelled; nothing was kept." in card(browser.http.get(url, params={"latents": job}).text)
        assert browser.http.post("/runs/nosuch/latents/exact").status_code == 404
        assert browser.http.post(f"{url}/latents/exact", data={"latents": "nosuch"}).status_code == 422
    with serving(tmp_path, Without) as browser:
        assert "Check the first" not in card(browser.http.get(url, params={"latents": job}).text)
        response = browser.http.post(f"{url}/latents/exact", data={"latents": job})
        assert response.status_code == 422
        assert "is not attached to the loaded model" in response.text


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({1: 0.1, 2: None, 3: 0.2}, "too few to compare"),
        ({1: 0.3, 2: 0.2, 3: 0.1}, "over these 3: 1.00"),
        ({1: 0.1, 2: 0.2, 3: 0.3}, "over these 3: −1.00"),
    ],
)
def test_the_verdict_of_an_ablation(lost: dict[int, float | None], words: str) -> None:
    ranked = [{"index": index, "influence": 1 / index} for index in (1, 2, 3)]
    assert words in view._verdict(ranked, lost)
    assert view.said({1: None}, 1) == "not finite"
    assert view.said({}, 1) == ""


def test_the_neuron_page_lists_latents_that_read_it(browser: Browser) -> None:
    text = settled(browser, "/neurons/fake-1/text.1.7")
    for index, cosine in FakeEngine().neuron_readers(SAE, 1, 7):
        assert f'href="{page_of(index)}">latent {index}</a>' in text
        assert f"{cosine:.2f}" in text
    assert "latent " not in settled(browser, "/neurons/fake-1/text.3.7").split('id="readers"')[1].split("</section>")[0]
    assert "None: it writes nothing that this SAE reads." in settled(browser, "/neurons/fake-1/text.3.7")
    index = FakeEngine().neuron_readers(SAE, 1, 7)[0][0]
    browser.http.post(f"{page_of(index)}/note", data={"label": "reads it"})
    assert "<small>reads it</small>" in settled(browser, "/neurons/fake-1/text.1.7")


def test_without_an_sae_the_neuron_page_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, Without) as browser:
        assert "No SAE is attached to its model." in settled(browser, "/neurons/fake-1/text.1.7")


def test_the_search_finds_a_latent_by_its_name(browser: Browser) -> None:
    assert f'href="{page_of(95)}"' in browser.http.get(f"/search?q=sae.{SAE}.95").text
    for wrong in (f"sae.{SAE}.96", "sae.nosuch.1"):
        assert "Nothing is called that." in browser.http.get(f"/search?q={wrong}").text


def test_the_pages_take_a_fixed_number_of_queries(browser: Browser, picture: bytes) -> None:
    """With one run that lists it, and with ten."""
    url = browser.ask("What is number 0?", picture)
    job = rank(browser, url)
    index = listed(browser, url, job)[0]["index"]
    survey(browser, index)
    settled(browser, page_of(index))

    def cost(path: str) -> int:
        """The least of three: the worker asks its own questions meanwhile."""
        return min(len(queries(browser, lambda: browser.http.get(path))) for _ in range(3))

    few = cost(page_of(index))
    for k in range(1, 10):
        rank(browser, browser.ask(f"What is number {k}?", picture))
    settled(browser, page_of(index))
    many = cost(page_of(index))
    assert many == few <= 18
    before = cost(f"{url}?latents={job}")
    ablated(browser, url, job)
    assert cost(f"{url}?latents={job}") == before


def test_the_default_target_is_the_whole_answer() -> None:
    """An ablation is of what was ranked: its parameters hold the ranking's, settings and all."""
    settings = saes.Settings(quantity="probability")
    row = JobRow(
        params={"settings": {"quantity": settings.quantity}, "target": Target().start},
        result={"latents": [{"index": k} for k in range(30)]},
    )
    assert latentqueries.exact_params(row) == {**row.params, "latents": list(range(20))}
