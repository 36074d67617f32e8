"""A server, a browser and pages that watch themselves: any console error, page error or failed request fails."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright
from starlette.types import ASGIApp

from app.main import create_app
from app.settings import Settings
from tests.e2e import gallery
from tests.support import CHROMIUM_FLAGS


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The app on a free port, in a thread; yields its address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    limit = time.monotonic() + 20
    while not server.started:
        if time.monotonic() > limit or not thread.is_alive():
            pytest.fail("the server did not start within 20 seconds")
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app on the fake engine, answering at once."""
    with served(create_app(Settings(model="fake", data_dir=tmp_path_factory.mktemp("quick")))) as url:
        yield url


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app on the fake engine, taking half a second for each token and for the attribution."""
    settings = Settings(model="fake", fake_delay=0.5, data_dir=tmp_path_factory.mktemp("slow"))
    with served(create_app(settings)) as url:
        yield url


@pytest.fixture(scope="session")
def gallery_url() -> Iterator[str]:
    with served(gallery.create()) as url:
        yield url


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@dataclasses.dataclass
class Watched:
    """Opens pages and keeps what went wrong on them. `expected`: parts of messages that a journey provokes."""

    browser: Browser
    problems: list[str] = dataclasses.field(default_factory=list)
    expected: list[str] = dataclasses.field(default_factory=list)
    contexts: list[BrowserContext] = dataclasses.field(default_factory=list)

    def page(self, **options: Any) -> Page:
        context = self.browser.new_context(
            # A page that scrolls smoothly moves under the pointer: a click may then meet something else.
            **{"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"} | options
        )
        context.set_default_timeout(8000)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("requestfailed", self._failed)
        return page

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        # Leaving a page, or closing an event stream at its end, aborts a request: that is no failure.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed request: {request.url} ({request.failure})")

    def left(self) -> list[str]:
        return [text for text in self.problems if not any(part in text for part in self.expected)]


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    pages = Watched(browser)
    yield pages
    for context in pages.contexts:
        context.close()
    assert not pages.left()


@pytest.fixture
def open_page(watched: Watched) -> Callable[..., Page]:
    """A new page in a context of its own; keyword arguments go to the context (viewport, color_scheme, …)."""
    return watched.page


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A picture file: a green ball on the right under a red strip, wider than high."""
    path = tmp_path / "scene.png"
    path.write_bytes(gallery.factories.picture_bytes(320, 200))
    return path
