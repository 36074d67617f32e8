"""Copies the engine's library of concepts into SQL, where memberships are joined to ranked neurons.

Beside the rows that are joined, each concept keeps its exact memberships as a blob, and the library what all pairs of
concepts share: α-cuts, algebra, similarities and inclusions are computed from these, so that none is approximate.
Only what has changed is written: a person waits for a concept that joins a library of hundreds.
"""

import hashlib

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, delete, insert, select
from sqlalchemy.orm import Session

from app import validated
from app.arrays import pack, unpack
from app.tables import Base, ConceptRow, LibraryRow, Membership
from engine.contract import Concept, Floats, Library, concepts

SMALLEST = 0.02
"""Memberships below this get no row: no page joins them to neurons. They are in the blob of their concept."""


def copy(session: Session, model_revision: str, library: Library) -> bool:
    """Make the concepts of this model revision those of `library`. False when they already are."""
    present = {row.name: row for row in session.scalars(_rows(model_revision))}
    if len(present) == len(library.concepts) and {row.library_revision for row in present.values()} <= {
        library.revision
    }:
        validated.figure(session, model_revision, library)
        return False
    changed = []
    for concept in library.concepts:
        row, fingerprint = present.pop(concept.name, None), _fingerprint(concept.memberships)
        if row is None:
            row = ConceptRow(model_revision=model_revision, name=concept.name)
            session.add(row)
        if row.fingerprint != fingerprint:
            changed.append((row, concept))
            row.fingerprint = fingerprint
            _fill(row, concept.memberships)
        row.kind, row.probes = concept.kind, concept.probes
        row.figures = dict(concept.figures)
        row.recipe, row.library_revision = library.recipe, library.revision
    _drop_members(session, [row.id for row in present.values()])
    for row in present.values():
        session.delete(row)
    session.flush()
    _drop_members(session, [row.id for row, _ in changed])
    for row, concept in changed:
        _copy_members(session, row.id, concept.memberships)
    _copy_shared(session, model_revision, library, {concept.name for _, concept in changed})
    validated.figure(session, model_revision, library)
    return True


def revision(session: Session, model_revision: str) -> str:
    """Of the library that was copied last, by whichever process; '' where none was."""
    return session.scalars(select(LibraryRow.revision).where(LibraryRow.model_revision == model_revision)).first() or ""


def _rows(model_revision: str) -> Select[ConceptRow]:
    return select(ConceptRow).where(ConceptRow.model_revision == model_revision)


def _fingerprint(memberships: Floats) -> str:
    return hashlib.sha256(repr(memberships.shape).encode() + np.ascontiguousarray(memberships).tobytes()).hexdigest()


def _fill(row: ConceptRow, memberships: Floats) -> None:
    row.cardinality = float(memberships.sum())
    row.members = int(np.count_nonzero(memberships > 0))
    row.layers = [round(float(part), 4) for part in memberships.sum(axis=1)]
    row.exact = pack({"memberships": memberships})


def _drop_members(session: Session, ids: list[int]) -> None:
    if ids:
        session.execute(delete(Membership).where(Membership.concept_id.in_(ids)))


def _copy_members(session: Session, concept_id: int, memberships: Floats) -> None:
    layers, indices = np.nonzero(memberships >= SMALLEST)
    values = [
        {"concept_id": concept_id, "layer": int(layer), "index": int(index), "mu": float(mu)}
        for layer, index, mu in zip(layers, indices, memberships[layers, indices], strict=True)
    ]
    if values:
        session.execute(insert(Base.metadata.tables["memberships"]), values)


def _copy_shared(session: Session, model_revision: str, library: Library, changed: set[str]) -> None:
    row = session.get(LibraryRow, model_revision)
    if row is None:
        row = LibraryRow(model_revision=model_revision, names=[], order=[], shared=b"", revision="")
        session.add(row)
    both = _shared(row, library.concepts, changed)
    row.names = [concept.name for concept in library.concepts]
    row.order = concepts.fuzzy.clustered(concepts.fuzzy.similarity_matrix(both))
    row.shared, row.revision = pack({"shared": both.astype(np.float32)}), library.revision


def _shared(row: LibraryRow, known: tuple[Concept, ...], changed: set[str]) -> npt.NDArray[np.float64]:
    """(concepts, concepts) Σ min of all pairs: those of `changed` concepts are computed, all others are in `row`."""
    if not known:
        return np.zeros((0, 0))
    flat = np.stack([concept.memberships.ravel() for concept in known])
    before = {name: place for place, name in enumerate(row.names)}
    kept = [k for k, concept in enumerate(known) if concept.name in before and concept.name not in changed]
    if 2 * len(kept) < len(known):
        return concepts.fuzzy.shared(flat)
    both = np.zeros((len(known), len(known)))
    places = [before[known[k].name] for k in kept]
    both[np.ix_(kept, kept)] = unpack(row.shared)["shared"][np.ix_(places, places)]
    for k in set(range(len(known))) - set(kept):
        both[k] = both[:, k] = np.minimum(flat, flat[k]).sum(-1, dtype=np.float64)
    return both


def exact(blob: bytes | None) -> Floats:
    """Memberships (n_layers, d_mlp) of a ConceptRow's `exact`; empty where there is none."""
    return unpack(blob)["memberships"] if blob else np.zeros((0, 0), np.float32)
