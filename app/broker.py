"""Tells waiting requests that a run has changed. It carries no content: whoever wakes reads the present state, so a
wake-up may be early or double but is never lost, and a slow reader sees fewer, newer states instead of a backlog."""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator

Wake = Callable[[bool], object]
"""Called with whether the change is a passing one."""

PACE = 0.05
"""Seconds between two states that a stream shows of what is passing: it renders them while the model runs."""


class Broker:
    """Topics are run ids. `publish` may be called from any thread. A passing change is one token of many: those who
    wait for an end sleep on, and a stream takes up to one every PACE; it misses no last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: defaultdict[str, dict[Wake, str]] = defaultdict(dict)
        self.closed = False

    def publish(self, topic: str, *, passing: bool = False) -> None:
        with self._lock:
            wakes = list(self._wakes.get(topic, ()))
        for wake in wakes:
            wake(passing)

    def publish_all(self) -> None:
        with self._lock:
            wakes = [wake for topic in self._wakes.values() for wake in topic]
        for wake in wakes:
            wake(False)

    def close(self) -> None:
        """Wake everyone for the last time; streams end."""
        self.closed = True
        self.publish_all()

    @property
    def listeners(self) -> int:
        with self._lock:
            return sum(len(wakes) for wakes in self._wakes.values())

    def heard(self, topic: str, but: str) -> bool:
        """Does anyone listen to this topic, other than the owner `but`?"""
        with self._lock:
            return any(owner != but for owner in self._wakes.get(topic, {}).values())

    @contextlib.contextmanager
    def _listening(self, topic: str, wake: Wake, owner: str) -> Iterator[None]:
        with self._lock:
            self._wakes[topic][wake] = owner
        try:
            yield
        finally:
            with self._lock:
                self._wakes[topic].pop(wake, None)
                if not self._wakes[topic]:
                    del self._wakes[topic]

    async def changes(self, topic: str, owner: str = "") -> AsyncIterator[None]:
        """Yields at once, then after each change (several changes may be one). `owner` names who listens."""
        loop, changed, told = asyncio.get_running_loop(), asyncio.Event(), 0.0

        def pass_by() -> None:
            loop.call_at(max(told + PACE, loop.time()), changed.set)

        def wake(passing: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is waiting there any more
                loop.call_soon_threadsafe(pass_by if passing else changed.set)

        with self._listening(topic, wake, owner):
            while not self.closed:
                changed.clear()
                told = loop.time()
                yield
                await changed.wait()

    def wait(self, topic: str, ready: Callable[[], bool], timeout: float, owner: str = "") -> bool:
        """Block this thread until `ready()` or `timeout` seconds have passed; whether it is ready."""
        changed = threading.Event()
        deadline = time.monotonic() + timeout

        def wake(passing: bool) -> None:
            if not passing:
                changed.set()

        with self._listening(topic, wake, owner):
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0 or self.closed:
                    return False
                changed.wait(left)
                changed.clear()
        return True
