"""Durable runs: identity, the queue, cancelling, asking again, and what a crash leaves."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import delete, select
from sqlalchemy.exc import OperationalError

from app import jobs
from app.tables import AttributionRow, NeuronRow, Run
from engine.contract import NonFinite
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until


def test_the_same_question_is_one_run(browser: Browser, pictures: Path) -> None:
    picture = (pictures / "ok.png").read_bytes()
    url = browser.ask("What is this?", picture)
    assert browser.ask("  What is  this? ", picture) == url
    assert browser.ask("What is this?", (pictures / "palette.png").read_bytes()) == url, "the same pixels"
    assert browser.ask("What is this?", (pictures / "gray.png").read_bytes()) != url
    assert browser.ask("What is that?", picture) != url
    assert browser.ask("What is this?") != url


def test_control_characters_are_dropped(browser: Browser) -> None:
    url = browser.ask("What\0 is\tthis?")
    assert browser.data(url)["provenance"]["question"] == "What is this?"


def test_a_double_click_is_one_run(slow: Browser) -> None:
    with ThreadPoolExecutor(8) as pool:
        urls = set(pool.map(lambda _: slow.ask("Describe it.", wait=False), range(8)))
    assert len(urls) == 1


def test_a_streaming_run_shows_what_has_come(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    page = until(
        lambda: slow.http.get(url).text, lambda text: "the picture" in " ".join(text.split()) or "shows" in text
    )
    assert 'aria-busy="true"' in page
    assert "Cancel" in page
    assert slow.settled(url)["answer"].startswith("the picture shows")


def test_cancelling_stops_within_a_token_and_asking_again_works(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    until(lambda: slow.state(url), lambda state: state == "running")
    assert slow.http.post(f"{url}/cancel").status_code == 200
    data = slow.settled(url)
    assert data["provenance"]["state"] == "cancelled"
    assert data["answer"] is None, "it stopped before the answer was whole"
    assert slow.http.post(f"{url}/cancel").status_code == 200, "cancelling twice changes nothing"
    assert "Ask again" in slow.http.get(url).text
    slow.http.post(f"{url}/again")
    assert slow.settled(url)["provenance"]["state"] == "done"


def test_a_queued_run_is_cancelled_at_once_and_knows_its_place(slow: Browser) -> None:
    first = slow.ask("Describe it.", wait=False)
    second = slow.ask("Describe that.", wait=False)
    third = slow.ask("Describe those.", wait=False)
    assert "number 3 in the queue" in slow.http.get(third).text or slow.state(first) == "done"
    slow.http.post(f"{second}/cancel")
    assert slow.state(second) == "cancelled"
    assert slow.settled(first)["provenance"]["state"] == "done"
    assert slow.settled(third)["provenance"]["state"] == "done"


def test_asking_a_stopping_run_again_takes_the_stop_back(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    until(lambda: slow.state(url), lambda state: state == "running")
    slow.http.post(f"{url}/cancel")
    assert slow.ask("Describe it.", wait=False) == url
    assert slow.settled(url)["provenance"]["state"] == "done"


class Failing(FakeEngine):
    """Fails at the first questions, in every way an engine can."""

    errors = (RuntimeError("out of memory"), NonFinite("NaN at layer 3"), KeyboardInterrupt(), SystemExit(1))
    count = 0

    def ask(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        if type(self).count < len(self.errors):
            type(self).count += 1
            raise self.errors[type(self).count - 1]
        return super().ask(*args, **kwargs)  # type: ignore[arg-type]


def test_no_failure_kills_the_worker(tmp_path: Path) -> None:
    Failing.count = 0
    with serving(tmp_path, Failing) as browser:
        for number, words in enumerate(("out of memory", "NaN at layer 3", "KeyboardInterrupt", "SystemExit")):
            url = browser.ask(f"What is {number}?", wait=False)
            assert browser.settled(url)["provenance"]["state"] == "failed"
            assert words in browser.http.get(url).text
        assert browser.data(browser.ask("And now?"))["answer"]
        browser.http.post(f"{url}/again")
        assert browser.settled(url)["provenance"]["state"] == "done"


def test_an_end_that_could_not_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is locked just when a run fails: the run must not stay `running`."""
    Failing.count = 0
    original, tries = jobs.fail, []

    def fail(*args: object) -> None:
        tries.append(args)
        if len(tries) == 1:
            raise OperationalError("UPDATE runs", {}, Exception("database is locked"))
        original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("app.jobs.fail", fail)
    monkeypatch.setattr("app.worker.RETRY", 0.01)
    with serving(tmp_path, Failing) as browser:
        url = browser.ask("What is it?", wait=False)
        assert browser.settled(url)["provenance"]["state"] == "failed"
        assert "out of memory" in browser.http.get(url).text
        assert len(tries) == 2


def test_what_a_crash_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
        other = browser.ask("What is that?")
        with browser.services.database.write() as session:
            for path in (url, other):
                run = session.get_one(Run, path.rsplit("/", 1)[1])
                run.state, run.answer = "running", None
            run.stop_requested = True
            row = AttributionRow(
                run_id=url.rsplit("/", 1)[1], start=0, end=1, key="0-1", method="direct", state="running"
            )
            session.add(row)
    with serving(tmp_path) as browser:
        assert browser.settled(url)["answer"]
        assert browser.state(other) == "cancelled", "it had been asked to stop"
        assert "event: end" in browser.http.get(f"{url}/events?span=0-1&method=direct").text


def test_everything_survives_a_restart(tmp_path: Path, pictures: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?", (pictures / "ok.png").read_bytes())
        child = browser.turn(url, browser.data(url)["answer"], -1)
        browser.settled(child)
        before = browser.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}&fragment=answer,neurons,steered,picture").text
    with serving(tmp_path) as browser:
        again = browser.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}&fragment=answer,neurons,steered,picture").text
        assert again == before


class Other(FakeEngine):
    """Another model."""

    def info(self):  # type: ignore[no-untyped-def]
        import dataclasses

        return dataclasses.replace(super().info(), revision="other-1", name="other")


def test_another_model_does_not_touch_earlier_runs(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
        answer = browser.data(url)["answer"]
    with serving(tmp_path, Other) as browser:
        assert "another model is loaded now" in browser.http.get(url).text
        assert browser.ask("What is it?") != url, "another model, another run"
        child = browser.turn(url, answer, -1)
        assert browser.settled(child)["provenance"]["state"] == "failed"
        assert "asked of another model" in browser.http.get(child).text
        assert "event: end" in browser.http.get(f"{url}/events?method=direct").text
        assert "asked of another model" in browser.http.get(f"{url}?method=direct").text


def test_closing_leaves_running_work_for_the_next_start(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: FakeEngine(0.05)) as browser:
        url = browser.ask("Describe it.", wait=False)
        until(lambda: browser.state(url), lambda state: state == "running")
        worker = browser.services.worker
    assert not worker._thread.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name == "sfumato-worker"]
    with serving(tmp_path) as browser:
        assert browser.settled(url)["provenance"]["state"] == "done"


def test_a_run_cancelled_after_its_answer_computes_nothing_by_being_looked_at(browser: Browser) -> None:
    url = browser.ask("Describe it.")
    with browser.services.database.write() as session:
        session.get_one(Run, url.rsplit("/", 1)[1]).state = "cancelled"
        session.execute(delete(NeuronRow))
        session.execute(delete(AttributionRow))
    page = browser.http.get(url).text
    assert "ended before its neurons were found" in page
    assert "the picture shows" in page
    with browser.services.database.read() as session:
        assert session.scalars(select(AttributionRow)).all() == []
    assert "event: end" in browser.http.get(f"{url}/events?span=0-1").text, "but a span that is asked for is computed"
    with browser.services.database.read() as session:
        assert len(session.scalars(select(AttributionRow)).all()) == 1


def test_steered_runs_go_first(slow: Browser) -> None:
    url = slow.ask()
    answer = slow.data(url)["answer"]
    waiting = [slow.ask(f"Describe {number}.", wait=False) for number in range(3)]
    child = slow.turn(url, answer, -1)
    slow.settled(child)
    assert slow.state(waiting[-1]) == "queued"
    for other in waiting:
        slow.http.post(f"{other}/cancel")


@pytest.mark.parametrize("run", ["nosuchrun", "x" * 300])
def test_posting_to_a_run_that_is_not_there(shared: Browser, run: str) -> None:
    for action in ("cancel", "again", "steer"):
        assert shared.http.post(f"/runs/{run}/{action}").status_code == 404


def test_results_that_are_not_there_yet_are_accepted_and_not_ok(slow: Browser) -> None:
    """Empty lists under 200 would look like a result."""
    url = slow.ask(wait=False)
    early = slow.http.get(f"{url}.json")
    assert (early.status_code, early.json()["neurons"]) == (202, [])
    slow.settled(url)
    assert slow.http.get(f"{url}.json").status_code == 200
