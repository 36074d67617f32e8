"""How far a long job is, in words."""

import datetime as dt

from app import formats
from app.tables import JobRow


def message(job: JobRow, place: int, at: dt.datetime, unit: str = "") -> str:
    """`place` of a waiting one in the queue; `at`: the time that it is; `unit` of its steps, where it has a name. ''
    for one that is done or failed."""
    if job.state == "cancelled":
        return "Cancelled; nothing was kept."
    if job.state == "queued":
        return f"number {place} in the queue"
    if job.state != "running":
        return ""
    if job.stop_requested:
        return "stopping after this batch"
    if not job.done or job.started is None:
        return "measuring"
    left = (at - job.started).total_seconds() * (job.total - job.done) / job.done
    return f"{job.done} of {job.total}{f' {unit}' if unit else ''} · {formats.about(left)} left"
