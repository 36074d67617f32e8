"""Experiments with latents through the pages: estimated, run, stopped, killed, gone on with; and their reports."""

import contextlib
import csv
import io
import json
import re
import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from plotly import graph_objects
from sqlalchemy import event, func, select

from app import experimentchart
from app.tables import EvaluationPart, JobRow
from engine.contract import Answer, Cancelled, Question, saes
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until
from tests.app.test_load import start as start_process

SMALL = {"limit": "6", "latents-of": "next"}


class Held(FakeEngine):
    """After `free` items each waits until `go_on` is set."""

    def __init__(self, go_on: threading.Event, free: int) -> None:
        super().__init__()
        self.go_on, self.free, self.asked = go_on, free, 0

    def latent_answers(
        self, question: Question, sae: str, zeroed: Sequence[Sequence[int]], *rest: Any, **more: Any
    ) -> tuple[Answer, ...]:
        self.asked += len(zeroed) > 1
        while self.asked > self.free and not self.go_on.wait(0.005):
            if self._leave():
                raise Cancelled("Stopped.")
        return super().latent_answers(question, sae, zeroed, *rest, **more)

    def _leave(self) -> bool:
        return self.closing

    closing = False

    def close(self) -> None:
        self.closing = True


def start(browser: Browser, **fields: str) -> str:
    """The URL of an experiment."""
    response = browser.http.post("/experiments", data=fields, follow_redirects=False)
    assert response.status_code == 303, response.text
    return str(response.headers["location"])


def told(browser: Browser, url: str) -> dict[str, Any]:
    return dict(browser.http.get(f"{url}.json").json())


def over(browser: Browser, url: str, state: str = "done") -> dict[str, Any]:
    """An experiment that has ended."""
    found: dict[str, Any] = until(lambda: told(browser, url), lambda one: one["state"] not in ("queued", "running"), 60)
    assert found["state"] == state, found
    return found


def report_of(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("id", "done", "total")}


def parts(browser: Browser) -> int:
    with browser.services.database.read() as session:
        return session.scalar(select(func.count()).select_from(EvaluationPart)) or 0


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    with serving(tmp_path_factory.mktemp("done")) as browser:
        url = start(browser, **SMALL)
        over(browser, url)
        yield browser, url


# The list, the form and the estimate


def test_the_empty_list_teaches_and_offers(shared: Browser) -> None:
    page = shared.http.get("/experiments").text
    assert "There is none yet. This is how one is made:" in page
    assert '<option value="builtin" selected>The little world (built in)</option>' in page
    assert '<option value="fake-residual-2" selected>' in page
    labels = re.findall(r"<label><span>([^<]+)</span>", page)
    assert {"Questions", "SAE", "Quantity", "Items"} <= set(labels)
    assert all(one[0].isupper() for one in labels)
    assert 'name="latents-keep-error"' in page
    assert '<a href="/evaluations" aria-current="page">Evaluate</a>' in page
    for linked in ("/saes", "/evaluations"):
        assert 'href="/experiments"' in shared.http.get(linked).text


def test_the_plan_says_what_it_takes_and_keeps_what_was_chosen(shared: Browser) -> None:
    page = shared.http.get("/experiments/plan?set=builtin&limit=60&seed=3&latents-keep-error=dropped").text
    assert '<dt>items</dt><dd class="figure">60</dd>' in page
    assert '<dt>pairs to swap, at most</dt><dd class="figure">40</dd>' in page
    assert "measured on the first items" in page
    assert '<input type="hidden" name="latents-keep-error" value="dropped">' in page
    assert '<option value="dropped" selected>' in page
    with shared.services.database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobRow)) == 0


def test_the_pace_of_the_newest_experiment_is_the_estimate(done: tuple[Browser, str]) -> None:
    assert "at the pace of the newest experiment" in done[0].http.get("/experiments/plan?limit=9").text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "The number of items is “0”; it must be a whole number from 1 to 2,000."),
        ("limit=many", "must be a whole number"),
        ("seed=-1", "must be a whole number"),
        ("set=nothing", "not known any more"),
        ("sae=nobody", "There is no SAE “nobody”. Choose one of fake-residual-2."),
        ("latents-of=phrase", "is no choice of latents-of"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_lost(shared: Browser, query: str, words: str) -> None:
    response = shared.http.get(f"/experiments/plan?{query}")
    assert response.status_code == 422
    assert words in response.text
    name, _, value = query.partition("=")
    if name in ("limit", "seed"):
        assert f'name="{name}" value="{value}"' in response.text
    started = shared.http.post("/experiments", data={name: value})
    assert started.status_code == 422
    assert words in started.text


# The job and its report


def test_the_report_says_what_the_figures_say(done: tuple[Browser, str]) -> None:
    browser, url = done
    found = told(browser, url)
    wanted = FakeEngine()
    direct = wanted.latent_experiment(wanted.experiment_items(6), "fake-residual-2", saes.Settings(of="next"))
    assert {key: found[key] for key in saes.experiment_as_json(direct)} == saes.experiment_as_json(direct)
    page = browser.http.get(url).text
    for sentence in found["conclusions"]:
        assert sentence.replace("'", "&#39;") in page
    for title in ("Masking", "Words in common", "Swapping", "Agreement with exact ablation", "Overlaps"):
        assert f"<h2>{title}</h2>" in page
    assert page.count('class="plot"') == 3
    assert "sfumato sae experiment --sae fake-residual-2 --limit 6 --seed 0" in page
    assert "--of next --model fake" in page
    assert "sse-connect" not in page
    assert f'href="{url}"' in browser.http.get("/experiments").text
    assert start(browser, **SMALL) == url, "asked for again, it is the same one"
    assert told(browser, url)["state"] == "done"


def test_the_csv_has_every_figure(done: tuple[Browser, str]) -> None:
    browser, url = done
    response = browser.http.get(f"{url}.csv")
    assert response.headers["content-type"].startswith("text/csv")
    assert response.headers["content-disposition"] == 'attachment; filename="experiment.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text)))
    (masked,) = [r for r in rows if (r["test"], r["method"], r["k"], r["figure"]) == ("masked", "random", "10", "em")]
    (same,) = [m for m in told(browser, url)["masked"] if (m["method"], m["k"]) == ("random", "10")]
    assert float(masked["mean"]) == same["em"]["mean"]


def test_a_stopped_one_keeps_its_steps_and_goes_on_to_the_same_report(
    done: tuple[Browser, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.worker.PACE", 0.0)
    go_on = threading.Event()
    with serving(tmp_path, lambda: Held(go_on, 2)) as browser:
        url = start(browser, **SMALL)
        until(lambda: parts(browser), lambda count: count >= 2)
        page = browser.http.get(url).text
        assert "of at most 12 steps" in page
        assert "masking latents" in page
        assert browser.http.get(f"{url}.json").status_code == 202
        assert browser.http.get(f"{url}.csv").status_code == 404
        assert browser.http.post(f"{url}/cancel", follow_redirects=False).status_code == 303
        go_on.set()
        over(browser, url, "cancelled")
        kept = parts(browser)
        assert 2 <= kept < 12
        page = browser.http.get(url).text
        assert f"{kept} finished steps are kept" in page
        assert browser.http.post(f"{url}/again", follow_redirects=False).headers["location"] == url
        assert report_of(over(browser, url)) == report_of(told(done[0], done[1]))


def test_a_question_of_a_person_is_answered_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, lambda: FakeEngine(0.02)) as browser:
        url = start(browser, limit="40")
        until(lambda: told(browser, url)["state"], lambda state: state == "running")
        browser.ask("What is this?")
        assert told(browser, url)["state"] == "running"
        browser.http.post(f"{url}/cancel")
        over(browser, url, "cancelled")


def test_killed_and_started_again_it_comes_to_the_same_report(done: tuple[Browser, str], tmp_path: Path) -> None:
    server, address = start_process(tmp_path, 0.02)
    try:
        made = until(
            lambda: httpx.post(f"{address}/experiments", data=SMALL), lambda response: response.status_code == 303, 30
        )
        url = made.headers["location"]
        until(lambda: httpx.get(f"{address}{url}").text, lambda page: " left · " in page, 30)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        assert server.stdout
        server.stdout.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "sfumato.db")) as database:
        assert database.execute("SELECT state FROM jobs WHERE kind = 'experiment'").fetchall() == [("running",)]
    with serving(tmp_path) as browser:
        assert report_of(over(browser, url)) == report_of(told(done[0], done[1]))


def test_where_nothing_is_right_it_fails_in_words(tmp_path: Path) -> None:
    asked = [{"question": f"q{k}?", "answers": [{"text": "no such word"}]} for k in range(5)]
    asked.append({"question": "none?", "answers": []})
    data = json.dumps({"data": [{"paragraphs": [{"context": "Once.", "qas": asked}]}]}).encode()
    with serving(tmp_path) as browser:
        brought = browser.http.post(
            "/experiments/sets", files={"questions": ("squad.json", data)}, follow_redirects=False
        )
        assert brought.status_code == 303, brought.text
        place = brought.headers["location"]
        page = browser.http.get(place).text
        assert "squad.json (SQuAD, 5 questions of 1 kind, 1 line left out)</option>" in page
        assert "<strong>line 6</strong> <span>It has no answer" in page
        url = start(browser, set=place.split("=")[1])
        assert "None of 5 items is answered right" in over(browser, url, "failed")["error"]
        assert "None of 5 items is answered right" in browser.http.get(url).text
        assert "failed" in browser.http.get("/experiments").text
        assert "--file squad.json --limit 100 --seed 0" in browser.http.get(url).text


def test_files_that_cannot_be_used_are_refused_in_words(shared: Browser) -> None:
    response = shared.http.post("/experiments/sets", files={"questions": ("a.json", b'{"data": []}')})
    assert response.status_code == 422
    assert "No line of a.json can be asked." in response.text
    assert "Choose a file of questions first." in shared.http.post("/experiments/sets", data={"x": ""}).text


def test_an_unknown_experiment_is_missing(done: tuple[Browser, str]) -> None:
    browser, _ = done
    for path in ("", ".json", ".csv", "/events"):
        assert browser.http.get(f"/experiments/nothing{path}").status_code == 404
    for path in ("cancel", "again"):
        assert browser.http.post(f"/experiments/nothing/{path}").status_code == 404
    url = start(browser, **SMALL)
    assert browser.http.get(f"/evaluations/{url.rsplit('/', 1)[1]}").status_code == 404


def test_the_chart_is_what_plotly_understands() -> None:
    series = {"influence": [(0.5, 0.4, 0.6), (0.0, 0.0, 0.1)], "random": [(1.0, 0.9, 1.0), (0.7, 0.6, 0.8)]}
    made = experimentchart.by_size(("1", "half"), series, saes.CALLED, "answers")
    first = made["data"][0]
    assert first["y"] == [50, 0]
    assert first["error_y"]["array"] == [10, 10]
    assert first["error_y"]["arrayminus"] == [10, 0]
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


@pytest.mark.parametrize(("path", "limit"), [("/experiments", 4), ("/experiments/plan", 7), ("", 7)])
def test_pages_take_a_fixed_number_of_queries(done: tuple[Browser, str], path: str, limit: int) -> None:
    browser, url = done
    engine, statements = browser.services.database.engine, []

    def count(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", count)
    try:
        assert browser.http.get(path or url).status_code == 200
    finally:
        event.remove(engine, "before_cursor_execute", count)
    assert 0 < len([text for text in statements if text.startswith("SELECT")]) <= limit
