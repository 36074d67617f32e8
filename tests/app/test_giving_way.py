"""Slow work lets others pass, one job inside the other, and neither harms the other: with a fake and a real engine."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.exc import OperationalError

from app import jobs, longjobs
from engine.contract import IsCancelled, OnProgress, Question, Steering, Target
from engine.hooks import count_hooks
from engine.local import LocalEngine
from tests.app.conftest import Browser, serving, until
from tests.app.measuring import Held, ended, holding, measure, row_of, running
from tests.engine import tiny


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker notes every batch, and tries again at once."""
    monkeypatch.setattr("app.worker.PACE", 0.0)
    monkeypatch.setattr("app.worker.RETRY", 0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a measurement that had the engine to itself."""
    with serving(tmp_path_factory.mktemp("undisturbed")) as browser:
        result = ended(browser, measure(browser, browser.ask("Describe it."))).result
        assert result
        return result


def test_everything_that_a_person_waits_for_passes(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        assert browser.settled(browser.turn(url, "pizza", -1))["provenance"]["state"] == "done"
        assert "event: end" in browser.http.get(f"{url}/events?span=1-2").text, "another target"
        assert ended(browser, measure(browser, url, "input")).result
        assert browser.data(browser.ask("What is that?"))["answer"]
        assert row_of(browser, job).state == "running"
        go_on.set()
        assert ended(browser, job).result == undisturbed


def test_nobody_waits_for_the_pace_of_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.worker.PACE", 600.0)
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        measure(browser, url)
        until(lambda: browser.services.worker.slow, bool)
        assert browser.settled(browser.turn(url, "pizza", -1))["provenance"]["state"] == "done"
        go_on.set()


def test_a_slow_attribution_lets_others_pass_and_says_how_far_it_is(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        status = f"{url}?method=ablation&fragment=status"
        assert "8 of 64 ablated runs" in until(lambda: browser.http.get(status).text, lambda text: "ablated" in text)
        other = browser.http.get(f"{url}?fragment=status").text
        assert "ablated" not in other, "another method's page does not wait for it"
        assert browser.settled(browser.turn(url, "pizza", -1))["provenance"]["state"] == "done"
        assert browser.services.worker.slow
        go_on.set()
        assert "event: end" in browser.http.get(f"{url}/events?method=ablation").text
        assert "ablated runs" not in browser.http.get(status).text
        assert browser.http.get(f"{url}.json?method=ablation").json()["neurons"]


def test_who_waits_behind_slow_work_is_told_so(tmp_path: Path) -> None:
    begun = threading.Event()

    class Stuck(Held):
        """A batch that takes long."""

        def faithfulness(self, *args: Any) -> Any:
            begun.set()
            assert self.go_on.wait(10)
            return super().faithfulness(*args)

    with holding(tmp_path, Stuck) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        assert begun.wait(10)
        waiting = browser.ask("What is that?", wait=False)
        status = browser.http.get(f"{waiting}?fragment=status").text
        assert "number 1 in the queue" in status, "the measurement lets it pass"
        assert "slow work lets it pass" in status
        go_on.set()
        assert browser.settled(waiting)["provenance"]["state"] == "done"
        ended(browser, job)
        until(lambda: browser.services.worker.slow, lambda slow: not slow)


class Failing(Held):
    """Fails to steer, in the ways an engine can."""

    errors = (RuntimeError("out of memory"), KeyboardInterrupt(), SystemExit(1))
    count = 0

    def steer(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        raise self.errors[(self.count - 1) % len(self.errors)]


def test_what_fails_inside_does_not_end_what_is_around_it(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with holding(tmp_path, Failing) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        for number, words in enumerate(("out of memory", "KeyboardInterrupt", "SystemExit")):
            child = browser.turn(url, "pizza", -1 - number / 10)
            assert browser.settled(child)["provenance"]["state"] == "failed"
            assert words in browser.http.get(child).text
        assert row_of(browser, job).state == "running"
        go_on.set()
        assert ended(browser, job).result == undisturbed


def while_locked(original: Callable[..., Any], locked: threading.Event, tries: list[int]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        tries.append(1)
        if locked.is_set():
            raise OperationalError("UPDATE", {}, Exception("database is locked"))
        return original(*args)

    return call


def test_an_end_inside_that_could_not_be_written_is_written_while_the_outer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    locked, tries = threading.Event(), list[int]()
    locked.set()
    monkeypatch.setattr("app.jobs.fail", while_locked(jobs.fail, locked, tries))
    with holding(tmp_path, Failing) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        child = browser.turn(url, "pizza", -1)
        until(lambda: len(tries), lambda count: count >= 3)
        assert browser.state(child) == "running"
        locked.clear()
        assert browser.settled(child)["provenance"]["state"] == "failed"
        assert row_of(browser, job).state == "running"
        go_on.set()
        assert ended(browser, job).result == undisturbed


def test_ends_that_could_not_be_written_are_all_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the job inside and of the one around it: neither stays `running`."""

    class Both(Failing):
        def faithfulness(self, *args: Any) -> Any:
            super().faithfulness(*args)
            raise RuntimeError("the model broke down")

    locked, inner, outer = threading.Event(), list[int](), list[int]()
    locked.set()
    monkeypatch.setattr("app.jobs.fail", while_locked(jobs.fail, locked, inner))
    monkeypatch.setattr("app.longjobs.fail", while_locked(longjobs.fail, locked, outer))
    with holding(tmp_path, Both) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        child = browser.turn(url, "pizza", -1)
        until(lambda: len(inner), bool)
        go_on.set()
        until(lambda: len(outer), lambda count: count >= 2)
        assert browser.state(child) == row_of(browser, job).state == "running", "nothing can be written yet"
        locked.clear()
        assert browser.settled(child)["provenance"]["state"] == "failed"
        assert "the model broke down" in ended(browser, job, "failed").error
        assert browser.data(browser.ask("What is that?"))["answer"]


class Watched(LocalEngine):
    """A real model whose hooks are counted between the batches of a measurement; the first batch waits for `go_on`."""

    go_on: threading.Event
    hooks: list[int]

    def faithfulness(  # the whole signature, as the contract has it
        self,
        question: Question,
        answer_ids: Any,
        target: Target,
        method: str = "gradient",
        steering: Steering | None = None,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = lambda: False,
    ) -> Any:
        def watch(done: int, total: int) -> None:
            assert on_progress is not None
            while True:
                self.hooks.append(count_hooks(self.loaded.model))
                on_progress(done, total)
                if self.go_on.wait(0.01):
                    return

        assert steering is not None
        return super().faithfulness(question, answer_ids, target, method, steering, watch, cancelled)


def test_on_a_real_model_neither_changes_the_other(tmp_path: Path, pictures: Path) -> None:
    """The same numbers to the last bit as when each had the model to itself; no hook is left between two batches."""
    loaded = tiny.make(tmp_path / "model", tiny.Kind(adds_bos=True, template=tiny.NO_BOS))
    picture = (pictures / "ok.png").read_bytes()
    go_on, hooks = threading.Event(), list[int]()

    def factory() -> LocalEngine:
        engine = Watched(loaded)
        engine.go_on, engine.hooks = go_on, hooks
        return engine

    def asked(folder: Path, *, together: bool) -> tuple[dict[str, Any], Any, Any]:
        go_on.clear()
        with serving(folder, factory) as browser:
            url = browser.ask("what is on the left?", picture)
            fields = {"panel": "p", "neuron:text.1.2": "0", "neuron:text.0.3": "3"}
            job = measure(browser, url)
            running(browser, job)
            if not together:
                go_on.set()
                ended(browser, job)
            response = browser.http.post(f"{url}/steer", data=fields, headers={"HX-Request": "true"})
            child = f"/runs/{response.headers['HX-Replace-Url'].partition('steer=')[2]}"
            steered = browser.settled(child, 30)
            span = explained(browser, f"{url}?span=0-1")
            if together:
                assert row_of(browser, job).state == "running"
                go_on.set()
            result = ended(browser, job).result
            assert result
            assert steered["provenance"]["state"] == "done"
            return result, [token["logprob"] for token in steered["tokens"]], span

    alone = asked(tmp_path / "alone", together=False)
    assert asked(tmp_path / "together", together=True) == alone
    assert np.ptp(alone[0]["ranked"]) > 0
    assert len(hooks) > 5
    assert not any(hooks)


def explained(browser: Browser, url: str) -> list[float]:
    """The scores of another target, once they are there."""
    path, _, query = url.partition("?")
    data = until(lambda: browser.http.get(f"{path}.json?{query}").json(), lambda data: data["neurons"], 30)
    return [neuron["score"] for neuron in data["neurons"]]
