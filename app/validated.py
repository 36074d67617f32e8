"""Figures of concepts: those that the library came with, and those of the newest validation here."""

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.tables import ConceptRow, JobRow
from engine.contract import Library


def stamp(row: ConceptRow) -> str:
    """Changes when a concept's memberships do: a validation holds for one stamp."""
    return (row.fingerprint or "")[:16]


def figure(
    session: Session,
    model_revision: str,
    library: Library,
    new: Mapping[tuple[str, str], dict[str, float]] | None = None,
) -> None:
    """Give each concept's row its figures. `new`: by (name, stamp), of a validation that is not stored as done yet."""
    done = select(JobRow.params, JobRow.result).where(JobRow.kind == "validate", JobRow.state == "done")
    known = {
        (params["concept"], params["stamp"]): result["figures"]
        for params, result in session.execute(done.order_by(JobRow.finished))
        if params["model_revision"] == model_revision and result
    }
    known |= new or {}
    shipped = {concept.name: concept.figures for concept in library.concepts}
    for row in session.scalars(select(ConceptRow).where(ConceptRow.model_revision == model_revision)):
        given = {name: float(value) for name, value in shipped.get(row.name, {}).items()}
        figures = {**given, **known.get((row.name, stamp(row)), {})}
        if row.figures != figures:
            row.figures = figures
