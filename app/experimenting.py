"""The job `experiment`: does the ranking name the latents that matter (METHODS.md §4, engine.sae.masking)?

`params`: sae (its id) and its name, settings, set (`builtin`, or the hash of a kept set of questions), limit, seed,
ablated, swapped, model_revision and made_by. Each step's plain data is stored as it comes (see jobparts), and the
report is the same whatever stopped the job. `pace` = seconds a step, of those that this run of the job did: it is the
estimate of the next one.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from app import evaluating, jobparts, longjobs
from app.conceptjobs import Done, Room
from app.questionsets import BUILTIN
from engine.contract import IsCancelled, OnProgress, RequestError, evaluation, saes

KIND = "experiment"
EVERY = evaluation.Settings(
    limit=evaluation.contract.MAX_ITEMS, dev=evaluation.contract.MAX_ITEMS, build=evaluation.contract.MAX_ITEMS
)
"""All questions of a set."""
NOT_BUILTIN = (
    "The little world's questions are for the built-in model. Choose a set of your own for this one: questions with "
    "pictures, or a file of SQuAD's shape."
)


@contextlib.contextmanager
def items(room: Room, params: dict[str, Any]) -> Iterator[tuple[Sequence[saes.Item], int]]:
    """(items, lines of the set that were left out); pictures can be opened inside the block. Raises RequestError."""
    limit, seed = params["limit"], params["seed"]
    if params["set"] == BUILTIN:
        found = room.engine.experiment_items(limit, seed)
        if not found:
            raise RequestError(NOT_BUILTIN)
        yield found, 0
        return
    with room.database.read() as session:
        row = evaluating.row_of(session, params["set"])
    with evaluating.items(evaluating.folder(room.store.folder), row, EVERY) as opened:
        yield saes.items_of(opened.items, limit, seed), len(opened.bad)


def experiment(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """The JSON of a report, `pace`, and how many lines of the set were left out."""
    identity = longjobs.identity(KIND, None, params)
    done = {int(key): value for key, value in jobparts.kept(room.database, KIND, identity).items()}
    keep, began, fresh = jobparts.keeper(room.database, identity), time.monotonic(), 0

    def keep_step(number: int, value: Any) -> None:
        nonlocal fresh
        fresh += 1
        keep(str(number), value)

    with items(room, params) as (found, left_out):
        report = room.engine.latent_experiment(
            found, params["sae"], saes.Settings(**params["settings"]), params["ablated"], on_progress, cancelled,
            params["swapped"], done, keep_step,
        )  # fmt: skip
    pace = (time.monotonic() - began) / max(fresh, 1)
    return {"report": saes.experiment_as_json(report), "pace": pace, "left_out": left_out}, None


RUNNERS = {KIND: experiment}
