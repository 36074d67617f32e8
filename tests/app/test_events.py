"""The event stream: whole fragments, the present state first, `end` last, nothing left behind."""

import asyncio
import re
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.broker import Broker
from tests.app.conftest import Browser, until


def names(body: str) -> list[str]:
    return re.findall(r"^event: (\w+)", body, re.MULTILINE)


def test_a_finished_run_sends_everything_once(shared: Browser) -> None:
    url = shared.ask()
    response = shared.http.get(f"{url}/events")
    assert response.headers["content-type"].startswith("text/event-stream")
    shown = ["status", "answer", "picture", "neurons", "steer", "where", "trust", "latents"]
    assert names(response.text) == [*shown, "end"]
    page = shared.http.get(f"{url}?fragment=answer").text
    sent = re.search(r"event: answer\n((?:data: .*\n)+)", response.text)
    assert sent
    assert "\n".join(line.removeprefix("data: ") for line in sent[1].splitlines()).strip() == page.strip()


def test_an_answer_streams_token_by_token(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    body = slow.http.get(f"{url}/events").text
    sent = names(body)
    assert sent[-1] == "end"
    assert sent.count("answer") >= 4, "the fake engine gives 16 tokens, 20 ms each, and a state may hold several"
    assert sent.count("picture") <= 4
    assert "finding its neurons" in body or sent.count("status") >= 2
    until(lambda: slow.services.broker.listeners, lambda count: count == 0)


def test_a_late_viewer_gets_the_present_state_first(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    until(
        lambda: slow.services.worker.partial(url.rsplit("/", 1)[1]), lambda partial: partial and len(partial.tokens) > 3
    )
    body = slow.http.get(f"{url}/events").text
    first = body.split("event: answer\n")[1].split("\n\n")[0]
    assert "token-3" in first


def test_cancelling_ends_the_stream(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    timer = threading.Timer(0.1, lambda: slow.http.post(f"{url}/cancel"))
    timer.start()
    body = slow.http.get(f"{url}/events").text
    assert names(body)[-1] == "end"
    assert "cancelled" in body
    timer.join()
    assert slow.data(url)["answer"] is None, "it stopped before the answer was whole"


def test_asking_for_a_span_ends_when_it_is_there(browser: Browser) -> None:
    url = browser.ask("Describe it.")
    body = browser.http.get(f"{url}/events?span=2-4").text
    assert names(body)[-1] == "end"
    assert 'aria-current="true"' in body


def run_alone(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, in a loop and thread of its own: where a browser was opened before, this thread's loop
    runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_a_viewer_who_leaves_leaves_nothing() -> None:
    broker = Broker()

    async def visit() -> None:
        changes = broker.changes("run")
        assert await anext(changes) is None
        assert broker.listeners == 1
        task = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        broker.publish("run")
        await task
        await changes.aclose()  # type: ignore[attr-defined]

    run_alone(visit())
    assert broker.listeners == 0
    broker.publish("run")


def test_a_change_is_never_lost_and_many_may_be_one() -> None:
    broker = Broker()

    async def visit() -> int:
        seen = 0
        async for _ in broker.changes("run"):
            seen += 1
            if seen == 1:
                for _ in range(100):
                    broker.publish("run")
                broker.publish("another")
            else:
                broker.close()
        return seen

    assert run_alone(visit()) == 2


def test_a_stream_takes_passing_changes_at_a_pace_and_misses_no_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.broker.PACE", 0.05)  # 80 ms of changes, 2 ms apart
    broker, state = Broker(), [0]

    async def visit() -> list[int]:
        seen: list[int] = []

        async def tell() -> None:
            for _ in range(40):
                await asyncio.sleep(0.002)
                state[0] += 1
                broker.publish("run", passing=True)

        telling = asyncio.ensure_future(tell())
        async for _ in broker.changes("run"):
            seen.append(state[0])
            if seen[-1] == 40:
                break
        await telling
        return seen

    seen = run_alone(visit())
    assert seen[0] == 0
    assert 3 <= len(seen) < 20


def test_who_waits_for_an_end_sleeps_through_what_passes() -> None:
    broker, looked = Broker(), [0]

    def ready() -> bool:
        looked[0] += 1
        return False

    threading.Timer(0.02, lambda: broker.publish("run", passing=True)).start()
    threading.Timer(0.04, lambda: broker.publish("run")).start()
    assert not broker.wait("run", ready, 0.2)
    assert looked[0] == 3  # at once, at the change that did not pass, and at the end


def test_waiting_in_a_thread() -> None:
    broker = Broker()
    done = threading.Event()
    threading.Timer(0.05, lambda: (done.set(), broker.publish("run"))).start()
    assert broker.wait("run", done.is_set, 5)
    assert not broker.wait("run", lambda: False, 0.01)
    assert broker.listeners == 0
