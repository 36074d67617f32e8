"""A sweep makes way for whoever waits for an answer, and comes to the same points."""

import threading
from pathlib import Path
from typing import Any

from app.sweeppoints import ASIDE, KEPT, SweepPoints
from engine.contract import sweeps
from tests.app.conftest import Browser, serving, until
from tests.app.measuring import ended, holding, row_of
from tests.app.test_sweeps import Paced, done, job_of, post


def undisturbed(folder: Path) -> list[dict[str, Any]]:
    with serving(folder) as browser:
        points: list[dict[str, Any]] = done(browser, job_of(post(browser, browser.ask("What is this?"))))["points"]
        return points


def started(browser: Browser, url: str) -> str:
    job = job_of(post(browser, url))
    until(lambda: browser.services.worker.points(job), bool)
    return job


def test_a_steered_answer_does_not_wait_for_a_sweep(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    with holding(tmp_path / "both", Paced) as (browser, go_on):
        url = browser.ask("What is this?")
        job = started(browser, url)
        shown = browser.services.worker.points(job)
        assert browser.settled(browser.turn(url, "pizza", -1))["provenance"]["state"] == "done"
        assert row_of(browser, job).live
        assert browser.services.worker.points(job) == shown, "what was shown stays"
        go_on.set()
        assert done(browser, job)["points"] == expected
        assert not browser.services.worker.points(job)


def test_so_does_a_question(tmp_path: Path) -> None:
    with holding(tmp_path, Paced) as (browser, go_on):
        job = started(browser, browser.ask("What is this?"))
        assert browser.data(browser.ask("What is that?"))["answer"]
        assert row_of(browser, job).live
        go_on.set()
        ended(browser, job)


def test_who_keeps_asking_does_not_keep_a_sweep_from_its_end(tmp_path: Path) -> None:
    with holding(tmp_path, Paced) as (browser, go_on):
        url = browser.ask("What is this?")
        job = started(browser, url)
        for number in range(ASIDE):
            assert browser.settled(browser.turn(url, "pizza", -1 - number / 10))["provenance"]["state"] == "done"
        until(lambda: row_of(browser, job).state, lambda state: state == "running")
        late = browser.turn(url, "pizza", 2)
        assert browser.state(late) == "queued"
        go_on.set()
        assert done(browser, job)["points"]
        assert browser.settled(late)["provenance"]["state"] == "done"


def test_one_that_stands_aside_can_be_cancelled(tmp_path: Path) -> None:
    steering, free = threading.Event(), threading.Event()

    class Slow(Paced):
        def steer(self, *args: Any, **kwargs: Any) -> Any:
            if any(turn.concept == "pizza" for turn in args[2].concepts):  # the fake's sweeps steer, too
                steering.set()
                assert free.wait(10)
            return super().steer(*args, **kwargs)

    with holding(tmp_path, Slow) as (browser, go_on):
        url = browser.ask("What is this?")
        job = started(browser, url)
        child = browser.turn(url, "pizza", -1)
        assert steering.wait(10)
        assert row_of(browser, job).state == "queued"
        browser.http.post(f"/sweeps/{job}/cancel")
        assert row_of(browser, job).state == "cancelled"
        free.set()
        assert browser.settled(child)["provenance"]["state"] == "done"
        assert row_of(browser, job).state == "cancelled"
        go_on.set()
        assert job_of(post(browser, url)) == job
        assert done(browser, job)["points"], "asked for again, it is swept again"


def point(tokens: int) -> tuple[sweeps.SweepPoint, ...]:
    return (sweeps.SweepPoint(0.0, "x" * tokens, tuple(range(tokens)), 0.0, 0.0, True),)


def test_points_never_go_back_and_are_not_kept_for_ever() -> None:
    known, wake, told = SweepPoints(), threading.Event(), list[int]()
    take = known.begin("a", lambda: told.append(1))
    take(point(3))
    wake.set()
    assert known.making_way("a", lambda: False, wake, lambda: True)()
    assert not known.end("a")
    take = known.begin("a", lambda: told.append(2))
    take(point(1))
    assert (known.of("a"), told) == (point(3), [1])
    take(point(4))
    assert (known.of("a"), told) == (point(4), [1, 2])
    assert known.end("a")
    assert not known.of("a")
    for number in range(3 * KEPT):
        known.begin(str(number), lambda: None)(point(1))
        wake.set()
        assert known.making_way(str(number), lambda: False, wake, lambda: True)()
        known.end(str(number))
    assert sum(bool(known.of(str(number))) for number in range(3 * KEPT)) <= KEPT


def test_it_makes_way_for_nobody_where_nobody_waits() -> None:
    known, wake = SweepPoints(), threading.Event()
    stop = known.making_way("a", lambda: False, wake, lambda: False)
    wake.set()
    assert not stop()
    assert not wake.is_set()
