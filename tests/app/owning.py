"""Moves of tests about own concepts: make one, build it, look at it."""

import dataclasses
import io
import threading
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
from PIL import Image
from sqlalchemy import select

from app.tables import ConceptRow, Membership
from engine.contract import Cancelled, ModelInfo
from engine.fake import FakeEngine
from tests.app.conftest import Browser, until

TABLE = "question,answer,says,picture,box\n"


class World(FakeEngine):
    """It says that it is the built-in model, whose world draws probes."""

    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), builtin=True)


class Stepping(World):
    """Each batch of probes after the first waits until `go_on` is set."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__()
        self.go_on, self.batches = go_on, 0

    def _pause(self, cancelled: Callable[[], bool]) -> None:
        self.batches += 1
        while self.batches > 1 and not self.go_on.wait(0.005):
            if cancelled():
                raise Cancelled("Stopped between two batches.")
        super()._pause(cancelled)


def png(colour: int, size: tuple[int, int] = (30, 20)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (colour, 90, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def zipped(**pictures: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in pictures.items():
            archive.writestr(f"{name}.png", data)
    return buffer.getvalue()


def make(browser: Browser, name: str = "my red", files: dict[str, Any] | None = None, **fields: str) -> str:
    """The URL of a new concept."""
    response = browser.http.post("/concepts/new", data={"name": name, **fields}, files=files, follow_redirects=False)
    assert response.status_code == 303, response.text
    return str(response.headers["location"])


def table(lines: str, pictures: bytes = b"", name: str = "probes.csv") -> dict[str, Any]:
    files: dict[str, Any] = {"table": (name, lines.encode())}
    return files | ({"pictures": ("pictures.zip", pictures)} if pictures else {})


def text_only(n: int, start: int = 0) -> dict[str, Any]:
    lines = "".join(f"Which colour has thing {k}?,a red thing,red,,\n" for k in range(start, start + n))
    return table(TABLE + lines)


def press(browser: Browser, url: str, what: str, **fields: Any) -> httpx.Response:
    return browser.http.post(f"{url}/{what}", data=fields, follow_redirects=False)


def data(browser: Browser, url: str) -> dict[str, Any]:
    return dict(browser.http.get(f"{url}.json").json())


def settled(browser: Browser, url: str) -> dict[str, Any]:
    """The concept when nothing of it is on its way."""
    response = until(lambda: browser.http.get(f"{url}.json"), lambda response: response.status_code == 200)
    return dict(response.json())


def built(browser: Browser, url: str) -> dict[str, Any]:
    assert press(browser, url, "build").status_code == 303
    found = settled(browser, url)
    assert found["build"]["state"] == "done", found["build"]
    return found


def memberships(browser: Browser, name: str) -> dict[tuple[int, int], float]:
    """As the library in SQL has them."""
    chosen = (
        select(Membership.layer, Membership.index, Membership.mu)
        .join(ConceptRow, ConceptRow.id == Membership.concept_id)
        .where(ConceptRow.name == name)
    )
    with browser.services.database.read() as session:
        return {(layer, index): mu for layer, index, mu in session.execute(chosen)}


def outcomes(found: dict[str, Any]) -> list[str]:
    return [probe["outcome"] for probe in found["probes"]]
