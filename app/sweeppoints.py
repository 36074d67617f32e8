"""What is known of sweeps that run, or that have stepped aside for what somebody waits for: in memory alone.

A sweep is one batch, and nothing else can use the model before it ends; so it is stopped within a token when somebody
asks for an answer, and begun again after that. It gives the same points again, so that what was shown stays.
"""

import threading
from collections.abc import Callable

from engine.contract import IsCancelled, sweeps

ASIDE = 2
"""Times that a sweep steps aside; then it goes through, or whoever keeps asking would keep it from its end."""
KEPT = 16
"""Sweeps whose points are kept: of one that is cancelled while it stands aside, nobody says that it has ended."""
Points = tuple[sweeps.SweepPoint, ...]


class SweepPoints:
    """Points by job. The worker's thread writes; any thread may read."""

    def __init__(self) -> None:
        self._points: dict[str, Points] = {}
        self._times: dict[str, int] = {}
        self._aside: set[str] = set()

    def of(self, job_id: str) -> Points:
        """What a sweep has so far."""
        return self._points.get(job_id, ())

    def begin(self, job_id: str, told: Callable[[], None]) -> sweeps.OnPoints:
        """A sweep begins, for the first time or again: what takes its points, and calls `told` where more is known."""
        self._aside.discard(job_id)

        def on_points(points: Points) -> None:
            if _tokens(points) >= _tokens(self.of(job_id)):  # one that was begun again says nothing new at first
                self._points[job_id] = points
                told()

        return on_points

    def making_way(
        self, job_id: str, asked: IsCancelled, wake: threading.Event, waits: Callable[[], bool]
    ) -> IsCancelled:
        """Is this sweep to stop: because that is `asked` for, or because an answer `waits` since `wake` was set?"""

        def stop() -> bool:
            if job_id not in self._aside and wake.is_set():
                wake.clear()
                if self._times.get(job_id, 0) < ASIDE and waits():
                    self._step_aside(job_id)
            return job_id in self._aside or asked()

        return stop

    def _step_aside(self, job_id: str) -> None:
        self._times[job_id] = self._times.pop(job_id, 0) + 1
        self._aside.add(job_id)
        for other in list(self._times)[:-KEPT]:
            self._aside.discard(other)
            self.end(other)

    def end(self, job_id: str) -> bool:
        """A sweep does not run any more; whether that is its end, and not a step aside."""
        if job_id in self._aside:
            return False
        self._points.pop(job_id, None)
        self._times.pop(job_id, None)
        return True


def _tokens(points: Points) -> int:
    return sum(len(point.ids) for point in points)
