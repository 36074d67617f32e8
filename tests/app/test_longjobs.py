"""Long jobs as rows: one for each identity, cancelled, cut off, taken up again; and they always end in their row."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select
from sqlalchemy.exc import OperationalError

from app import longjobs, runs
from app.tables import AttributionRow, JobRow, Run
from engine.contract import ModelInfo
from engine.fake import FakeEngine
from tests.app.conftest import serving, until
from tests.app.measuring import Held, ended, holding, measure, row_of, running


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is noted."""
    monkeypatch.setattr("app.worker.PACE", 0.0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a measurement that had the engine to itself."""
    with serving(tmp_path_factory.mktemp("undisturbed")) as browser:
        result = ended(browser, measure(browser, browser.ask("Describe it."))).result
        assert result
        assert len(result["sample"]) > 50
        return result


def test_what_is_as_slow_waits(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        first, second = measure(browser, url), measure(browser, url, method="direct")
        running(browser, first)
        with browser.services.database.read() as session:
            assert longjobs.place(session, session.get_one(JobRow, first)) == 0
            assert longjobs.place(session, session.get_one(JobRow, second)) == 2
        go_on.set()
        ended(browser, first)
        ended(browser, second)


def test_progress_only_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[int, int]] = []
    original = longjobs.progress

    def progress(database: Any, job_id: str, done: int, total: int) -> bool:
        noted.append((done, total))
        return original(database, job_id, done, total)

    monkeypatch.setattr("app.longjobs.progress", progress)
    with serving(tmp_path) as browser:
        row = ended(browser, measure(browser, browser.ask("Describe it.")))
    assert len(noted) > 4
    assert noted == sorted(noted)
    assert noted[-1] == (row.total, row.total) == (row.done, row.total)


def test_cancelling_stops_within_a_batch(tmp_path: Path) -> None:
    engines: list[Held] = []

    def held(go_on: threading.Event) -> Held:
        engines.append(Held(go_on))
        return engines[0]

    with holding(tmp_path, held) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        runs.cancel_measurement(browser.services, job)
        at = engines[0].batches
        assert ended(browser, job, "cancelled").result is None
        assert engines[0].batches <= at + 1
        runs.cancel_measurement(browser.services, job)
        assert row_of(browser, job).state == "cancelled", "cancelling twice changes nothing"
        go_on.set()
        assert measure(browser, url) == job
        assert ended(browser, job).result, "asked again, it is measured again"


def test_a_waiting_one_is_cancelled_at_once(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        first, second = measure(browser, url), measure(browser, url, method="direct")
        running(browser, first)
        runs.cancel_measurement(browser.services, second)
        assert row_of(browser, second).state == "cancelled"
        go_on.set()
        assert ended(browser, first).result


def test_asking_again_takes_the_stop_back(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        runs.cancel_measurement(browser.services, job)
        assert measure(browser, url) == job
        go_on.set()
        assert ended(browser, job).result == undisturbed


def test_the_same_measurement_is_one_row(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda _: measure(browser, url), range(8)))) == 1
        with browser.services.database.read() as session:
            assert len(session.scalars(select(JobRow)).all()) == 1
        go_on.set()


def test_a_full_queue_takes_no_more(tmp_path: Path) -> None:
    with holding(tmp_path, max_queue=1) as (browser, go_on):
        url = browser.ask("Describe it.")
        running(browser, measure(browser, url))
        second = measure(browser, url, method="direct")
        with pytest.raises(runs.QueueFull, match="1 jobs wait already; at most 1 may"):
            measure(browser, url, method="pan")
        assert measure(browser, url, method="direct") == second, "what waits already takes no more room"
        go_on.set()
        ended(browser, second)
        with browser.services.database.read() as session:
            assert {row.params["method"] for row in session.scalars(select(JobRow))} == {"gradient", "direct"}


def test_what_a_crash_cut_off_is_measured_again(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("Describe it.")
        job, other = measure(browser, url), measure(browser, url, method="direct")
        ended(browser, other)
        with browser.services.database.write() as session:
            row, dropped = session.get_one(JobRow, job), session.get_one(JobRow, other)
            row.state, row.result, row.done = "running", None, 40
            dropped.state, dropped.result, dropped.stop_requested = "running", None, True
    with serving(tmp_path) as browser:
        assert ended(browser, job).result == undisturbed
        assert row_of(browser, other).state == "cancelled", "it had been asked to stop"


def test_closing_in_the_middle_leaves_it_for_the_next_start(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with holding(tmp_path) as (browser, _):
        job = measure(browser, browser.ask("Describe it."))
        running(browser, job)
        services = browser.services
    assert not services.worker._thread.is_alive()
    assert row_of(browser, job).state == "queued"
    with serving(tmp_path) as browser:
        assert ended(browser, job).result == undisturbed


class Other(Held):
    """Another model."""

    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), revision="other-1", name="other")


def test_another_model_measures_nothing_of_it(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("Describe it.")
    with holding(tmp_path, Other) as (browser, go_on):
        go_on.set()
        job = measure(browser, url)
        error = ended(browser, job, "failed").error
        assert error.startswith("This run was asked of another model than the one that is loaded now (fake")
        assert "Ask the question again, or start the server with that model." in error
        own = browser.ask("Describe it.")
        assert ended(browser, measure(browser, own)).result
    with serving(tmp_path) as browser:
        assert measure(browser, url) == job
        assert ended(browser, job).result, "with the right model it is measured"


def test_who_is_refused_inside_a_long_job_hears_of_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        old = browser.ask("Describe it.")
    with holding(tmp_path, Other) as (browser, go_on):
        job = measure(browser, browser.ask("Describe it."))
        running(browser, job)
        told: list[str] = []
        stream = threading.Thread(target=lambda: told.append(browser.http.get(f"{old}/events?method=direct").text))
        stream.start()
        stream.join(10)
        assert told, "the stream has ended"
        assert "asked of another model" in told[0]
        assert row_of(browser, job).state == "running"
        go_on.set()


def test_a_run_that_is_gone_ends_its_measurement(tmp_path: Path) -> None:
    """A row that was deleted under the worker can never be settled: nothing may wait for that."""
    with holding(tmp_path) as (browser, go_on):
        job = measure(browser, browser.ask("Describe it."))
        running(browser, job)
        with browser.services.database.write() as session:
            session.execute(delete(Run))
            assert session.get(JobRow, job) is None
        until(lambda: browser.services.worker.slow, lambda slow: not slow)
        go_on.set()
        assert ended(browser, measure(browser, browser.ask("What is that?"))).result
        with browser.services.database.read() as session:
            assert session.get(JobRow, job) is None


@pytest.mark.parametrize("steered", [False, True])
def test_a_row_that_is_gone_when_its_work_fails(tmp_path: Path, *, steered: bool) -> None:
    begun, gone = threading.Event(), threading.Event()

    class Late(FakeEngine):
        def _fail(self) -> None:
            begun.set()
            assert gone.wait(10)
            raise RuntimeError("too late")

        def steer(self, *args: Any, **kwargs: Any) -> Any:
            self._fail()

        def attribute(self, *args: Any, **kwargs: Any) -> Any:
            if "direct" in args:
                self._fail()
            return super().attribute(*args, **kwargs)

    with serving(tmp_path, Late) as browser:
        url = browser.ask("Describe it.")
        if steered:
            browser.turn(url, "pizza", -1)
        else:
            browser.http.get(f"{url}?method=direct")
        assert begun.wait(10)
        with browser.services.database.write() as session:
            session.execute(delete(Run).where(Run.parent_id.is_not(None)))
            session.execute(delete(AttributionRow).where(AttributionRow.method == "direct"))
        gone.set()
        assert browser.data(browser.ask("What is that?"))["answer"]


def test_a_note_that_cannot_be_written_does_not_end_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    tries: list[int] = []
    original = longjobs.progress

    def progress(*args: Any) -> bool:
        tries.append(1)
        if len(tries) <= 3:
            raise OperationalError("UPDATE jobs", {}, Exception("database is locked"))
        return original(*args)

    monkeypatch.setattr("app.longjobs.progress", progress)
    with serving(tmp_path) as browser:
        assert ended(browser, measure(browser, browser.ask("Describe it."))).result == undisturbed
    assert len(tries) > 3
