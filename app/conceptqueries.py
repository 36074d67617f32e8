"""Every SELECT of the pages about concepts. Functions take a session and return rows or plain values."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer, undefer

from app import library
from app.arrays import unpack
from app.tables import AttributionRow, ConceptRow, LibraryRow, OwnConcept, Picture, ProbeRow, Run
from engine.contract import Floats, concepts

SORTS = ("", "name", "cardinality", "probes")
"""Orders of the list of concepts; '' = by kind, then by name."""
LOOKED = 60
"""The newest attributions that are looked through for examples of a concept."""
AMONG = 3
"""A run is an example of a concept that is among this many most similar ones."""
FEW = 3
"""Examples of a concept that no run was so much like: the runs most like it."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptHead:
    """What lists show of a concept."""

    name: str
    kind: str
    probes: int
    cardinality: float
    members: int
    figures: Mapping[str, float]


def heads(session: Session, model_revision: str, query: str = "", kind: str = "", sort: str = "") -> list[ConceptHead]:
    """Concepts whose name has `query` in it, in one of SORTS."""
    kept = (getattr(ConceptRow, field.name) for field in dataclasses.fields(ConceptHead))
    chosen = select(*kept).where(ConceptRow.model_revision == model_revision)
    if query:
        chosen = chosen.where(ConceptRow.name.icontains(query, autoescape=True))
    if kind:
        chosen = chosen.where(ConceptRow.kind == kind)
    first = {
        "": (ConceptRow.kind,),
        "name": (),
        "cardinality": (ConceptRow.cardinality.desc(),),
        "probes": (ConceptRow.probes.desc(),),
    }[sort]
    return [ConceptHead(*row) for row in session.execute(chosen.order_by(*first, ConceptRow.name))]


def concept(session: Session, model_revision: str, name: str) -> ConceptRow | None:
    """With its exact memberships."""
    chosen = select(ConceptRow).where(ConceptRow.model_revision == model_revision, ConceptRow.name == name)
    return session.scalars(chosen.options(undefer(ConceptRow.exact))).first()


def names(session: Session, model_revision: str) -> list[str]:
    chosen = select(ConceptRow.name).where(ConceptRow.model_revision == model_revision)
    return list(session.scalars(chosen.order_by(ConceptRow.name)))


def memberships(session: Session, model_revision: str, wanted: Sequence[str]) -> dict[str, Floats]:
    """Exact memberships (n_layers, d_mlp) of these concepts, by name."""
    chosen = select(ConceptRow.name, ConceptRow.exact).where(
        ConceptRow.model_revision == model_revision, ConceptRow.name.in_(wanted)
    )
    return {name: library.exact(blob) for name, blob in session.execute(chosen)}


@dataclasses.dataclass(frozen=True, slots=True)
class Alike:
    """All concepts of a library beside one another: `names`, their places in an `order` of neighbours, and (concepts,
    concepts) similarities, and inclusions of the row's concept in the column's."""

    names: list[str]
    order: list[int]
    similarity: Floats
    inclusion: Floats


def alike(session: Session, model_revision: str) -> Alike | None:
    """None where no concept is known."""
    row = session.get(LibraryRow, model_revision)
    if row is None:
        return None
    both: npt.NDArray[np.float64] = unpack(row.shared)["shared"].astype(np.float64)
    return Alike(
        row.names, row.order, concepts.fuzzy.similarity_matrix(both), concepts.fuzzy.inclusion_matrix(both)
    )  # fmt: skip


def own(session: Session, model_revision: str, name: str) -> OwnConcept | None:
    chosen = select(OwnConcept).where(OwnConcept.model_revision == model_revision, OwnConcept.name == name)
    return session.scalars(chosen).first()


def derived(session: Session, model_revision: str) -> list[OwnConcept]:
    """Those with an expression, in the order in which they were made."""
    chosen = select(OwnConcept).where(OwnConcept.model_revision == model_revision, OwnConcept.expression != "")
    return list(session.scalars(chosen.order_by(OwnConcept.created, OwnConcept.id)))


def probes(session: Session, concept_id: str, limit: int) -> tuple[list[ProbeRow], int]:
    """A concept's first probes without their evidence shares, and how many it has."""
    mine = (ProbeRow.concept_id == concept_id) & (ProbeRow.question != "")
    chosen = select(ProbeRow).where(mine).options(defer(ProbeRow.shares)).order_by(ProbeRow.id).limit(limit)
    count = session.execute(select(func.count()).select_from(ProbeRow).where(mine)).scalar_one()
    return list(session.scalars(chosen)), count


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A run with an answer like a concept: the concept's `rank` among the similar ones (from 0), how similar it was,
    and its heat map (rows, cols) on the grid of the attribution's summary."""

    run: Run
    picture: Picture
    rank: int
    similarity: float
    heat: Floats
    grid: Any


def examples(session: Session, model_revision: str, name: str, limit: int) -> list[Example]:
    """The newest plain runs whose whole answer was most similar to this concept, among others, with its heat map; where
    there is none, a FEW that were weighed against it at all (so that a derived concept shows where it looks too)."""
    looked = (
        select(AttributionRow.id, AttributionRow.summary, Run, Picture)
        .join(Run, Run.id == AttributionRow.run_id)
        .join(Picture, Picture.hash == Run.picture_hash)
        .where(Run.model_revision == model_revision, Run.parent_id.is_(None), AttributionRow.state == "done")
        .where(AttributionRow.target.is_(None), AttributionRow.start == 0)
        .order_by(AttributionRow.id.desc())
        .limit(LOOKED)
    )
    found: dict[str, tuple[int, Any, Run, Picture]] = {}
    near: dict[str, tuple[float, tuple[int, Any, Run, Picture]]] = {}
    for row_id, summary, run, picture in session.execute(looked):
        if not summary or not summary["grid"] or run.id in found or run.id in near:
            continue
        alike = {other: (k, similarity) for k, (other, _, similarity) in enumerate(summary["concepts"])}
        k, similarity = alike.get(name, (0, 0.0))
        if similarity > 0 and k < AMONG:
            found[run.id] = (row_id, summary, run, picture)
        elif similarity > 0:
            near[run.id] = similarity, (row_id, summary, run, picture)
        if len(found) == limit:
            break
    if not found:
        nearest = sorted(near.items(), key=lambda entry: -entry[1][0])[: min(FEW, limit)]
        found = {run_id: kept for run_id, (_, kept) in nearest}
    blobs = select(AttributionRow.id, AttributionRow.arrays).where(
        AttributionRow.id.in_([row_id for row_id, *_ in found.values()])
    )
    arrays = {row_id: unpack(blob) for row_id, blob in session.execute(blobs) if blob} if found else {}
    made = []
    for row_id, summary, run, picture in found.values():
        rank = [other for other, *_ in summary["concepts"]].index(name)
        heats = arrays[row_id].get("concept_heats") if row_id in arrays else None
        if heats is not None:
            similarity = summary["concepts"][rank][2]
            made.append(Example(run, picture, rank, similarity, heats[rank], summary["grid"]))
    return made
