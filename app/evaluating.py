"""The job `evaluation`: does turning concepts make the model answer better (METHODS.md §3, engine.evaluation)?

`params`: settings (evaluation.to_json of them), set (`builtin`, or a set's hash), model_revision, library (its
revision: another one would be another result) and made_by. Each finished part is stored as it comes, under the job's
identity: whatever stops the job loses what was generated since the last part, and the result is the same. `pace` =
seconds an answer, measured over what this run of the job generated: it is the estimate of the next one.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from app import jobparts, longjobs, questionsets
from app.conceptjobs import Done, Room
from app.tables import QuestionSet
from engine.contract import IsCancelled, OnProgress, RequestError, evaluation

KIND = "evaluation"


def folder(pictures: Path) -> Path:
    """Where sets of questions lie: beside the pictures."""
    return pictures.parent / "sets"


def row_of(session: Session, set_hash: str) -> QuestionSet | None:
    """The row of a set; None for the built-in one. Raises RequestError for a set that is not known."""
    if set_hash == questionsets.BUILTIN:
        return None
    row = session.get(QuestionSet, set_hash)
    if row is None:
        raise RequestError("This set of questions is not known any more. Bring its files again.")
    return row


@contextlib.contextmanager
def items(place: Path, row: QuestionSet | None, settings: evaluation.Settings) -> Iterator[evaluation.ItemSet]:
    """The questions of a set; their pictures can be read inside the block. Raises RequestError."""
    if row is None:
        yield evaluation.builtin_items(settings)
    else:
        with questionsets.opened(place, row, settings) as found:
            yield found


def evaluate(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """The JSON of an Evaluation, `pace`, and how many lines of the set were left out."""
    if room.engine.library().revision != params["library"]:
        raise RequestError(
            "The concepts have changed since this evaluation was asked for, so that its result would mix two "
            "libraries. Start it anew."
        )
    settings = evaluation.settings_from_json(params["settings"])
    identity = longjobs.identity(KIND, None, params)
    done, keep = jobparts.kept(room.database, KIND, identity), jobparts.keeper(room.database, identity)
    began, first, answers = time.monotonic(), 0, 0

    def told(generated: int, total: int) -> None:
        nonlocal first, answers
        first, answers = first or generated, generated
        on_progress(generated, total)

    with room.database.read() as session:
        row = row_of(session, params["set"])
    with items(folder(room.store.folder), row, settings) as found:
        result = evaluation.run(
            room.engine, found.items, settings, on_progress=told, on_part=keep, done=done, cancelled=cancelled
        )
    if not result.kinds:
        raise RequestError(f"No test question could be asked. {' '.join(result.warnings)}".strip()[:1000])
    pace = (time.monotonic() - began) / max(answers - first, 1)
    return {"evaluation": evaluation.to_json(result), "pace": pace, "left_out": len(found.bad)}, None


RUNNERS = {KIND: evaluate}
