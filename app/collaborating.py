"""The job `collaborate`: what a concept's neurons carry together against what each carries alone
(engine.concepts.results.Collaboration). `params`: concept (its name), stamp (validated.stamp: which memberships),
alpha, top, model_revision."""

import dataclasses
import math
from typing import Any

import numpy as np

from app import validated, validating
from app.conceptjobs import Done, Room
from app.tables import ConceptRow
from engine.contract import MAX_SET, Floats, IsCancelled, OnProgress, RequestError, concepts

ALPHA, TOP, PROBES = 0.5, 12, 8
ALPHAS, TOPS = (0.05, 1.0), (2, 24)
"""What may be asked for, smallest and largest."""


def check(alpha: float, top: int) -> None:
    """Raise RequestError for what cannot be asked for."""
    if not ALPHAS[0] <= alpha <= ALPHAS[1]:
        raise RequestError(f"α is {alpha:g}; it must lie between {ALPHAS[0]:g} and {ALPHAS[1]:g}.")
    if not TOPS[0] <= top <= TOPS[1]:
        raise RequestError(f"The matrix is asked for {top} neurons; it takes {TOPS[0]} to {TOPS[1]}.")


def runs(members: int, top: int) -> int:
    """Runs of the model that a collaboration takes: the estimate, before anything is run."""
    chosen = min(members, MAX_SET)
    return concepts.results.collaboration_runs(chosen, min(top, chosen), PROBES)


def params_of(row: ConceptRow, alpha: float, top: int) -> dict[str, Any]:
    """What a collaboration of this concept depends on, as a job's `params`."""
    check(alpha, top)
    return {
        "concept": row.name,
        "stamp": validated.stamp(row),
        "alpha": round(alpha, 2),
        "top": top,
        "model_revision": row.model_revision,
    }


def collaborate(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """The JSON of a Collaboration (NaN as null), with `how` (over which probes)."""
    name = params["concept"]
    concept = next((known for known in room.engine.library().concepts if known.name == name), None)
    if concept is None:
        raise RequestError(f"The concept “{name}” is not in the library any more.")
    probes, how = validating.held_out(room, name, PROBES)
    found = room.engine.collaboration(
        concept.memberships, probes, params["alpha"], params["top"], on_progress, cancelled
    )  # fmt: skip
    told: dict[str, Any] = {"alpha": found.alpha, "probes": found.probes, "how": how}
    told |= {part: dataclasses.asdict(getattr(found, part)) for part in ("joint", "apart", "synergy")}
    told |= {"members": list(found.members), "top": list(found.top), "single": found.single.tolist()}
    return told | {"interactions": _rows(found.interactions), "errors": _rows(found.errors)}, None


def _rows(values: Floats) -> list[list[float | None]]:
    return [
        [value if math.isfinite(value) else None for value in row] for row in np.asarray(values, np.float64).tolist()
    ]
