"""Who waits for which job. Kept in memory alone: after a restart nobody has asked for anything, and all jobs go on."""

import threading


class Audience:
    """Panels (each one view of a page) by job. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[str]] = {}

    def join(self, job_id: str, panel: str) -> list[str]:
        """This panel waits for `job_id` ('' for none) and for nothing else any more; the jobs that nobody waits for
        since then. A panel without a name leaves nothing."""
        with self._lock:
            left = [job for job, panels in self._waiting.items() if job != job_id and panel and panel in panels]
            for job in left:
                self._waiting[job].discard(panel)
            if job_id:
                self._waiting.setdefault(job_id, set()).add(panel)
            return [job for job in left if not self._waiting[job]]

    def end(self, job_id: str) -> None:
        """This job has come to its end."""
        with self._lock:
            self._waiting.pop(job_id, None)
