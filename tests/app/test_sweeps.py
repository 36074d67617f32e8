"""Sweeps: asked for by the panel as it stands, computed once, streamed, stopped, and given away as JSON."""

import html
import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.tables import JobRow
from engine.fake import FakeEngine
from tests.app.conftest import HTMX, Browser, serving, until
from tests.app.measuring import ended, holding, measure, row_of, running
from tests.app.test_compare import queries

PENGUIN = "concept:penguin"


class Paced(FakeEngine):
    """Its sweeps wait after their first token until `go_on` is set; `asked` counts them."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__()
        self.go_on, self.asked = go_on, 0

    def sweep(self, *args: Any) -> Any:
        self.asked += 1
        *given, on_points, cancelled = args
        first: list[Any] = []

        def told(points: Any) -> None:
            on_points(points)
            if not first:
                first.append(points)
                until(lambda: cancelled() or self.go_on.wait(0.005), bool)

        return super().sweep(*given, told, cancelled)


def post(browser: Browser, url: str, row: str = PENGUIN, panel: str = "p", htmx: bool = True, **fields: str) -> Any:
    data = {"panel": panel, "row": row, row: "0", **{name.replace("__", ":"): value for name, value in fields.items()}}
    return browser.http.post(f"{url}/sweep", data=data, headers=HTMX if htmx else {}, follow_redirects=False)


def job_of(response: Any) -> str:
    assert response.status_code in (200, 303), response.text
    where = response.headers.get("HX-Replace-Url") or response.headers["location"]
    found = re.search(r"sweep=(\w+)", where)
    assert found
    return found[1]


def done(browser: Browser, job: str) -> dict[str, Any]:
    ended(browser, job)
    response = browser.http.get(f"/sweeps/{job}.json")
    assert response.status_code == 200
    return dict(response.json())


def card(text: str) -> str:
    """The card of a page, as text without line breaks."""
    found = re.search(r'<section id="sweep".*?</section>', text, re.DOTALL)
    assert found
    return " ".join(html.unescape(found[0]).split())


@pytest.fixture(scope="module")
def url(shared: Browser) -> str:
    return shared.ask("What is this?")


@pytest.fixture(scope="module")
def job(shared: Browser, url: str) -> str:
    """A finished sweep, with another concept turned beside the row."""
    job = job_of(post(shared, url, concept__red="1.5", positions="image"))
    ended(shared, job)
    return job


def test_the_card_is_absent_until_it_is_asked_for(shared: Browser, url: str) -> None:
    text = card(shared.http.get(url).text)
    assert re.fullmatch(r'<section id="sweep" [^>]*hidden ?> </section>', text), text


def test_every_row_has_a_button_that_needs_no_script(shared: Browser, url: str) -> None:
    page = shared.http.get(url, params={"add": "text.1.2"}).text
    for row in ("concept:", "neuron:text.1.2"):
        assert re.search(
            f'<button type="submit" class="sweep" name="row" value="{row}[^>]*formaction="{url}/sweep"', page
        )
    form = page[page.index('id="steer-form"') :]
    assert form.index("<button") < form.index('name="row"'), "Enter in a field sends the panel"
    assert 'name="row"' not in form[form.index("<button") : form.index("</button>")]


def test_a_click_begins_and_the_card_listens(tmp_path: Path) -> None:
    with holding(tmp_path, Paced) as (browser, go_on):
        url = browser.ask("What is this?")
        response = post(browser, url, heat="all")
        text = response.text
        assert text.lstrip().startswith('<section id="sweep"'), "the fragment alone"
        job = job_of(response)
        assert response.headers["HX-Replace-Url"] == f"{url}?heat=all&sweep={job}"
        stream = html.unescape(re.findall(r'sse-connect="([^"]+)"', text)[0])
        assert stream == f"{url}/events?heat=all&sweep={job}&only=sweep&panel=p"
        page = f"{url}?sweep={job}"
        so_far = until(lambda: card(browser.http.get(page).text), lambda text: "so far" in text)
        assert "1 token so far" in so_far, "who comes late sees the state as it is"
        assert len(re.findall("data-at=", so_far)) == 2 * 13
        assert browser.http.get(f"/sweeps/{job}.json").status_code == 202
        assert 'http-equiv="refresh"' in browser.http.get(page).text, "without scripts the page looks again"
        assert browser.http.get(f"{url}/events?sweep={job}").text.count("event: sweep") == 0, (
            "its own stream tells of it"
        )
        go_on.set()
        body = browser.http.get(stream).text
        assert set(re.findall(r"^event: (\w+)", body, re.MULTILINE)) == {"sweep", "end"}
        assert "13 answers in one batch, " in body
        assert "sse-connect" not in card(browser.http.get(page).text)


def test_without_htmx_it_is_a_form(shared: Browser, url: str) -> None:
    response = post(shared, url, htmx=False, heat="all")
    assert response.status_code == 303
    job = job_of(response)
    assert response.headers["location"] == f"{url}?heat=all&sweep={job}"
    ended(shared, job)


def test_each_point_is_what_steering_answers_there(shared: Browser, url: str, job: str) -> None:
    data = done(shared, job)
    assert data["values"] == [step / 2 for step in range(-4, 9)]
    assert data["provenance"]["steering"] == {"concepts": [["red", 1.5]], "neurons": [], "positions": "image"}
    for point in (data["points"][k] for k in (0, 4, 12)):
        fields = {"panel": "other", PENGUIN: str(point["value"]), "concept:red": "1.5", "positions": "image"}
        told = shared.http.post(f"{url}/steer", data=fields, headers=HTMX)
        run = re.search(r"steer=(\w+)", told.headers["HX-Replace-Url"])
        assert run
        steered = shared.settled(f"/runs/{run[1]}")
        assert point["text"] == steered["answer"]
        assert point["logprob"] == pytest.approx(sum(token["logprob"] for token in steered["tokens"]))
        pair = shared.data(f"{url}")["steered"] or shared.http.get(f"{url}.json?steer={run[1]}").json()["steered"]
        assert point["original"] == pytest.approx(sum(pair["original_under_steered"]))


def test_the_card_shows_answers_probabilities_and_where_the_panel_stands(shared: Browser, url: str, job: str) -> None:
    points = done(shared, job)["points"]
    text = card(shared.http.get(f"{url}?sweep={job}").text)
    assert "Sweep of penguin" in text
    assert "λ −2 … 4 · with red λ +1.5 · image positions" in text
    for distinct in {point["text"] for point in points}:
        assert f'<span class="serif" title="{distinct}">{distinct}</span>' in text
    figure = json.loads(re.findall(r'<script type="application/json" id="sweep-chart">(.*?)</script>', text)[0])
    given, default, now = figure["data"]
    assert given["y"] == pytest.approx([math.exp(point["logprob"]) for point in points], abs=1e-6)
    assert default["y"] == pytest.approx([math.exp(point["original"]) for point in points], abs=1e-6)
    assert now["x"] == [], "the panel leaves red alone"
    assert "the panel has other settings now" in text
    assert '<span class="apart-note">' in text
    spans = [int(count) for count in re.findall(r'<td colspan="(\d+)"', text)]
    assert sum(spans) == 13
    steer = shared.http.post(
        f"{url}/steer", data={"panel": "q", PENGUIN: "1", "concept:red": "1.5", "positions": "image", "sweep": job},
        headers=HTMX,
    ).headers["HX-Replace-Url"]  # fmt: skip
    assert steer.endswith(f"&sweep={job}"), "steering keeps the sweep in the address"
    text = card(shared.http.get(steer).text)
    assert '<span class="apart-note" hidden>' in text
    assert re.findall(r'<tr aria-current="true" data-at="([^"]+)"', text) == ["1", "1"]


def test_the_table_turns_the_panel_without_scripts(shared: Browser, url: str, job: str) -> None:
    text = card(shared.http.get(f"{url}?sweep={job}").text)
    form = re.search(rf'<form method="post" action="{url}/steer">(.*?)</form>', text)
    assert form
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form[1]))
    buttons = re.findall(rf'<button type="submit" class="link figure" name="{PENGUIN}" value="([^"]+)"', form[1])
    assert [float(value) for value in buttons] == [step / 2 for step in range(-4, 9)]
    response = shared.http.post(f"{url}/steer", data={**fields, PENGUIN: buttons[0]}, follow_redirects=False)
    assert response.status_code == 303
    child = re.search(r"steer=(\w+)", response.headers["location"])
    assert child
    steering = shared.data(f"/runs/{child[1]}")["provenance"]["steering"]
    assert steering == {"concepts": [["penguin", -2.0], ["red", 1.5]], "neurons": [], "positions": "image"}
    assert f"sweep={job}" in response.headers["location"]


def test_a_neurons_factor_is_swept_too(shared: Browser, url: str) -> None:
    job = job_of(post(shared, url, "neuron:text.3.017"))
    data = done(shared, job)
    assert data["row"] == "neuron:text.3.17"
    assert data["values"] == [step / 2 for step in range(9)]
    assert "× 0 … 4" in card(shared.http.get(f"{url}?sweep={job}").text)


def test_the_same_sweep_is_one_row_and_free(tmp_path: Path) -> None:
    made: list[Paced] = []

    def engine(go_on: threading.Event) -> Paced:
        made.append(Paced(go_on))
        return made[0]

    with holding(tmp_path, engine) as (browser, go_on):
        go_on.set()
        url = browser.ask("What is this?")
        first = job_of(post(browser, url, concept__red="1"))
        ended(browser, first)
        again = post(browser, url, concept__red="1.0", panel="q", penguin="3")
        assert job_of(again) == first
        assert "sse-connect" not in again.text
        assert job_of(post(browser, url, concept__red="1", concept__penguin="2.5")) == first, "the row’s own value"
        other = job_of(post(browser, url, concept__red="1", positions="image"))
        ended(browser, other)
        assert other != first
        assert made[0].asked == 2
        with browser.services.database.read() as session:
            assert len(session.scalars(select(JobRow)).all()) == 2


def test_layers_that_the_row_keeps_to_are_part_of_it(shared: Browser, url: str) -> None:
    job = job_of(post(shared, url, layers="1-2"))
    data = done(shared, job)
    assert data["provenance"]["steering"] == {"concepts": [], "neurons": [], "positions": "all", "layers": [1, 2]}
    assert data["points"] != done(shared, job_of(post(shared, url)))["points"]
    assert job_of(post(shared, url, layers="0-3")) == job_of(post(shared, url)), "all layers limit nothing"


def test_a_new_sweep_of_the_panel_stops_the_one_before(tmp_path: Path) -> None:
    with holding(tmp_path, Paced) as (browser, go_on):
        url = browser.ask("What is this?")
        first = job_of(post(browser, url))
        until(lambda: browser.services.worker.points(first), bool)
        second = job_of(post(browser, url, concept__red="1"))
        ended(browser, first, "cancelled")
        until(lambda: browser.services.worker.points(second), bool)
        third = job_of(post(browser, url, concept__red="2", panel="another person"))
        assert row_of(browser, second).state == "running", "another panel stops nobody else"
        assert job_of(post(browser, url, concept__red="2")) == third
        ended(browser, second, "cancelled")
        job_of(post(browser, url, concept__red="3"))
        assert row_of(browser, third).state in ("queued", "running"), "somebody else waits for it"
        assert not row_of(browser, third).stop_requested
        go_on.set()
        assert done(browser, third)["points"]


def test_who_listens_keeps_it(tmp_path: Path) -> None:
    with holding(tmp_path, Paced) as (browser, go_on):
        url = browser.ask("What is this?")
        first = job_of(post(browser, url))
        told: list[str] = []
        stream = f"{url}/events?sweep={first}&only=sweep&panel=reader"
        reader = threading.Thread(target=lambda: told.append(browser.http.get(stream).text))
        reader.start()
        until(lambda: browser.services.broker.heard(f"job:{first}", "p"), bool)
        second = job_of(post(browser, url, concept__red="1"))
        assert not row_of(browser, first).stop_requested
        go_on.set()
        assert done(browser, first)["points"]
        assert done(browser, second)["points"]
        reader.join(10)
        assert "event: end" in told[0]


def test_cancelling_by_its_button(tmp_path: Path) -> None:
    with holding(tmp_path, Paced) as (browser, go_on):
        url = browser.ask("What is this?")
        job = job_of(post(browser, url))
        until(lambda: browser.services.worker.points(job), bool)
        address = f"{url}?sweep={job}"
        action = re.search(r'action="(/sweeps/\w+/cancel)"', card(browser.http.get(address).text))
        assert action
        response = browser.http.post(action[1], data={"sweep": job}, headers={**HTMX, "HX-Target": "sweep"})
        assert response.text.lstrip().startswith('<section id="sweep"')
        ended(browser, job, "cancelled")
        text = card(browser.http.get(address).text)
        assert "Cancelled; nothing was kept." in text
        assert not browser.services.worker.points(job)
        again = re.search(r"Sweep again", text)
        assert again
        go_on.set()
        assert job_of(post(browser, url)) == job
        assert done(browser, job)["points"], "asked again, it is swept again"


def test_it_passes_slow_work(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        slow = measure(browser, url)
        running(browser, slow)
        assert done(browser, job_of(post(browser, url)))["points"]
        assert row_of(browser, slow).state == "running"
        go_on.set()


def test_after_a_crash_it_is_swept_again(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is this?")
        job = job_of(post(browser, url))
        points = done(browser, job)["points"]
        with browser.services.database.write() as session:
            row = session.get_one(JobRow, job)
            row.state, row.result = "running", None
    with serving(tmp_path) as browser:
        assert done(browser, job)["points"] == points


def test_a_sweep_of_an_earlier_library_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is this?")
        job = job_of(post(browser, url))
        ended(browser, job)
        with browser.services.database.write() as session:
            row = session.get_one(JobRow, job)
            row.params = {**row.params, "library": "earlier"}
            row.state, row.result = "queued", None
        browser.services.worker.wake()
        assert "earlier concept library" in ended(browser, job, "failed").error
        assert "Sweep again" in card(browser.http.get(f"{url}?sweep={job}").text)


@pytest.mark.parametrize(
    ("row", "fields", "told"),
    [
        ("", {}, "There is no row “” to sweep"),
        ("concept:", {}, "There is no row “concept:” to sweep"),
        ("positions", {}, "There is no row “positions” to sweep"),
        ("concept:pengui", {}, "There is no concept “pengui”. Did you mean penguin?"),
        ("neuron:text.9.1", {}, "There is no neuron text.9.1 in this model"),
        ("neuron:text.1", {}, "is not a neuron"),
        ("neuron:text.1.2", {"operation:text.1.2": "set"}, "text.1.2 is turned by set. Choose scale for it."),
        (PENGUIN, {"concept:red": "9"}, "λ of red is “9”; it must be a number from -2 to 4."),
        (PENGUIN, {"positions": "everywhere"}, "There is no choice of positions “everywhere”"),
        (PENGUIN, {"layers": "9-12"}, "layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused(
    shared: Browser, url: str, row: str, fields: dict[str, str], told: str
) -> None:
    response = shared.http.post(f"{url}/sweep", data={"panel": "p", "row": row, **fields}, headers=HTMX)
    assert response.status_code == 422
    assert told in html.unescape(response.text)


def test_a_run_without_an_answer_has_none(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: FakeEngine(0.3)) as browser:
        url = browser.ask("Describe it.", wait=False)
        response = post(browser, url)
        assert response.status_code == 422
        assert "no answer to sweep yet" in response.text


def test_a_steered_runs_own_page_goes_on_beside_the_original(shared: Browser, url: str) -> None:
    child = shared.turn(url, "red", 1)
    shared.settled(child)
    response = post(shared, child, htmx=False, concept__red="1")
    job = job_of(response)
    assert response.headers["location"] == f"{url}?steer={child.rsplit('/', 1)[1]}&sweep={job}"
    with shared.services.database.read() as session:
        assert session.get_one(JobRow, job).run_id == url.rsplit("/", 1)[1]


def test_addresses_of_sweeps_that_are_none(shared: Browser, url: str, job: str) -> None:
    other = shared.ask("Another?")
    assert shared.http.get(f"{other}?sweep={job}").status_code == 422
    assert shared.http.get(f"{url}?sweep=nosuch").status_code == 422
    for response in (shared.http.get("/sweeps/nosuch.json"), shared.http.post("/sweeps/nosuch/cancel")):
        assert response.status_code == 404
        assert "There is no sweep “nosuch”" in response.text
    measured = measure(shared, url)
    ended(shared, measured)
    assert shared.http.get(f"/sweeps/{measured}.json").status_code == 404, "a job, but no sweep"
    assert post(shared, "/runs/nosuchrun").status_code == 404


def test_a_full_queue_takes_none(tmp_path: Path) -> None:
    with holding(tmp_path, Paced, max_queue=1) as (browser, go_on):
        url = browser.ask("What is this?")
        first = job_of(post(browser, url, panel="a"))
        until(lambda: browser.services.worker.points(first), bool)
        second = job_of(post(browser, url, panel="b", concept__red="1"))
        assert "number 2 in the queue" in card(browser.http.get(f"{url}?sweep={second}").text)
        assert post(browser, url, panel="c", concept__red="2").status_code == 503
        assert job_of(post(browser, url, panel="c", concept__red="1")) == second
        go_on.set()
        ended(browser, second)


def test_a_page_with_a_sweep_takes_one_query_more(shared: Browser, url: str, job: str) -> None:
    plain = queries(shared, lambda: shared.http.get(url))
    assert len(queries(shared, lambda: shared.http.get(f"{url}?sweep={job}"))) == len(plain) + 1
