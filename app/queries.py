"""Every SELECT of the pages. Functions take a session and return rows or plain values."""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import URL, case, func, or_, select
from sqlalchemy.orm import Session, aliased, defer

from app.tables import LIVE, AttributionRow, ConceptRow, JobRow, Membership, NeuronRow, Picture, Preset, Run

PER_PAGE = 30
SHOWN_MEMBERSHIP = 0.05
"""Memberships below this are not shown beside a neuron."""
KEPT_NEURONS = 2000
"""Of so many neurons it is kept to which concepts they belong."""

_Belonging = dict[tuple[int, int], list[tuple[str, float]]]


def queue_length(session: Session, *, running: bool = True) -> int:
    """Jobs that wait or run."""
    states = LIVE if running else ("queued",)
    runs = select(func.count()).select_from(Run).where(Run.state.in_(states)).scalar_subquery()
    others = select(func.count()).select_from(AttributionRow).where(AttributionRow.state.in_(states)).scalar_subquery()
    long = select(func.count()).select_from(JobRow).where(JobRow.state.in_(states)).scalar_subquery()
    return int(session.execute(select(runs + others + long)).scalar_one())


def queue_position(session: Session, run: Run, slow: Collection[str]) -> int:
    """How many jobs are served up to and including this waiting run; 0 when it does not wait. Attributions by `slow`
    methods and long jobs let it pass. See jobs.claim."""
    if run.state != "queued":
        return 0
    steered = Run.parent_id.is_not(None)
    earlier = (Run.queued < run.queued) | ((Run.queued == run.queued) & (Run.id <= run.id))
    ahead = steered & earlier if run.parent_id else steered | (Run.parent_id.is_(None) & earlier)
    waiting = or_(Run.state == "running", (Run.state == "queued") & ahead)
    count = int(session.execute(select(func.count()).select_from(Run).where(waiting)).scalar_one())
    if run.parent_id is None:
        live = AttributionRow.state.in_(LIVE) & AttributionRow.method.not_in(slow)
        count += int(session.execute(select(func.count()).select_from(AttributionRow).where(live)).scalar_one())
    return count


def run(session: Session, run_id: str) -> Run | None:
    return session.get(Run, run_id)


def run_with_picture(session: Session, run_id: str) -> tuple[Run, Picture | None, Run | None] | None:
    """A run, its picture and its parent."""
    parent = aliased(Run)
    chosen = (
        select(Run, Picture, parent)
        .outerjoin(Picture, Picture.hash == Run.picture_hash)
        .outerjoin(parent, parent.id == Run.parent_id)
        .where(Run.id == run_id)
    )
    found = session.execute(chosen).first()
    return None if found is None else (found[0], found[1], found[2])


def picture(session: Session, picture_hash: str) -> Picture | None:
    return session.get(Picture, picture_hash)


def runs(session: Session, before: str = "", limit: int = PER_PAGE) -> list[Run]:
    """Plain and steered runs, newest first; `before` is the id of the run after which to go on."""
    chosen = select(Run).order_by(Run.created.desc(), Run.id.desc()).limit(limit)
    last = session.get(Run, before) if before else None
    if last is not None:
        older = (Run.created < last.created) | ((Run.created == last.created) & (Run.id < last.id))
        chosen = chosen.where(older)
    return list(session.scalars(chosen))


def recent(session: Session, limit: int) -> list[Run]:
    """The newest plain runs."""
    newest = select(Run).where(Run.parent_id.is_(None)).order_by(Run.created.desc(), Run.id.desc())
    return list(session.scalars(newest.limit(limit)))


def nearest(session: Session, to: Run, limit: int) -> list[Run]:
    """Other runs, steered ones too: first those of the same picture, then those of the same question, newest first."""
    same_picture = Run.picture_hash == to.picture_hash if to.picture_hash else Run.picture_hash.is_(None)
    near = case((same_picture, 0), (Run.question == to.question, 1), else_=2)
    ordered = select(Run).where(Run.id != to.id).order_by(near, Run.created.desc(), Run.id.desc())
    return list(session.scalars(ordered.limit(limit)))


def steered(session: Session, parent_id: str, limit: int) -> list[Run]:
    """The newest steered runs of a run."""
    chosen = select(Run).where(Run.parent_id == parent_id).order_by(Run.created.desc(), Run.id.desc())
    return list(session.scalars(chosen.limit(limit)))


def attributions(session: Session, run_id: str, limit: int) -> list[AttributionRow]:
    """The newest finished attributions of a run, without their arrays."""
    chosen = select(AttributionRow).where(AttributionRow.run_id == run_id, AttributionRow.state == "done")
    ordered = chosen.options(defer(AttributionRow.arrays)).order_by(AttributionRow.id.desc())
    return list(session.scalars(ordered.limit(limit)))


def attribution(session: Session, run_id: str, key: str, method: str, *, arrays: bool = True) -> AttributionRow | None:
    """`key` spells the target (see targets.TargetChoice)."""
    chosen = select(AttributionRow).where(
        AttributionRow.run_id == run_id, AttributionRow.key == key, AttributionRow.method == method
    )
    if not arrays:
        chosen = chosen.options(defer(AttributionRow.arrays))
    return session.scalars(chosen).first()


def neurons(session: Session, attribution_id: int) -> list[NeuronRow]:
    ordered = select(NeuronRow).where(NeuronRow.attribution_id == attribution_id).order_by(NeuronRow.rank)
    return list(session.scalars(ordered))


def memberships(
    session: Session, concepts: Mapping[str, "ConceptFact"], neurons: Iterable[tuple[int, int]]
) -> _Belonging:
    """For each of these neurons, those of the concepts that it belongs to, (name, μ), strongest first. Kept by all
    that they depend on: the database, the library's revision and the concepts' rows."""
    asked = list(neurons)
    if not asked or not concepts:
        return {}
    names = {fact.id: fact.name for fact in concepts.values()}
    library = next(iter(concepts.values())).library
    known = _known_memberships(session.get_bind().engine.url, library, tuple(names.items()))
    held = {neuron: belongs for neuron in asked if (belongs := known.get(neuron)) is not None}
    missing = [neuron for neuron in asked if neuron not in held]
    if missing:
        found = _memberships(session, names, missing)
        fresh = {neuron: found.get(neuron, []) for neuron in missing}
        if len(known) + len(fresh) > KEPT_NEURONS:
            known.clear()
        known.update(fresh)
        held.update(fresh)
    return {neuron: belongs for neuron, belongs in held.items() if belongs}


@functools.lru_cache(maxsize=2)
def _known_memberships(_database: URL, _library: str, _concepts: tuple[tuple[int, str], ...]) -> _Belonging:
    return {}


def _memberships(session: Session, names: Mapping[int, str], neurons: Iterable[tuple[int, int]]) -> _Belonging:
    by_layer: defaultdict[int, list[int]] = defaultdict(list)
    for layer, index in neurons:
        by_layer[layer].append(index)
    wanted = or_(*((Membership.layer == layer) & Membership.index.in_(indices) for layer, indices in by_layer.items()))
    chosen = select(Membership.layer, Membership.index, Membership.concept_id, Membership.mu).where(
        Membership.mu >= SHOWN_MEMBERSHIP, wanted
    )
    found: defaultdict[tuple[int, int], list[tuple[str, float]]] = defaultdict(list)
    for layer, index, concept_id, mu in session.execute(chosen):
        if concept_id in names:  # concepts of another model have neurons of the same names
            found[layer, index].append((names[concept_id], mu))
    for belongs in found.values():
        belongs.sort(key=lambda pair: (-pair[1], pair[0]))
    return dict(found)


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptFact:
    """What a run's page shows of a concept. `members` = neurons of membership above 0; `library` = the revision of the
    library that it belongs to, one and the same for all concepts of a model revision; `weak`: it failed validation."""

    id: int
    name: str
    kind: str
    members: int
    library: str
    weak: bool = False


def presets(session: Session, model_revision: str | None = None) -> list[Preset]:
    """Those of a model revision, or of all, by name."""
    chosen = select(Preset).order_by(Preset.name, Preset.id)
    return list(session.scalars(chosen if model_revision is None else chosen.filter_by(model_revision=model_revision)))


def library_revision(session: Session, model_revision: str) -> str:
    """Of the concepts that are known for a model revision; '' where none are."""
    chosen = select(ConceptRow.library_revision).where(ConceptRow.model_revision == model_revision)
    return session.scalars(chosen.limit(1)).first() or ""


def concept_facts(session: Session, model_revision: str) -> dict[str, ConceptFact]:
    """All concepts of a model revision by name."""
    passes = ConceptRow.figures["passes"].as_float()
    chosen = select(
        ConceptRow.id, ConceptRow.name, ConceptRow.kind, ConceptRow.members, ConceptRow.library_revision,
        func.coalesce(passes == 0, False),
    )  # fmt: skip
    ordered = chosen.where(ConceptRow.model_revision == model_revision).order_by(ConceptRow.name)
    facts = [ConceptFact(*row) for row in session.execute(ordered)]
    return {fact.name: fact for fact in facts}


def concept_kinds(session: Session, model_revision: str) -> list[tuple[str, int]]:
    """(kind, number of concepts), by kind."""
    counted = select(ConceptRow.kind, func.count()).where(ConceptRow.model_revision == model_revision)
    found = session.execute(counted.group_by(ConceptRow.kind).order_by(ConceptRow.kind))
    return [(kind, count) for kind, count in found]


def concept(session: Session, model_revision: str, name: str) -> ConceptRow | None:
    chosen = select(ConceptRow).where(ConceptRow.model_revision == model_revision, ConceptRow.name == name)
    return session.scalars(chosen).first()
