"""An application on the FakeEngine, with a database made by the real migrations."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from engine.contract import Engine
from engine.fake import FakeEngine
from tests.fixtures.make_fixtures import make

HTMX = {"HX-Request": "true"}


class Browser:
    """A client with the moves that a person makes. `http` is the raw client."""

    def __init__(self, http: TestClient) -> None:
        self.http = http
        self.services = http.app.state.services  # type: ignore[attr-defined]

    def ask(self, question: str = "What is this?", picture: bytes | None = None, *, wait: bool = True) -> str:
        """The run's URL."""
        files = {"picture": ("a.png", picture)} if picture is not None else None
        response = self.http.post("/runs", data={"question": question}, files=files, follow_redirects=False)
        assert response.status_code == 303, response.text
        url = response.headers["location"]
        if wait:
            assert self.settled(url)["provenance"]["state"] == "done"
        return url

    def steer(self, url: str, panel: str = "p", htmx: bool = True, **fields: str) -> httpx.Response:
        data = {"panel": panel, **{name.replace("__", ":"): value for name, value in fields.items()}}
        return self.http.post(f"{url}/steer", data=data, headers=HTMX if htmx else {}, follow_redirects=False)

    def turn(self, url: str, concept: str, lam: float, panel: str = "p") -> str:
        """Steer one concept; the steered run's URL ('' for none)."""
        data = {"panel": panel, f"concept:{concept}": str(lam)}
        response = self.http.post(f"{url}/steer", data=data, headers=HTMX)
        assert response.status_code == 200, response.text
        found = re.search(r"steer=(\w+)", response.headers["HX-Replace-Url"])
        return f"/runs/{found[1]}" if found else ""

    def data(self, url: str) -> dict[str, Any]:
        response = self.http.get(f"{url}.json")
        assert response.status_code in (200, 202), response.text  # 202: not there yet
        return dict(response.json())

    def settled(self, url: str, seconds: float = 10) -> dict[str, Any]:
        """The run's JSON when it is neither queued nor running any more."""
        return until(
            lambda: self.data(url), lambda data: data["provenance"]["state"] not in ("queued", "running"), seconds
        )

    def state(self, url: str) -> str:
        return str(self.data(url)["provenance"]["state"])


def until(read: Callable[[], Any], ready: Callable[[Any], bool], seconds: float = 10) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        value = read()
        if ready(value):
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
        time.sleep(0.01)


@contextlib.contextmanager
def serving(
    folder: Path, factory: Callable[[], Engine] = FakeEngine, *, ready: bool = True, **settings: Any
) -> Iterator[Browser]:
    app = create_app(Settings(model="fake", data_dir=folder, **settings), factory)
    with TestClient(app, base_url="http://localhost") as http:
        browser = Browser(http)
        if ready:
            until(lambda: browser.services.worker.state, lambda state: state == "ready")
        yield browser


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with serving(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One application for tests that leave nothing behind that matters to others."""
    with serving(tmp_path_factory.mktemp("shared")) as opened:
        yield opened


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Every token takes 20 ms: "Describe …" streams for a third of a second, and no request waits for that."""
    monkeypatch.setattr("app.routes.steering.PATIENCE", 0.02)
    with serving(tmp_path, lambda: FakeEngine(0.02)) as opened:
        yield opened
