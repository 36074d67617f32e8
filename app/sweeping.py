"""The use cases of sweeps: ask for one, and stop it. Same setting, same row: what was swept once is free."""

from typing import Any

from sqlalchemy.orm import Session

from app import longjobs, queries, records, runs, steerings, swept
from app.services import Services
from app.tables import JobRow, Run
from app.targets import TargetChoice
from engine.contract import RequestError, Target


def topic(job_id: str) -> str:
    """Whom a sweep's points are told to."""
    return f"job:{job_id}"


def sweep(services: Services, run_id: str, fields: list[tuple[str, str]], row: str, panel: str) -> tuple[str, str]:
    """(the original run, the job that sweeps this row with all other fields as they stand). The sweep that this `panel`
    has asked for before is stopped, unless somebody else waits for it or listens to it. Raises RequestError."""

    def room() -> None:
        runs.check_model(services)
        runs.check_room(session, services)

    with services.database.write() as session:
        asked = queries.run(session, run_id)
        parent = queries.run(session, asked.parent_id) if asked is not None and asked.parent_id else asked
        if parent is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        parent_id, params = parent.id, _params(services, session, parent, fields, row)
        found = longjobs.request(session, longjobs.SWEEP, parent_id, params, room)
        job_id = found.id
        left = services.worker.audience.join(job_id if found.live else "", panel)
        left = [job for job in left if not services.broker.heard(topic(job), panel)]
        stopped = [job for job in left if (row_left := longjobs.cancel(session, job)) is not None and row_left.live]
    services.worker.stop(job_id, wanted=False)
    for job in stopped:
        services.worker.stop(job)
    services.worker.wake()
    for changed in (*left, job_id):
        services.broker.publish(topic(changed))
    return parent_id, job_id


def _params(services: Services, session: Session, run: Run, fields: list[tuple[str, str]], row: str) -> dict[str, Any]:
    """All that a sweep depends on beside its run: the steering around the row, the row, its values, and the library
    that gives concepts their neurons."""
    if run.answer is None or not run.model:
        raise RequestError("This run has no answer to sweep yet. Wait for the answer, then turn its concepts.")
    ids = steerings.ids_of(runs.attached(services))
    whole, row = steerings.in_model(swept.whole(fields, row, ids), run.model), swept.spelled(row)
    runs.verify(services, session, run, whole)
    choice = TargetChoice(Target(0, len(records.ids(run.answer))))
    sae, operation, _ = swept.latent_in(whole, row)
    library = queries.library_revision(session, run.model_revision) if whole["concepts"] else ""
    return {
        **longjobs.params_of(longjobs.SWEEP, choice, run.method),
        "steering": swept.around(whole, row),
        "row": row,
        "values": list(swept.values_of(whole, row)),
        "library": library,
        **({"sae": sae, "operation": operation} if sae else {}),
    }


def cancel(services: Services, job_id: str) -> str:
    """Stop a live sweep; the id of its run. Raises runs.NoSuchRun."""
    with services.database.write() as session:
        found = _sweep(session.get(JobRow, job_id), job_id)
        longjobs.cancel(session, job_id)
        run_id, asked = found.run_id or "", found.stop_requested
    if asked:
        services.worker.stop(job_id)
    services.broker.publish(topic(job_id))
    return run_id


def exported(services: Services, job_id: str) -> tuple[dict[str, Any], bool]:
    """(a sweep as JSON, whether it is complete). While it runs, its points are those of what has come so far."""
    with services.database.read() as session:
        found = _sweep(session.get(JobRow, job_id), job_id)
        run = session.get_one(Run, found.run_id)
        result = found.result if found.state == "done" else None
        points = (result or {}).get("points") or swept.as_json(services.worker.points(job_id))
        params = found.params
        data = {
            "row": params["row"],
            "values": params["values"],
            "default": run.answer["text"] if run.answer else None,
            "points": points,
            "provenance": {
                "job": found.id,
                "run": run.id,
                "state": found.state,
                "error": found.error or None,
                "question": run.question,
                "picture": run.picture_hash,
                "model": dict(run.model or {}),
                "generation": {"greedy": True, "max_new_tokens": run.max_new_tokens},
                "steering": params["steering"],
                "library": params["library"] or None,
            },
        }
        return data, not found.live


def _sweep(row: JobRow | None, job_id: str) -> JobRow:
    if row is None or row.kind != longjobs.SWEEP:
        raise runs.NoSuchRun(f"There is no sweep “{job_id[:40]}”.")
    return row
