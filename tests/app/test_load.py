"""Many people at once, and the power cord."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import uvicorn

from app.main import create_app
from app.settings import Settings
from engine.fake import FakeEngine
from tests.app.conftest import serving, until
from tests.support import ROOT

SECONDS = 3


def test_twenty_writers_and_twenty_readers(tmp_path: Path) -> None:
    """On SQLite, through the whole application: nothing fails, nothing is lost."""
    errors: list[str] = []
    asked: list[str] = []
    reads = 0
    with serving(tmp_path, FakeEngine, max_queue=100_000) as browser:
        url = browser.ask("Describe it.")
        stop = time.monotonic() + SECONDS

        def write(number: int) -> None:
            count = 0
            while time.monotonic() < stop:
                count += 1
                try:
                    asked.append(browser.ask(f"What is {number}-{count}?", wait=False))
                except Exception as error:  # noqa: BLE001 - whatever it is, it fails the test
                    errors.append(repr(error))

        def read(number: int) -> None:
            nonlocal reads
            while time.monotonic() < stop:
                path = (url, "/runs", f"{url}.json", "/")[number % 4]
                response = browser.http.get(path)
                reads += 1
                if response.status_code != 200:
                    errors.append(f"{path}: {response.status_code}")

        threads = [threading.Thread(target=write, args=(n,)) for n in range(20)]
        threads += [threading.Thread(target=read, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(asked) > 20
        assert reads > 20
        assert len(set(asked)) == len(asked)
        for late in asked[-20:]:
            browser.settled(late, 60)


def start(folder: Path, delay: float) -> tuple[subprocess.Popen[str], str]:
    environment = {**os.environ, "SFUMATO_FAKE_DELAY": str(delay), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "app.cli", "serve", "--model", "fake", "--port", "0", "--data-dir", str(folder)]
    server = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout
    address = re.search(r"http://\S+/", server.stdout.readline())
    assert address

    def healthy() -> bool:
        try:
            return httpx.get(f"{address[0]}healthz").status_code == 200
        except httpx.TransportError:
            return False

    until(healthy, bool, 30)
    return server, address[0].rstrip("/")


def test_killed_in_mid_run_and_started_again(tmp_path: Path, pictures: Path) -> None:
    server, address = start(tmp_path, 0.05)
    try:
        files = {"picture": ("a.png", (pictures / "ok.png").read_bytes())}
        url = httpx.post(f"{address}/runs", data={"question": "Describe it."}, files=files).headers["location"]
        waiting = httpx.post(f"{address}/runs", data={"question": "Describe that."}).headers["location"]
        until(lambda: httpx.get(f"{address}{url}.json").json()["provenance"]["state"], lambda state: state == "running")
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        assert server.stdout
        server.stdout.close()
    with sqlite3.connect(tmp_path / "sfumato.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    server, address = start(tmp_path, 0.0)
    try:
        for path in (url, waiting):
            data = until(
                lambda path=path: httpx.get(f"{address}{path}.json").json(),
                lambda data: data["provenance"]["state"] == "done",
            )
            assert data["answer"].startswith("the picture shows")
            assert data["neurons"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0 or server.returncode == -signal.SIGTERM
    finally:
        server.kill()
        server.wait()
        assert server.stdout
        server.stdout.close()


def test_a_browser_that_leaves_a_stream_leaves_nothing(tmp_path: Path) -> None:
    """With a real server: the connection is closed in the middle of an answer, which goes on without it."""
    app = create_app(Settings(model="fake", data_dir=tmp_path), lambda: FakeEngine(0.03))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, bool)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        until(lambda: httpx.get(f"{address}/healthz").status_code, lambda status: status == 200)
        url = httpx.post(f"{address}/runs", data={"question": "Describe it."}).headers["location"]
        with httpx.stream("GET", f"{address}{url}/events") as stream:
            assert next(stream.iter_lines()).startswith("event:")
            assert app.state.services.broker.listeners == 1
        until(lambda: app.state.services.broker.listeners, lambda count: count == 0)
        state = until(
            lambda: httpx.get(f"{address}{url}.json").json()["provenance"]["state"],
            lambda state: state not in ("queued", "running"),
        )
        assert state == "done"
    finally:
        server.should_exit = True
        thread.join()
