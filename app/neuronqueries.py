"""Every SELECT of the neuron page and the search."""

import dataclasses
import re
from typing import Any

import numpy as np
from sqlalchemy import func, or_, select, tuple_
from sqlalchemy.orm import Session, defer

from app import longjobs
from app.arrays import unpack
from app.tables import AttributionRow, ConceptRow, JobRow, Membership, NeuronNote, NeuronRow, Picture, Run

NEURON = re.compile(r"text\.(\d{1,6})\.(\d{1,7})")
FOUND = 50
"""Neurons that a search lists at most, of each sort."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A neuron of one model."""

    revision: str
    layer: int
    index: int

    @property
    def neuron(self) -> str:
        return f"text.{self.layer}.{self.index}"

    @property
    def path(self) -> str:
        return f"/neurons/{self.revision}/{self.neuron}"


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What is known of when a neuron or a latent is active. `survey` = the newest survey's result with its `record` in
    it and the `total` that was asked for; `sizes` of its pictures; `work` = the newest job for a survey, which `params`
    would ask at `pace` seconds a question. `job` = what was looked up of it."""

    survey: dict[str, Any] | None
    record: Any
    total: int
    sizes: dict[str, tuple[int, int]]
    work: JobRow | None
    params: dict[str, Any]
    pace: float | None
    job: JobRow | None

    @property
    def looked(self) -> dict[str, Any] | None:
        """The result of what was looked up."""
        return self.job.result if self.job is not None and self.job.state == "done" else None

    @property
    def maps(self) -> bytes | None:
        """Activations on the pictures."""
        return self.job.arrays if self.job is not None and self.job.state == "done" else None


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """All that the page shows of a neuron. `model` = its model's name; `shape` = (n_layers, d_mlp) where it is known.
    `readers` = the job that looks for latents that read it; `reading` = their labels by (SAE's id, index); `waiting` =
    why what is looked up is not under way."""

    model: str
    shape: tuple[int, int] | None
    memberships: list[tuple[str, str, float, bool]]
    n_concepts: int
    note: NeuronNote | None
    runs: list[tuple[Run, Picture | None, NeuronRow, AttributionRow]]
    seen: Seen
    labels: dict[str, str]
    readers: JobRow | None = None
    reading: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    waiting: str = ""


def parse(name: str) -> tuple[int, int] | None:
    """(layer, index) of `text.LAYER.INDEX`."""
    found = NEURON.fullmatch(name.strip())
    return (int(found[1]), int(found[2])) if found else None


def model_name(session: Session, revision: str) -> str | None:
    """What a model of this revision is called by its runs; '' where only concepts of it are known; None where nothing
    is."""
    newest = select(Run.model).where(Run.model_revision == revision, Run.model.is_not(None))
    model: dict[str, Any] | None = session.scalars(newest.order_by(Run.created.desc()).limit(1)).first()
    if model is not None:
        return str(model.get("name", ""))
    known = select(ConceptRow.id).where(ConceptRow.model_revision == revision).limit(1)
    return "" if session.scalars(known).first() is not None else None


def memberships(session: Session, revision: str, layer: int, index: int) -> list[tuple[str, str, float, bool]]:
    """(concept, kind, μ, whether its validation failed) of all concepts that it belongs to, strongest first."""
    passes = ConceptRow.figures["passes"].as_float()
    chosen = (
        select(ConceptRow.name, ConceptRow.kind, Membership.mu, func.coalesce(passes == 0, False))
        .join(ConceptRow, ConceptRow.id == Membership.concept_id)
        .where(Membership.layer == layer, Membership.index == index, ConceptRow.model_revision == revision)
        .order_by(Membership.mu.desc(), ConceptRow.name)
    )
    return [(name, kind, mu, bool(weak)) for name, kind, mu, weak in session.execute(chosen)]


def n_concepts(session: Session, revision: str) -> int:
    chosen = select(func.count()).select_from(ConceptRow).where(ConceptRow.model_revision == revision)
    return int(session.execute(chosen).scalar_one())


def note(session: Session, revision: str, layer: int, index: int) -> NeuronNote | None:
    return session.get(NeuronNote, (revision, layer, index))


def labels(session: Session, revision: str, names: list[str]) -> dict[str, str]:
    """Of these neurons, those that have a label."""
    places = [place for place in map(parse, names) if place is not None]
    if not places:
        return {}
    wanted = tuple_(NeuronNote.layer, NeuronNote.index).in_(places)
    rows = session.scalars(
        select(NeuronNote).where(NeuronNote.model_revision == revision, NeuronNote.label != "", wanted)
    )
    return {f"text.{row.layer}.{row.index}": row.label for row in rows}


def noted(session: Session, revision: str, query: str) -> list[NeuronNote]:
    """Neurons whose label or note contains this."""
    holds = or_(NeuronNote.label.icontains(query, autoescape=True), NeuronNote.note.icontains(query, autoescape=True))
    chosen = select(NeuronNote).where(NeuronNote.model_revision == revision, holds)
    return list(session.scalars(chosen.order_by(NeuronNote.label, NeuronNote.layer, NeuronNote.index).limit(FOUND)))


def ranked_in(
    session: Session, revision: str, layer: int, index: int, limit: int = 10
) -> list[tuple[Run, Picture | None, NeuronRow, AttributionRow]]:
    """The newest runs in which it was among the ranked, each once, by its best rank."""
    best = (
        select(AttributionRow.run_id, func.min(NeuronRow.rank).label("rank"))
        .join(NeuronRow, NeuronRow.attribution_id == AttributionRow.id)
        .join(Run, Run.id == AttributionRow.run_id)
        .where(NeuronRow.layer == layer, NeuronRow.index == index, Run.model_revision == revision)
        .group_by(AttributionRow.run_id, Run.created)
        .order_by(Run.created.desc(), AttributionRow.run_id)
        .limit(limit)
        .subquery()
    )
    chosen = (
        select(Run, Picture, NeuronRow, AttributionRow)
        .join(best, best.c.run_id == Run.id)
        .join(AttributionRow, AttributionRow.run_id == Run.id)
        .join(NeuronRow, (NeuronRow.attribution_id == AttributionRow.id) & (NeuronRow.rank == best.c.rank))
        .outerjoin(Picture, Picture.hash == Run.picture_hash)
        .where(NeuronRow.layer == layer, NeuronRow.index == index)
        .options(defer(AttributionRow.arrays))
        .order_by(Run.created.desc(), Run.id, AttributionRow.id)
    )
    found: dict[str, tuple[Run, Picture | None, NeuronRow, AttributionRow]] = {}
    for run, picture, row, attribution in session.execute(chosen):
        found.setdefault(run.id, (run, picture, row, attribution))
    return list(found.values())


def newest(session: Session, kind: str, revision: str, *states: str, sae: str = "") -> JobRow | None:
    """The newest job of this kind about this model (and this SAE, by its id), without its arrays."""
    chosen = select(JobRow).where(JobRow.kind == kind, JobRow.params["model_revision"].as_string() == revision)
    if sae:
        chosen = chosen.where(JobRow.params["sae"].as_string() == sae)
    if states:
        chosen = chosen.where(JobRow.state.in_(states))
    return session.scalars(chosen.options(defer(JobRow.arrays)).order_by(JobRow.queued.desc()).limit(1)).first()


def job(session: Session, kind: str, params: dict[str, Any]) -> JobRow | None:
    return session.scalars(select(JobRow).where(JobRow.identity == longjobs.identity(kind, None, params))).first()


def sizes(session: Session, hashes: list[str]) -> dict[str, tuple[int, int]]:
    """(width, height) of these pictures."""
    rows = session.execute(select(Picture.hash, Picture.width, Picture.height).where(Picture.hash.in_(hashes)))
    return {name: (width, height) for name, width, height in rows}


@dataclasses.dataclass(frozen=True, slots=True)
class Promoted:
    """A neuron that promotes a token that was searched for; `rank` among its tokens, from 1."""

    neuron: str
    token: str
    rank: int


def promoting(session: Session, row: JobRow, query: str) -> list[Promoted]:
    """Neurons among whose first tokens one reads as `query`, or begins with it, or else is one of its words; low ranks
    first."""
    wanted = query.strip().casefold()
    result = row.result or {}
    texts = {int(token): text for token, text in result.get("texts", {}).items()}
    exact = [token for token, text in texts.items() if text.strip().casefold() == wanted]
    begin = [token for token, text in texts.items() if text.strip().casefold().startswith(wanted)]
    words = [token for token, text in texts.items() if text.strip().casefold() in wanted.split()]
    chosen = exact or begin or words
    if not chosen or not wanted or row.arrays is None:
        return []
    arrays = unpack(row.arrays)
    ids, values = arrays["ids"].astype(np.int64), arrays["values"]
    hits = np.argwhere(np.isin(ids, chosen))
    order = np.lexsort((-values[tuple(hits.T)], hits[:, 2]))
    found: dict[tuple[int, int], Promoted] = {}
    for layer, index, rank in hits[order].tolist():
        token = texts[int(ids[layer, index, rank])]
        found.setdefault((layer, index), Promoted(f"text.{layer}.{index}", token, rank + 1))
        if len(found) == FOUND:
            break
    return list(found.values())
