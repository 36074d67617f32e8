"""Copies the engine's library of concepts into SQL, where memberships are joined to ranked neurons."""

import numpy as np
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from app.tables import Base, ConceptRow, Membership
from engine.contract import Library

SMALLEST = 0.02
"""Memberships below this are not stored: no page shows them, and no figure reads them from SQL."""


def copy(session: Session, model_revision: str, library: Library) -> bool:
    """Make the concepts of this model revision those of `library`. False when they already are."""
    mine = ConceptRow.model_revision == model_revision
    present = session.scalars(select(ConceptRow.library_revision).where(mine)).all()
    if len(present) == len(library.concepts) and set(present) <= {library.revision}:
        return False
    session.execute(delete(Membership).where(Membership.concept_id.in_(select(ConceptRow.id).where(mine))))
    session.execute(delete(ConceptRow).where(mine))
    rows = [
        ConceptRow(
            model_revision=model_revision,
            library_revision=library.revision,
            name=concept.name,
            kind=concept.kind,
            probes=concept.probes,
            cardinality=float(concept.memberships.sum()),
            members=int(np.count_nonzero(concept.memberships > 0)),
            layers=[round(float(part), 4) for part in concept.memberships.sum(axis=1)],
            figures={name: float(value) for name, value in concept.figures.items()},
            recipe=library.recipe,
        )
        for concept in library.concepts
    ]
    session.add_all(rows)
    session.flush()
    for row, concept in zip(rows, library.concepts, strict=True):
        layers, indices = np.nonzero(concept.memberships >= SMALLEST)
        values = [
            {"concept_id": row.id, "layer": int(layer), "index": int(index), "mu": float(mu)}
            for layer, index, mu in zip(layers, indices, concept.memberships[layers, indices], strict=True)
        ]
        if values:
            session.execute(insert(Base.metadata.tables["memberships"]), values)
    return True
