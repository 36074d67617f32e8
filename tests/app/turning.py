"""Moves of tests about evaluations: a model that answers better when it is turned, and a set of questions for it."""

import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from engine.contract import Answer, Cancelled, IsCancelled, OnProgress, Question, Steering, never
from tests.app.conftest import Browser, until
from tests.app.owning import World

QUESTIONS = 120
HALF = {"kind": "object", "limit": "20", "dev": "16"}
"""A small evaluation of `lines`."""


def lines(n: int = QUESTIONS, extra: Sequence[str] = ()) -> bytes:
    """JSONL: “Is thing 7 a lemon?” and the like; the right answer is the thing that is named."""
    named = ("lemon", "penguin", "pizza")
    entries = [
        {"question": f"Is thing {k} a {named[k % 3]}?", "answer": named[k % 3], "kind": ("object", "colour")[k % 2]}
        for k in range(n)
    ]
    return "\n".join([*map(json.dumps, entries), *extra]).encode()


class Turning(World):
    """By itself it is right about every third thing; with neurons turned about all but every fifth, unless they are
    random ones."""

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        given = super().answers(asked, on_progress, cancelled)
        return tuple(_said(answer, *one) for answer, one in zip(given, asked, strict=True))


def _said(answer: Answer, question: Question, steering: Steering) -> Answer:
    words = question.text.rstrip("?").split()
    if words[:2] != ["Is", "thing"]:
        return answer
    number, turned = int(words[2]), bool(steering.neurons) and steering.control is None
    right = number % 5 != 0 if turned else number % 4 == 0
    return dataclasses.replace(answer, text=words[-1] if right else "the moon")


class Held(Turning):
    """After `free` batches each waits until `go_on` is set."""

    def __init__(self, go_on: threading.Event, free: int) -> None:
        super().__init__()
        self.go_on, self.free, self.batches = go_on, free, 0

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        self.batches += bool(asked)
        while self.batches > self.free and not self.go_on.wait(0.005):
            if cancelled():
                raise Cancelled("Stopped between two batches.")
        return super().answers(asked, on_progress, cancelled)


def bring(browser: Browser, data: bytes | None = None, name: str = "things.jsonl", **more: Any) -> str:
    """The hash of a set that is kept."""
    files = {"questions": (name, lines() if data is None else data), **more}
    response = browser.http.post("/evaluations/sets", files=files, follow_redirects=False)
    assert response.status_code == 303, response.text
    return str(response.headers["location"].split("set=")[1])


def start(browser: Browser, **fields: Any) -> str:
    """The URL of an evaluation."""
    response = browser.http.post("/evaluations", data=fields, follow_redirects=False)
    assert response.status_code == 303, response.text
    return str(response.headers["location"])


def told(browser: Browser, url: str) -> dict[str, Any]:
    return dict(browser.http.get(f"{url}.json").json())


def over(browser: Browser, url: str, state: str = "done", seconds: float = 20) -> dict[str, Any]:
    """An evaluation that has ended."""
    read: Callable[[], dict[str, Any]] = lambda: told(browser, url)  # noqa: E731
    found: dict[str, Any] = until(read, lambda now: now["state"] not in ("queued", "running"), seconds)
    assert found["state"] == state, found
    return found
