"""Finished parts of long jobs: kept as they come under the job's identity, so that whatever stops a job loses what was
done since the last part. Values are plain JSON."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.database import Database
from app.tables import EvaluationPart, JobRow


def kept(database: Database, kind: str, identity: str) -> dict[str, Any]:
    """What there is of this job already, in order. Parts of finished jobs of its kind are dropped on the occasion."""
    with database.write() as session:
        finished = select(JobRow.identity).where(JobRow.kind == kind, JobRow.state == "done")
        session.execute(delete(EvaluationPart).where(EvaluationPart.evaluation.in_(finished)))
        mine = select(EvaluationPart).where(EvaluationPart.evaluation == identity).order_by(EvaluationPart.place)
        return {part.key: part.value for part in session.scalars(mine)}


def keeper(database: Database, identity: str) -> Callable[[str, Any], None]:
    """What keeps a part of this job; one that is there already stays."""

    def keep(key: str, value: Any) -> None:
        with database.write() as session:
            if session.get(EvaluationPart, (identity, key)) is None:
                place = count(session, identity)
                session.add(EvaluationPart(evaluation=identity, key=key, place=place, value=value))

    return keep


def count(session: Session, identity: str) -> int:
    """How many parts are kept."""
    mine = EvaluationPart.evaluation == identity
    return session.scalar(select(func.count()).select_from(EvaluationPart).where(mine)) or 0


def newest(session: Session, identity: str) -> str:
    """The key of the newest part, or ''."""
    mine = EvaluationPart.evaluation == identity
    return session.scalar(select(EvaluationPart.key).where(mine).order_by(EvaluationPart.place.desc()).limit(1)) or ""
