"""What is measured of a run, kind by kind: the engine's call, and its result as what a row keeps."""

import dataclasses
import math
import time
from typing import Any

from app import latentjobs, longjobs, steerings, swept
from app.arrays import pack
from app.jobs import Job
from app.longjobs import LongJob
from engine.contract import Engine, IsCancelled, OnProgress, Question, Target, sweeps

Measured = tuple[dict[str, Any], bytes | None]


def measure(
    engine: Engine,
    job: LongJob,
    of: Job,
    question: Question,
    target: Target,
    on_progress: OnProgress,
    cancelled: IsCancelled,
) -> Measured:
    """(result, arrays). `of` = what the job measures; `target` = its target, its texts as they are written. Raises
    what the engine raises."""
    ids = of.original_ids
    if job.kind == longjobs.LATENTS:
        return latentjobs.rank(engine, job.params, of, question, cancelled)
    if job.kind == longjobs.EXACT:
        return latentjobs.ablate(engine, job.params, of, question, on_progress, cancelled)
    if job.kind == "faithfulness":
        found = engine.faithfulness(question, ids, target, of.method, of.steering, on_progress, cancelled)
        error = found.completeness_error
        return {
            **dataclasses.asdict(found),
            "completeness_error": error if math.isfinite(error) else None,
        }, None
    if job.kind == "noise":
        return {"bands": [dataclasses.asdict(band) for band in engine.noise(question, ids, target, cancelled)]}, None
    heat = engine.input_heat(question, ids, target, of.steering, cancelled)
    result = {
        "by_modality": list(heat.by_modality),
        "value": heat.value,
        "note": heat.note,
        "grid": [heat.grid.rows, heat.grid.cols, list(heat.grid.box)] if heat.grid else None,
    }
    return result, pack({"heat": heat.heat})


def sweep(
    engine: Engine, job: LongJob, of: Job, question: Question, on_points: sweeps.OnPoints, cancelled: IsCancelled
) -> Measured:
    """The answers of a sweep, with the milliseconds that they took. Raises what the engine raises."""
    began = time.perf_counter()
    around = steerings.from_json(job.params["steering"])
    turn = swept.turn_in(job.params)
    points = engine.sweep(question, of.original_ids, around, turn, job.params["values"], on_points, cancelled)
    return {"points": swept.as_json(points), "milliseconds": 1000 * (time.perf_counter() - began)}, None
