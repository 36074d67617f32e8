"""Moves of tests that measure: ask for a measurement, and look at its row."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app import longjobs, runs
from app.tables import JobRow
from app.targets import TargetChoice
from engine.contract import Cancelled, IsCancelled, OnProgress, Target
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until


class Held(FakeEngine):
    """Its slow work (faithfulness, noise, and the method `ablation`) does a first batch again and again until `go_on`
    is set. `batches` counts them."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__()
        self.go_on, self.batches = go_on, 0

    def _hold(self, cancelled: IsCancelled, on_progress: OnProgress | None) -> None:
        while on_progress is not None and not self.go_on.is_set():
            if cancelled():
                raise Cancelled("Stopped between two batches.")
            self.batches += 1
            on_progress(8, 64)
            time.sleep(0.005)

    def faithfulness(self, *args: Any) -> Any:
        *_, on_progress, cancelled = args
        self._hold(cancelled, on_progress)
        return super().faithfulness(*args)

    def noise(self, *args: Any) -> Any:
        self._hold(args[-1], lambda *_: None)
        return super().noise(*args)

    def attribute(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 8:  # with a way to tell how far it is
            *_, cancelled, on_progress = args
            self._hold(cancelled, on_progress)
        return super().attribute(*args, **kwargs)


@contextlib.contextmanager
def holding(
    folder: Path, kind: Callable[[threading.Event], FakeEngine] = Held, **settings: Any
) -> Iterator[tuple[Browser, threading.Event]]:
    """An application whose slow work does not end before the event is set."""
    go_on = threading.Event()
    with serving(folder, lambda: kind(go_on), **settings) as browser:
        yield browser, go_on


def measure(browser: Browser, url: str, kind: str = "faithfulness", method: str = "gradient") -> str:
    """The job's id."""
    run_id = url.rsplit("/", 1)[1]
    choice = TargetChoice(Target(0, len(browser.data(url)["tokens"])))
    runs.measure(browser.services, run_id, kind, choice, method)
    with browser.services.database.read() as session:
        (row,) = longjobs.of_run(session, run_id, (kind,), choice, method)
        return row.id


def row_of(browser: Browser, job_id: str) -> JobRow:
    with browser.services.database.read() as session:
        return session.get_one(JobRow, job_id)


def running(browser: Browser, job_id: str) -> JobRow:
    """The job once it has done a batch."""
    row: JobRow = until(lambda: row_of(browser, job_id), lambda row: row.state == "running" and row.done)
    return row


def ended(browser: Browser, job_id: str, state: str = "done") -> JobRow:
    row: JobRow = until(lambda: row_of(browser, job_id), lambda row: not row.live)
    assert row.state == state, row.error
    return row
