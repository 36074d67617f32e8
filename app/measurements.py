"""What is measured of a target, kind by kind: the engine's call, and its result as what a row keeps."""

import dataclasses
import math
from typing import Any

from app.arrays import pack
from app.jobs import Job
from app.longjobs import LongJob
from engine.contract import Engine, IsCancelled, OnProgress, Question, Target

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
    if job.kind == "faithfulness":
        found = engine.faithfulness(question, ids, target, of.method, of.steering, on_progress, cancelled)
        error = found.completeness_error
        return {
            **dataclasses.asdict(found),
            "completeness_error": error if math.isfinite(error) else None,
        }, None
    if job.kind == "noise":
        return {"bands": [dataclasses.asdict(band) for band in engine.noise(question, ids, target)]}, None
    heat = engine.input_heat(question, ids, target, of.steering, cancelled)
    result = {
        "by_modality": list(heat.by_modality),
        "value": heat.value,
        "note": heat.note,
        "grid": [heat.grid.rows, heat.grid.cols, list(heat.grid.box)] if heat.grid else None,
    }
    return result, pack({"heat": heat.heat})
