"""Evaluations through the pages: brought, estimated, run, stopped, killed, gone on with; and their reports."""

import asyncio
import contextlib
import csv
import io
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, event, func, select

from app import questionsets
from app.routes.evaluations import events
from app.tables import EvaluationPart, JobRow
from engine.contract import RequestError, evaluation
from engine.evaluation.files import split_of
from tests.app.conftest import Browser, serving, until
from tests.app.owning import png, zipped
from tests.app.test_load import start as start_process
from tests.app.turning import HALF, QUESTIONS, Held, Turning, bring, lines, over, start, told

ARMS = ("baseline", "modulated", "random_control", "single_token_control")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str, str]]:
    """An application with a finished evaluation: its URL, and its set."""
    with serving(tmp_path_factory.mktemp("done"), Turning) as browser:
        of = bring(browser)
        url = start(browser, set=of, **HALF)
        over(browser, url)
        yield browser, url, of


def without_id(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("id", "done", "total")}


def parts(browser: Browser) -> int:
    with browser.services.database.read() as session:
        return session.scalar(select(func.count()).select_from(EvaluationPart)) or 0


# The list, the form and the estimate


def test_the_empty_list_teaches_the_protocol(shared: Browser) -> None:
    page = shared.http.get("/evaluations").text
    assert page.count("<li>Questions are split in three") == 1
    assert "where there is no gain, the report says so" in page
    assert '<a href="/evaluations" aria-current="page">Evaluate</a>' in page
    for kind in evaluation.BUILTIN_KINDS:
        assert f'name="kind" value="{kind}"' in page


def test_the_plan_says_what_it_takes_before_it_starts(shared: Browser) -> None:
    page = shared.http.get("/evaluations/plan?kind=name&kind=side&condition=easy&limit=8&seed=3").text
    assert '<dt>test questions</dt><dd class="figure">16</dd>' in page
    assert "measured on the first answers" in page
    assert '<input type="hidden" name="seed" value="3">' in page
    assert '<input type="checkbox" name="kind" value="side" checked>' in page
    shared.ask()
    page = shared.http.get("/evaluations/plan?kind=name&kind=side&condition=easy&limit=8&seed=3").text
    assert "if each answer took as long as one of your questions" in page
    with shared.services.database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobRow)) == 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "takes 1 to"),
        ("limit=many", "must be a whole number"),
        ("seed=-1", "must be a whole number"),
        ("kind=smell", "has no kind of question “smell”. Choose of name,"),
        ("condition=fog", "has no condition “fog”. Choose of easy,"),
        ("set=nothing", "not known any more"),
        ("limit=20000", "at most 200,000 are drawn"),
    ],
)
def test_what_cannot_be_is_said_in_the_plan(shared: Browser, query: str, words: str) -> None:
    response = shared.http.get(f"/evaluations/plan?{query}")
    assert response.status_code == 422
    assert words in response.text
    assert 'action="/evaluations">' not in response.text
    started = shared.http.post("/evaluations", data=dict([query.split("=")]))
    assert started.status_code == 422
    assert words in started.text


def test_the_pace_of_the_newest_evaluation_is_the_estimate(done: tuple[Browser, str, str]) -> None:
    browser, _, of = done
    assert "at the pace of the newest evaluation" in browser.http.get(f"/evaluations/plan?set={of}").text


# Sets of files


def test_good_lines_are_kept_and_bad_ones_listed(shared: Browser) -> None:
    extra = [
        "{broken",
        '{"question": "What?"}',
        '{"question": "Is thing 3 a lemon?", "answer": "lemon", "picture": "x"}',
    ]
    of = bring(shared, lines(30, extra))
    page = shared.http.get(f"/evaluations/plan?set={of}").text
    assert "table, 30 questions of 2 kinds, 3 lines left out" in page
    for number, reason in ((31, "This is no JSON"), (32, "&#39;answer&#39; is missing"), (33, "no folder or zip")):
        assert f"<strong>line {number}</strong> <span>{reason}" in page or reason in page
    assert bring(shared, lines(30, extra)) == of, "the same files are the same set"
    assert f"/evaluations/plan?set={of}" in shared.http.get("/evaluations").text


def test_a_set_with_a_zip_of_pictures(tmp_path: Path) -> None:
    table = "picture,question,answer,kind\n" + "".join(
        f"p{k}.png,Is thing {k} a lemon?,lemon,object\n" for k in range(60)
    )
    pictures = zipped(**{f"p{k}": png(k) for k in range(60) if k != 7})
    with serving(tmp_path, Turning) as browser:
        of = bring(browser, table.encode(), "seen.csv", pictures=("p.zip", pictures))
        assert "1 line left out" in browser.http.get(f"/evaluations/plan?set={of}").text
        found = over(browser, start(browser, set=of, limit="6", dev="6"))
        assert found["settings"]["source"][0][0] == "seen.csv"
        assert found["baseline"]["n"] == 6


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "Choose a file of questions first."),
        ({"questions": ("a.jsonl", b"{oops")}, "No line of a.jsonl can be asked. Line 1:"),
        ({"questions": ("a.csv", b"what,why\n1,2\n")}, "should name the columns question and answer"),
        ({"questions": ("a.json", b'{"questions": []}')}, "Give its annotations too"),
        ({"questions": ("a.csv", b" ")}, "is empty"),
        ({"questions": ("a.json", b'[{"question": "What?", "answer": "a"}]')}, "is one list. Write one JSON object"),
        ({"questions": ("a.jsonl", b'{"question": "What?", "answer": "\\ud800"}')}, "half of a character"),
        ({"questions": ("a.csv", b"question,answer\na\0,b\n")}, "zero byte"),
        (
            {"questions": ("a.csv", b"question,answer,kind\n" + b"".join(b"a,b,k%d\n" % k for k in range(201)))},
            "has 201 kinds of question; at most 200",
        ),
        (
            {"questions": ("a.json", b'{"questions": []}'), "annotations": ("b.json", b'{"annotations": 5}')},
            "takes a file with a list",
        ),
        ({"questions": ("a.csv", b"question,answer\na,b\n"), "pictures": ("p.zip", b"no zip")}, "no zip of pictures"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_words(shared: Browser, files: dict[str, Any], words: str) -> None:
    response = shared.http.post("/evaluations/sets", files=files or None, data={"x": ""})
    assert response.status_code == 422
    assert words in response.text
    folder = shared.services.store.folder.parent / "sets"
    kept = {path.name for path in folder.iterdir()} if folder.exists() else set()
    with shared.services.database.read() as session:
        assert kept == {row.hash for row in questionsets.listed(session)}


def test_what_is_wrong_within_a_shape_is_no_fault_of_ours(shared: Browser) -> None:
    asked = b'{"questions": [{"question_id": [1], "question": "What?", "image_id": 1}]}'
    files = {"questions": ("q.json", asked), "annotations": ("a.json", b'{"annotations": [{"question_id": 1}]}')}
    assert shared.http.post("/evaluations/sets", files=files).status_code == 422


def test_a_set_that_lost_files_is_not_another_set_and_is_made_whole(tmp_path: Path) -> None:
    table = b"picture,question,answer\n" + b"".join(b"p.png,Is it %d?,yes\n" % k for k in range(9))
    given = questionsets.Brought(("seen.csv", table), None, zipped(p=png(1)))
    place = tmp_path / questionsets.keep(tmp_path, given)
    row = questionsets.described(tmp_path, place.name, given)

    def refused() -> None:
        with (
            pytest.raises(RequestError, match="gone from the data folder"),
            questionsets.opened(tmp_path, row, evaluation.Settings()),
        ):
            pass

    (place / questionsets.PICTURES).unlink()
    refused()
    (place / "0").write_bytes(table[:-5])
    refused()
    assert questionsets.keep(tmp_path, given) == place.name
    with questionsets.opened(tmp_path, row, evaluation.Settings()) as found:
        assert found.items
    assert len({item.split for item in found.items}) == 1, "all of one picture"


def test_names_of_files_can_be_stored() -> None:
    given = questionsets.Brought(("a\udcff\0\n.csv", b"x"), ("a.csv", b"y"))
    assert list(given.files) == ["a.csv", "annotations"]


@pytest.mark.parametrize(
    ("name", "data", "annotations", "form"),
    [
        ("q.json", b'{"questions": []}', b"{}", "vqa"),
        ("q.json", b'{"1": {"imageId": "2", "question": "What?", "answer": "a"}}', None, "gqa"),
        ("q.json", b'{"question_id": 1, "image": "a.jpg", "text": "Is it?", "label": "yes"}\n', None, "pope"),
        ("q.jsonl", b'{"question": "What?", "answer": "a"}\n', None, "table"),
        ("q.csv", b"question,answer\n", None, "table"),
    ],
)
def test_the_shape_of_files_is_found(name: str, data: bytes, annotations: bytes | None, form: str) -> None:
    second = ("a.json", annotations) if annotations is not None else None
    assert questionsets.format_of(questionsets.Brought((name, data), second)) == form


# The job


def test_a_gain_is_reported_with_its_controls(done: tuple[Browser, str, str]) -> None:
    browser, url, of = done
    found = told(browser, url)
    assert set(ARMS) <= set(found)
    for arm in ARMS:
        assert set(found[arm]) == {"accuracy", "interval", "n"}
        assert found[arm]["interval"][0] <= found[arm]["accuracy"] <= found[arm]["interval"][1]
        assert found[arm]["n"] == 20
    assert all(set(ARMS) <= set(row) for row in found["kinds"])
    assert found["modulated"]["accuracy"] > found["baseline"]["accuracy"] + 0.3
    assert found["random_control"]["accuracy"] == found["baseline"]["accuracy"]
    figures = "80.0\u00a0% instead of 40.0\u00a0%"
    assert found["headline"].startswith(f"Turning concepts answers more questions rightly: {figures}")
    page = browser.http.get(url).text
    assert found["headline"] in page
    assert f"sfumato evaluate --set {of[:16]} --kinds object --limit 20 --dev 16 --seed 0 --model fake" in page
    assert 'svg class="gain for"' in page
    assert 'sse-connect="/evaluations' not in page
    assert "hard conditions" not in page, "a person's files have one condition"
    line = browser.http.get("/evaluations").text
    assert f'href="{url}"' in line
    assert f"{100 * found['delta']['value']:+.1f}" in line


def test_asking_for_the_same_again_computes_nothing(done: tuple[Browser, str, str]) -> None:
    browser, url, of = done
    assert start(browser, set=of, **HALF) == url
    assert told(browser, url)["state"] == "done"


def test_the_csv_has_a_line_for_each_row(done: tuple[Browser, str, str]) -> None:
    browser, url, _ = done
    response = browser.http.get(f"{url}.csv")
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    found = told(browser, url)
    assert len(rows) == len(found["kinds"]) + len(found["totals"])
    assert {f"{arm}_{part}" for arm in ARMS for part in ("accuracy", "low", "high")} <= set(rows[0])
    assert float(rows[0]["modulated_accuracy"]) == found["kinds"][0]["modulated"]["accuracy"]


def test_no_gain_is_said_to_be_none(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = start(browser, kind="count", condition="easy", limit="3")
        found = over(browser, url)
        assert found["headline"].startswith("No gain: on dev no setting was found better than turning nothing")
        assert found["headline"] in browser.http.get(url).text


def test_stopped_it_keeps_its_parts_and_goes_on_to_the_same_result(
    done: tuple[Browser, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = told(done[0], done[1])
    monkeypatch.setattr("app.worker.PACE", 0.0)
    go_on = threading.Event()
    with serving(tmp_path, lambda: Held(go_on, 3)) as browser:
        of = bring(browser)
        url = start(browser, set=of, **HALF)
        until(lambda: parts(browser), lambda count: count >= 2)
        until(lambda: told(browser, url)["done"], lambda count: count > 0)
        page = browser.http.get(url).text
        assert "of at most" in page
        assert " · last: " in page
        assert "event: evaluation" in _first_event(browser, url)
        assert browser.http.post(f"{url}/cancel", follow_redirects=False).status_code == 303
        over(browser, url, "cancelled")
        kept = parts(browser)
        assert kept >= 2
        page = browser.http.get(url).text
        assert f"{kept} finished parts are kept" in page
        assert ">Go on</button>" in page
        assert browser.http.get(f"{url}.csv").status_code == 404
        assert browser.http.post(f"{url}/again", follow_redirects=False).headers["location"] == url
        go_on.set()
        assert without_id(over(browser, url)) == without_id(wanted)
        other = start(browser, set=of, **{**HALF, "seed": "1"})
        over(browser, other)
        assert without_id(told(browser, url)) == without_id(wanted), "parts of what is done are not needed"


def _first_event(browser: Browser, url: str) -> str:
    """Without following the stream to its end: the worker is held."""
    services = browser.services

    async def first() -> str:
        async for sent in events(services, url.rsplit("/", 1)[1]):
            return f"event: {sent.event}"
        return ""

    return asyncio.run(first())


def test_killed_and_started_again_it_comes_to_the_same_result(tmp_path: Path) -> None:
    asked = {"limit": "3", "dev": "4"}
    with serving(tmp_path / "undisturbed") as browser:
        wanted = without_id(over(browser, start(browser, set=bring(browser), **asked)))
    folder = tmp_path / "killed"
    server, address = start_process(folder, 0.05)
    try:
        of = httpx.post(f"{address}/evaluations/sets", files={"questions": ("things.jsonl", lines())})
        made = until(
            lambda: httpx.post(f"{address}/evaluations", data={"set": of.headers["location"].split("=")[1], **asked}),
            lambda response: response.status_code == 303,  # the model is loading at first
        )
        url = made.headers["location"]
        until(lambda: httpx.get(f"{address}{url}").text, lambda page: " · last: " in page)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        assert server.stdout
        server.stdout.close()
    with contextlib.closing(sqlite3.connect(folder / "sfumato.db")) as database:
        assert database.execute("SELECT state FROM jobs WHERE kind = 'evaluation'").fetchall() == [("running",)]
        assert database.execute("SELECT count(*) FROM evaluation_parts").fetchone()[0] >= 1
    with serving(folder) as browser:
        assert without_id(over(browser, url)) == wanted


def test_where_no_picture_of_the_test_can_be_read_it_fails_in_words(tmp_path: Path) -> None:
    table = b"picture,question,answer\n" + b"".join(b"p%d.png,Is it?,lemon\n" % k for k in range(40))
    pictures = zipped(**{f"p{k}": b"x" if split_of(0, f"p{k}.png") == "test" else png(k) for k in range(40)})
    with serving(tmp_path, Turning) as browser:
        url = start(browser, set=bring(browser, table, "seen.csv", pictures=("p.zip", pictures)))
        assert "No test question could be asked" in over(browser, url, "failed")["error"]
        for page in (url, "/evaluations"):
            assert browser.http.get(page).status_code == 200


def test_other_concepts_are_another_evaluation(tmp_path: Path) -> None:
    with serving(tmp_path, Turning) as browser:
        url = start(browser, set=bring(browser), **HALF)
        over(browser, url)
        with browser.services.database.write() as session:
            session.execute(delete(EvaluationPart))
            row = session.get_one(JobRow, url.rsplit("/", 1)[1])
            row.params, row.state = {**row.params, "library": "another"}, "queued"
        browser.services.worker.wake()
        assert "The concepts have changed" in over(browser, url, "failed")["error"]


def test_an_unknown_evaluation_is_missing(shared: Browser) -> None:
    for path in ("", ".json", ".csv", "/events"):
        assert shared.http.get(f"/evaluations/nothing{path}").status_code == 404
    assert shared.http.post("/evaluations/nothing/cancel").status_code == 404


@pytest.mark.parametrize(("path", "limit"), [("/evaluations", 4), ("/evaluations/plan?kind=name", 6), ("", 7)])
def test_pages_take_a_fixed_number_of_queries(done: tuple[Browser, str, str], path: str, limit: int) -> None:
    browser, url, _ = done
    engine, statements = browser.services.database.engine, []

    def count(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", count)
    try:
        assert browser.http.get(path or url).status_code == 200
    finally:
        event.remove(engine, "before_cursor_execute", count)
    assert 0 < len([text for text in statements if text.startswith("SELECT")]) <= limit


def test_the_set_of_tests_is_as_large_as_it_says() -> None:
    assert lines().count(b"\n") == QUESTIONS - 1
