"""Latents of a run: ranked as a job, shown, given away as JSON; the page of one latent; the list of SAEs."""

import html
import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly import graph_objects

from app import figures_latents, latentjobs, latentqueries
from app.tables import JobRow
from app.views import latents as view
from engine.contract import Cancelled, Question, RequestError, saes
from engine.fake import FakeEngine
from tests.app.conftest import HTMX, Browser, serving, until
from tests.app.measuring import ended, holding, row_of
from tests.app.test_compare import queries

SAE = "fake-residual-2"


class Without(FakeEngine):
    """A model with no SAE."""

    def saes(self) -> tuple[saes.SaeInfo, ...]:
        return ()


class Broken(FakeEngine):
    """Its SAE reads this input badly, and nothing is active."""

    def latent_influence(self, *args: Any, **kwargs: Any) -> saes.Influence:
        found = super().latent_influence(*args, **kwargs)
        nothing = np.zeros_like(found.influence)
        fit = saes.SaeFit(float("nan"), 0.0, 1.0, ("The explained variance <b>is not defined</b>.",))
        active = np.zeros(len(nothing), np.bool_)
        return saes.Influence(
            found.sae, found.settings, found.value, fit, nothing, nothing, active, (), found.grid, None, 0
        )


class Held(FakeEngine):
    """Its rankings wait until `go_on` is set."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__()
        self.go_on = go_on

    def latent_influence(self, *args: Any, **kwargs: Any) -> saes.Influence:
        until(lambda: kwargs["cancelled"]() or self.go_on.wait(0.005), bool)
        if kwargs["cancelled"]():
            raise Cancelled("Stopped.")
        return super().latent_influence(*args, **kwargs)


def post(browser: Browser, url: str, htmx: bool = False, **fields: str) -> Any:
    data = {name.replace("__", "-"): value for name, value in fields.items()}
    return browser.http.post(f"{url}/latents", data=data, headers=HTMX if htmx else {}, follow_redirects=False)


def rank(browser: Browser, url: str, **fields: str) -> str:
    """The job's id."""
    response = post(browser, url, **fields)
    assert response.status_code == 303, response.text
    found = re.search(r"latents=(\w+)", response.headers["location"])
    assert found
    ended(browser, found[1])
    return found[1]


def card(text: str) -> str:
    """The card of a page, as text without line breaks."""
    found = re.search(r'<section id="latents".*?</section>', text, re.DOTALL)
    assert found
    return " ".join(html.unescape(found[0]).split())


def influence(question: Question, ids: list[int], settings: saes.Settings | None = None) -> saes.Influence:
    return FakeEngine().latent_influence(question, ids, SAE, settings or saes.Settings())


@pytest.fixture(scope="module")
def picture(pictures: Path) -> bytes:
    return (pictures / "ok.png").read_bytes()


@pytest.fixture(scope="module")
def url(shared: Browser, picture: bytes) -> str:
    return shared.ask("What is on the right?", picture)


@pytest.fixture(scope="module")
def job(shared: Browser, url: str) -> str:
    """A finished ranking by the default variant."""
    return rank(shared, url)


@pytest.fixture
def exact(shared: Browser, url: str) -> saes.Influence:
    """What the engine says of the run of `url`."""
    data = shared.data(url)
    pixels = shared.services.store.load(data["provenance"]["picture"])
    question = Question(pixels, data["provenance"]["question"], data["provenance"]["generation"]["max_new_tokens"])
    return influence(question, [token["id"] for token in data["tokens"]])


def test_an_unranked_run_offers_it_and_a_model_without_saes_does_not(shared: Browser, tmp_path: Path) -> None:
    text = card(shared.http.get(shared.ask("Not ranked?")).text)
    assert "Rank latents" in text
    assert "each more likely to mean one thing than a neuron is." in text
    assert f'<option value="{SAE}" selected>' in text
    with serving(tmp_path, Without) as browser:
        url = browser.ask("What is this?")
        assert re.fullmatch(r'<section id="latents" [^>]*hidden ?> </section>', card(browser.http.get(url).text))
        response = post(browser, url)
        assert response.status_code == 422
        assert "No SAE is attached" in response.text
        assert "No SAE is attached" in browser.http.get("/saes").text


def test_the_json_is_what_the_engine_says(shared: Browser, url: str, job: str, exact: saes.Influence) -> None:
    response = shared.http.get(f"{url}/latents.json", params={"job": job})
    assert response.status_code == 200
    data = response.json()
    assert data["sae"]["name"] == SAE
    assert (data["explained_variance"], data["l0"]) == (exact.fit.explained_variance, exact.fit.l0)
    assert data["value"] == exact.value
    for told, one in zip(data["latents"], exact.latents, strict=True):
        assert told["id"] == f"sae.{SAE}.{one.index}"
        assert (told["influence"], told["mean_activation"], told["image_share"]) == pytest.approx(
            (one.influence, one.mean_activation, one.image_share)
        )
    assert data["active"]["index"] == np.flatnonzero(exact.active).tolist()
    assert data["active"]["influence"] == pytest.approx(exact.influence[exact.active].tolist(), rel=1e-6)
    assert data["provenance"]["settings"]["quantity"] == "logprob"
    assert shared.http.get(f"{url}/latents.json").json() == data, "the newest one"


def test_the_card_shows_it(shared: Browser, url: str, job: str, exact: saes.Influence) -> None:
    text = card(shared.http.get(url, params={"latents": job}).text)
    listed = re.findall(rf'<th scope="row" class="name"><a href="/latents/fake-1/(sae\.{SAE}\.\d+)"', text)
    assert listed == [f"sae.{SAE}.{one.index}" for one in exact.latents]
    assert "log-probability of the whole answer, error term kept, special positions left out" in text
    assert f"{exact.fit.l0:.1f}" in text
    assert f"{int(exact.active.sum())} of 96" in text
    assert "Rank again" in text
    assert f"Signed influence of sae.{SAE}.{exact.latents[0].index} on the patches." in text
    assert len(re.findall('<rect class="(?:for|against)" x=', text)) == 81
    both = _tenths(exact)
    assert f"Of the {both[0]} latents that fire most, {both[1]} " in text


def _tenths(exact: saes.Influence) -> tuple[int, int]:
    """(how many fire, how many of them matter), by sorting."""
    active = np.flatnonzero(exact.active)
    count = max(1, len(active) // 10)
    first = [
        set(sorted(active, key=lambda c, of=of: -of[c])[:count]) for of in (exact.influence, exact.mean_activation)
    ]
    return count, len(first[0] & first[1])


def test_another_latent_is_drawn_by_its_url(shared: Browser, url: str, job: str, exact: saes.Influence) -> None:
    one = exact.latents[3]
    response = shared.http.get(
        url, params={"latents": job, "latent": f"activation:{one.index}"}, headers={**HTMX, "HX-Target": "latents"}
    )
    assert response.text.lstrip().startswith('<section id="latents"'), "the fragment alone"
    text = card(response.text)
    assert f"Activation of sae.{SAE}.{one.index} on the patches." in text
    drawn = re.findall(r'fill-opacity="([\d.]+)"><title>row (\d+), column (\d+)', text)
    assert one.activation is not None
    assert len(drawn) == one.activation.size
    for opacity, row, column in drawn:
        assert float(opacity) == pytest.approx(
            one.activation[int(row) - 1, int(column) - 1] / one.activation.max(), abs=1e-3
        )
    (selected,) = re.findall(r'<tr class="selected" aria-current="true">.*?</tr>', text)
    assert f'aria-label="sae.{SAE}.{one.index}">{one.index}<' in selected


def test_one_variant_one_row(shared: Browser, url: str, job: str) -> None:
    assert rank(shared, url) == job
    assert rank(shared, url, sae=SAE, latents__quantity="logprob") == job
    other = rank(shared, url, sae="fake-sae-1", latents__of="next", latents__quantity="probability", latents__bos="in",
                 latents__keep__error="dropped", latents__positive="mean")  # fmt: skip
    assert other != job
    assert row_of(shared, other).params["settings"] == {
        "of": "next", "quantity": "probability", "keep_error": False, "bos": True, "positive": "mean"
    }  # fmt: skip
    text = card(shared.http.get(url).text)
    assert (
        "probability of its first token, error term dropped, special positions counted, positive part of the mean"
        in text
    )
    assert '<option value="dropped" selected>' in text, "the form stands as the ranking that is shown"
    assert "log-probability of the whole answer" in card(shared.http.get(url, params={"latents": job}).text)


def test_a_steered_run_is_ranked_as_it_was_steered(shared: Browser, url: str, job: str) -> None:
    child = shared.turn(url, "penguin", -1)
    shared.settled(child)
    told = shared.http.get(f"{child}/latents.json", params={"job": rank(shared, child)}).json()
    assert told["provenance"]["steering"]
    assert told["latents"] != shared.http.get(f"{url}/latents.json", params={"job": job}).json()["latents"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("?latents=nosuch", 422, "no ranking of latents"),
        ("?latent=heat:3", 422, "Choose influence:INDEX or activation:INDEX"),
        ("?latent=influence:9999", 422, "not among the"),
        ("/latents.json?job=nosuch", 422, "no ranking of latents"),
    ],
)
def test_a_wrong_address_says_so(shared: Browser, url: str, job: str, path: str, status: int, words: str) -> None:
    response = shared.http.get(f"{url}{path}")
    assert response.status_code == status
    assert words in response.text


def test_wrong_fields_and_runs_are_refused(shared: Browser, url: str) -> None:
    for fields, words in (
        ({"sae": "nosuch"}, f"Choose one of {SAE}"),
        ({"latents__of": "all"}, "Choose one of answer"),
    ):
        response = post(shared, url, **fields)
        assert response.status_code == 422
        assert words in response.text
    assert post(shared, "/runs/nosuch").status_code == 404
    assert shared.http.get("/runs/nosuch/latents.json").status_code == 404
    with pytest.raises(RequestError):
        latentjobs.settings_of({"latents-bos": "maybe"})


def test_it_waits_is_followed_and_can_be_stopped(tmp_path: Path, picture: bytes) -> None:
    with holding(tmp_path, Held) as (browser, go_on):
        url = browser.ask("What is this?", picture)
        response = post(browser, url, htmx=True, heat="all", panel="p")
        job = re.findall(r"latents=(\w+)", response.headers["HX-Replace-Url"])[0]
        assert response.headers["HX-Replace-Url"] == f"{url}?heat=all&latents={job}"
        stream = html.unescape(re.findall(r'sse-connect="([^"]+)"', response.text)[0])
        assert stream == f"{url}/events?heat=all&latents={job}&only=latents&panel=p"
        assert 'http-equiv="refresh"' in browser.http.get(url).text, "without scripts the page looks again"
        assert browser.http.get(f"{url}/latents.json").status_code == 202
        browser.http.post(f"/measurements/{job}/cancel", data={"heat": "all"})
        ended(browser, job, "cancelled")
        text = card(browser.http.get(url).text)
        assert "Cancelled; nothing was kept." in text
        assert "Rank again" in text
        go_on.set()
        assert rank(browser, url) == job
        events = browser.http.get(stream).text
        assert re.findall("^event: (.*)$", events, re.MULTILINE) == ["latents", "end"]
        assert "Of the " in html.unescape(events)


def test_what_is_not_finite_and_what_is_nothing_is_said(tmp_path: Path, picture: bytes) -> None:
    with serving(tmp_path, Broken) as browser:
        url = browser.ask("What is this?", picture)
        rank(browser, url)
        response = browser.http.get(url)
        assert "<b>is not defined</b>" not in response.text
        text = card(response.text)
        assert "No latent is active at a counted position." in text
        assert "The explained variance <b>is not defined</b>." in text
        assert browser.http.get(f"{url}/latents.json").json()["explained_variance"] is None


def test_the_page_of_a_latent(shared: Browser, url: str, job: str, exact: saes.Influence) -> None:
    index = exact.latents[0].index
    path = f"/latents/fake-1/sae.{SAE}.{index}"
    text = until(lambda: shared.http.get(path).text, lambda text: "every 1s" not in text)
    lens = FakeEngine().latent_lens(SAE, index)
    for neuron, cosine in lens.written_by:
        assert f'href="/neurons/fake-1/{neuron}">{neuron}</a>' in text
        assert f"{cosine:.2f}" in text
    for other, _ in lens.alike:
        assert f'href="/latents/fake-1/sae.{SAE}.{other}"' in text
    assert html.escape(lens.promoted[0][0].strip()) in text
    run = url.rsplit("/", 1)[1]
    shown = re.findall(rf'<a href="/runs/{run}\?latents=(\w+)&amp;latent=influence%3A{index}">', text)
    assert len(shown) == 1, "each run once, by its newest ranking"
    with shared.services.database.read() as session:
        newest = latentqueries.of_run(session, run)
        assert newest is not None
        listed = [one["index"] for one in (newest.result or {})["latents"]]
    if index in listed:
        assert shown == [newest.id]
    assert re.search(r'<dt>rank</dt><dd class="figure">\d+ of \d+</dd>', text)


def test_names_of_latents(shared: Browser, url: str, job: str) -> None:
    response = shared.http.get(f"/latents/sae.{SAE}.7", follow_redirects=False)
    assert response.headers["location"] == f"/latents/fake-1/sae.{SAE}.7"
    response = shared.http.get(f"/latents/fake-1/sae.{SAE}.007", follow_redirects=False)
    assert response.headers["location"] == f"/latents/fake-1/sae.{SAE}.7"
    for path, words in (
        (f"/latents/fake-1/sae.{SAE}.96", "indices go from 0 to 95"),
        ("/latents/fake-1/sae.nosuch.1", "No SAE “nosuch”"),
        ("/latents/fake-1/nonsense", "sae.SAE.INDEX"),
        (f"/latents/elsewhere/sae.{SAE}.1", "No SAE"),
        ("/latents/nonsense", "sae.SAE.INDEX"),
    ):
        response = shared.http.get(path)
        assert response.status_code == 404
        assert words in response.text


def test_another_model_shows_what_is_stored(tmp_path: Path, picture: bytes) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is this?", picture)
        told = browser.http.get(f"{url}/latents.json", params={"job": rank(browser, url)}).json()
    with serving(tmp_path, Without) as browser:
        text = card(browser.http.get(url).text)
        assert told["latents"][0]["id"] in text, "what was ranked stays"
        assert "Rank again" not in text
        path = f"/latents/fake-1/{told['latents'][0]['id']}"
        text = browser.http.get(path).text
        assert "belongs to a model that is not loaded now" in text
        assert "every 1s" not in text


def test_the_list_of_saes(shared: Browser) -> None:
    text = " ".join(shared.http.get("/saes").text.split())
    for words in (SAE, "TopK, k = 8, at the stream after layer 2", "96 over 16 dimensions", "drawn from a hash"):
        assert words in text
    assert 'href="/saes"' in shared.http.get("/models").text


def test_pages_take_a_fixed_number_of_queries(shared: Browser, url: str, job: str, exact: saes.Influence) -> None:
    path = f"/latents/fake-1/sae.{SAE}.{exact.latents[0].index}"
    until(lambda: shared.http.get(path).text, lambda text: "every 1s" not in text)
    assert len(queries(shared, lambda: shared.http.get(path))) <= 15
    bare = shared.ask("Not ranked, for its queries?")
    ranked, plain = (len(queries(shared, lambda path=path: shared.http.get(path))) for path in (url, bare))
    assert ranked <= plain + 4, "of a ranking no more than of a picture and memberships"
    assert len(queries(shared, lambda: shared.http.get("/saes"))) <= 13, "whatever is attached"


@pytest.mark.parametrize("zeros", [0, 5, 1200])
def test_the_cloud_is_a_figure_that_plotly_reads(zeros: int) -> None:
    influence = np.concatenate([np.geomspace(1e-9, 0.3, 40), np.zeros(zeros)]).astype(np.float32)
    activation = np.geomspace(3, 1e-4, 40 + zeros).astype(np.float32)
    drawn = figures_latents.shown(influence, 20)
    assert len(drawn) <= figures_latents.DRAWN
    assert drawn[:20].tolist() == list(range(39, 19, -1)), "the most influential are always there"
    names = [f"sae.a.{k}" for k in drawn]
    made = figures_latents.cloud(influence[drawn], activation[drawn], names, (0.1, 1.0), 2, "")
    json.dumps(made, allow_nan=False)
    figure = graph_objects.Figure(made)
    points = figure.data[2]
    seen = influence[drawn]
    drawn_apart = seen[seen >= influence.max() / 10**figures_latents.DECADES]
    assert min(points.y) == pytest.approx(float(drawn_apart.min()) / 3, rel=1e-3), "below all that have a height"
    assert sum(value > min(points.y) for value in points.y) == len(drawn_apart)
    assert max(points.y) == pytest.approx(0.3, rel=1e-3)
    assert list(figure.data[3].text) == [names[2]]


def test_without_any_influence_all_stand_on_the_lowest_line() -> None:
    nothing = np.zeros(3, np.float32)
    made = figures_latents.cloud(nothing, np.array([1, 2, 3], np.float32), ["a", "b", "c"], (0.0, 3.0), None, "")
    assert len(set(made["data"][2]["y"])) == 1
    json.dumps(made, allow_nan=False)


def test_the_first_tenths_by_hand() -> None:
    influence = np.array([9, 8, *[1.0] * 17, 0], np.float32)
    activation = np.array([0.1, 9, *[1.0] * 17, 8], np.float32)
    said, quiet, loud = view._compared(influence, activation, (8.0, 8.0))
    assert said == "Of the 2 latents that fire most, 1 is among those that matter most (50 %)."
    assert quiet == [19]
    assert loud == [0]


@pytest.mark.parametrize(
    ("quantity", "value", "certain"),
    [("logprob", -0.001, True), ("logprob", -0.5, False), ("probability", 0.995, True), ("probability", 0.6, False),
     ("logprob", None, False)],
)  # fmt: skip
def test_a_nearly_certain_answer_is_named(quantity: str, value: float | None, certain: bool) -> None:
    assert bool(view._certain({"value": value, "settings": {"quantity": quantity}})) == certain


def test_only_rankings_of_this_run_are_found(shared: Browser, url: str, job: str) -> None:
    with shared.services.database.read() as session:
        assert latentqueries.of_run(session, "elsewhere") is None
        found = latentqueries.of_run(session, url.rsplit("/", 1)[1], job)
        assert isinstance(found, JobRow)
        assert found.kind == "latents"
