"""The tables. Times are UTC. JSON columns hold finished small values; arrays are blobs (see arrays.py)."""

import datetime as dt
from typing import Any

from sqlalchemy import (
    JSON,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

LIVE = ("queued", "running")
STATES = (*LIVE, "done", "failed", "cancelled")


class Utc(TypeDecorator[dt.datetime]):
    """A point in time: SQLite forgets the zone, so it is put back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        return value.replace(tzinfo=dt.UTC) if value is not None and value.tzinfo is None else value


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Picture(Base):
    """A normalised picture; its pixels are a PNG in the data folder, named by `hash` (SHA-256 of shape and pixels)."""

    __tablename__ = "pictures"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    width: Mapped[int] = mapped_column(Integer)
    height: Mapped[int] = mapped_column(Integer)
    notes: Mapped[list[str]] = mapped_column(JSON)
    created: Mapped[dt.datetime] = mapped_column(Utc, default=now)


class Run(Base):
    """One question to one model, plain or — with a parent — steered. `identity` hashes all that its answer depends
    on. `answer` = {text, stopped, tokens, prompt}; `pair` and `control` exist on steered runs. (records.py
    writes and reads them.)"""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    identity: Mapped[str] = mapped_column(String(80), unique=True)
    state: Mapped[str] = mapped_column(String(10))
    stop_requested: Mapped[bool] = mapped_column(default=False)
    question: Mapped[str] = mapped_column(Text)
    picture_hash: Mapped[str | None] = mapped_column(ForeignKey("pictures.hash"))
    max_new_tokens: Mapped[int] = mapped_column(Integer)
    method: Mapped[str] = mapped_column(String(24))
    model: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    model_revision: Mapped[str] = mapped_column(String(80), default="")
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    steering: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    answer: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    pair: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    control: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    timing: Mapped[dict[str, float] | None] = mapped_column(JSON)
    error: Mapped[str] = mapped_column(Text, default="")
    remedy: Mapped[str] = mapped_column(Text, default="")
    queued: Mapped[dt.datetime] = mapped_column(Utc, default=now)
    created: Mapped[dt.datetime] = mapped_column(Utc, default=now)
    started: Mapped[dt.datetime | None] = mapped_column(Utc)
    finished: Mapped[dt.datetime | None] = mapped_column(Utc)

    __table_args__ = (Index("ix_runs_state_queued", "state", "queued"), Index("ix_runs_created", "created"))

    @property
    def live(self) -> bool:
        return self.state in LIVE


class Watcher(Base):
    """A panel (one view of a page) that waits for a steered run. A run that nobody waits for any more is cancelled."""

    __tablename__ = "watchers"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    panel: Mapped[str] = mapped_column(String(40), primary_key=True, index=True)


class AttributionRow(Base):
    """An attribution of a target over a run's answer: tokens start:end, and what `target` says beyond them; `key`
    spells it (see targets.TargetChoice). `summary` holds what is small (see records.fill); `arrays` the blob: scores
    (n_layers, d_mlp), positions (n_layers, pos), layer_sums (n_layers, 4), and with a picture heat and evidence_heat
    (rows, cols), layer_heats (n_layers, rows, cols), neuron_heats and activation_heats (neurons, rows, cols) by rank,
    concept_heats (concepts, rows, cols) in the order of the summary."""

    __tablename__ = "attributions"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    start: Mapped[int] = mapped_column(Integer)
    end: Mapped[int] = mapped_column(Integer)
    key: Mapped[str] = mapped_column(String(80))
    target: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    method: Mapped[str] = mapped_column(String(24))
    state: Mapped[str] = mapped_column(String(10))
    value: Mapped[float | None] = mapped_column(Float)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    arrays: Mapped[bytes | None] = mapped_column(LargeBinary)
    error: Mapped[str] = mapped_column(Text, default="")
    queued: Mapped[dt.datetime] = mapped_column(Utc, default=now)

    __table_args__ = (
        UniqueConstraint("run_id", "key", "method"),
        Index("ix_attributions_state_queued", "state", "queued"),
    )

    @property
    def live(self) -> bool:
        return self.state in LIVE


class JobRow(Base):
    """A long job: `kind` is one of longjobs.KINDS, `params` all that its result depends on beside its run, `identity` a
    hash over both. `done` of `total` steps; `result` is small, `arrays` a blob."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    identity: Mapped[str] = mapped_column(String(80), unique=True)
    kind: Mapped[str] = mapped_column(String(24))
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    params: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(10))
    stop_requested: Mapped[bool] = mapped_column(default=False)
    done: Mapped[int] = mapped_column(Integer, default=0)
    total: Mapped[int] = mapped_column(Integer, default=0)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    arrays: Mapped[bytes | None] = mapped_column(LargeBinary)
    error: Mapped[str] = mapped_column(Text, default="")
    queued: Mapped[dt.datetime] = mapped_column(Utc, default=now)
    started: Mapped[dt.datetime | None] = mapped_column(Utc)
    finished: Mapped[dt.datetime | None] = mapped_column(Utc)

    __table_args__ = (Index("ix_jobs_state_queued", "state", "queued"),)

    @property
    def live(self) -> bool:
        return self.state in LIVE


class NeuronRow(Base):
    """A ranked neuron of an attribution: its score, the score's parts by modality, and its peak activation."""

    __tablename__ = "neuron_scores"

    attribution_id: Mapped[int] = mapped_column(ForeignKey("attributions.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    layer: Mapped[int] = mapped_column(Integer)
    index: Mapped[int] = mapped_column(Integer)
    score: Mapped[float] = mapped_column(Float)
    image: Mapped[float] = mapped_column(Float)
    question: Mapped[float] = mapped_column(Float)
    template: Mapped[float] = mapped_column(Float)
    answer: Mapped[float] = mapped_column(Float)
    peak: Mapped[float] = mapped_column(Float)

    __table_args__ = (Index("ix_neuron_scores_neuron", "layer", "index"),)


class ConceptRow(Base):
    """A concept of one model revision, copied from the engine's library. `members` = neurons of membership above 0;
    `layers` = cardinality Σμ by layer; `exact` = all memberships (n_layers, d_mlp), a blob that is read on demand, and
    `fingerprint` their hash."""

    __tablename__ = "concepts"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    model_revision: Mapped[str] = mapped_column(String(80))
    library_revision: Mapped[str] = mapped_column(String(80))
    name: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(40))
    probes: Mapped[int] = mapped_column(Integer)
    cardinality: Mapped[float] = mapped_column(Float)
    members: Mapped[int] = mapped_column(Integer)
    layers: Mapped[list[float]] = mapped_column(JSON)
    figures: Mapped[dict[str, float]] = mapped_column(JSON)
    recipe: Mapped[dict[str, Any]] = mapped_column(JSON)
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    exact: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)

    __table_args__ = (UniqueConstraint("model_revision", "name"),)


class LibraryRow(Base):
    """How far the concepts of a model's library share their neurons: `shared` = the blob of Σ min(μ_i, μ_j) over all
    pairs, exact, concepts in the order of `names`; `order` lists their places so that similar ones are neighbours."""

    __tablename__ = "libraries"

    model_revision: Mapped[str] = mapped_column(String(80), primary_key=True)
    revision: Mapped[str] = mapped_column(String(80))
    names: Mapped[list[str]] = mapped_column(JSON)
    order: Mapped[list[int]] = mapped_column(JSON)
    shared: Mapped[bytes] = mapped_column(LargeBinary)


class OwnConcept(Base):
    """A concept that a person made for one model revision: from probes, with the map and mode that make its memberships
    from their evidence; or, with an `expression`, derived from others in one `family` of fuzzy sets."""

    __tablename__ = "own_concepts"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    model_revision: Mapped[str] = mapped_column(String(80))
    name: Mapped[str] = mapped_column(String(80))
    kind: Mapped[str] = mapped_column(String(40))
    forms: Mapped[list[str]] = mapped_column(JSON)
    contrast: Mapped[list[str]] = mapped_column(JSON)
    map: Mapped[str] = mapped_column(String(24))
    quantile: Mapped[float] = mapped_column(Float)
    mode: Mapped[str] = mapped_column(String(24))
    expression: Mapped[str] = mapped_column(Text, default="")
    family: Mapped[str] = mapped_column(String(24), default="min-max")
    created: Mapped[dt.datetime] = mapped_column(Utc, default=now)

    __table_args__ = (UniqueConstraint("model_revision", "name"),)


class Preset(Base):
    """A steering that was given a name, for one model revision. `steering` is canonical (see steerings.to_json)."""

    __tablename__ = "presets"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    model_revision: Mapped[str] = mapped_column(String(80))
    name: Mapped[str] = mapped_column(String(80))
    steering: Mapped[dict[str, Any]] = mapped_column(JSON)
    created: Mapped[dt.datetime] = mapped_column(Utc, default=now)

    __table_args__ = (UniqueConstraint("model_revision", "name"),)


class ProbeRow(Base):
    """A probe of an own concept, and what came of it: `shares` (see engine.concepts.evidence.Shares.to_bytes) with the
    log-probability of what says the concept and whether the model answers it exactly; or why it was refused. `against`:
    the target is a contrast, what this other text would have said. `source`: where it came from, in words. Without a
    question it is a line of a file that could not be taken, and `refused` says why."""

    __tablename__ = "probes"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    concept_id: Mapped[str] = mapped_column(ForeignKey("own_concepts.id", ondelete="CASCADE"), index=True)
    source: Mapped[str] = mapped_column(String(200))
    picture_hash: Mapped[str | None] = mapped_column(ForeignKey("pictures.hash"))
    question: Mapped[str] = mapped_column(Text)
    answer: Mapped[str] = mapped_column(Text)
    says: Mapped[str] = mapped_column(Text)
    box: Mapped[list[float] | None] = mapped_column(JSON(none_as_null=True))
    against: Mapped[str | None] = mapped_column(Text)
    shares: Mapped[bytes | None] = mapped_column(LargeBinary)
    logprob: Mapped[float | None] = mapped_column(Float)
    correct: Mapped[bool | None] = mapped_column()
    refused: Mapped[str] = mapped_column(Text, default="")

    @property
    def waiting(self) -> bool:
        return self.shares is None and not self.refused


class QuestionSet(Base):
    """A set of questions from a person's files, which lie in the data folder by `hash` (SHA-256 over all of them; see
    questionsets.py). `files` = [name, SHA-256] of each question file in the order that its format has. `kinds` and
    `conditions` = how many questions each has; `bad` = [line, reason] of the first of `left_out` lines."""

    __tablename__ = "question_sets"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    format: Mapped[str] = mapped_column(String(16))
    metric: Mapped[str] = mapped_column(String(16))
    files: Mapped[list[list[str]]] = mapped_column(JSON)
    questions: Mapped[int] = mapped_column(Integer)
    kinds: Mapped[dict[str, int]] = mapped_column(JSON)
    conditions: Mapped[dict[str, int]] = mapped_column(JSON)
    bad: Mapped[list[list[Any]]] = mapped_column(JSON)
    left_out: Mapped[int] = mapped_column(Integer)
    created: Mapped[dt.datetime] = mapped_column(Utc, default=now)


class EvaluationPart(Base):
    """A finished part of an evaluation, by which one that was stopped goes on. `evaluation`: its job's identity;
    `place`: the how-manieth it came."""

    __tablename__ = "evaluation_parts"

    evaluation: Mapped[str] = mapped_column(ForeignKey("jobs.identity", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    place: Mapped[int] = mapped_column(Integer)
    value: Mapped[Any] = mapped_column(JSON)


class NeuronNote(Base):
    """What people wrote about a neuron: a short label and a longer note."""

    __tablename__ = "neuron_notes"

    model_revision: Mapped[str] = mapped_column(String(80), primary_key=True)
    layer: Mapped[int] = mapped_column(Integer, primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True)
    label: Mapped[str] = mapped_column(String(80), default="")
    note: Mapped[str] = mapped_column(Text, default="")
    changed: Mapped[dt.datetime] = mapped_column(Utc, default=now)


class Membership(Base):
    """The membership μ of one neuron in one concept, where it is at least library.SMALLEST."""

    __tablename__ = "memberships"

    concept_id: Mapped[int] = mapped_column(ForeignKey("concepts.id", ondelete="CASCADE"), primary_key=True)
    layer: Mapped[int] = mapped_column(Integer, primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True)
    mu: Mapped[float] = mapped_column(Float)

    __table_args__ = (Index("ix_memberships_neuron", "layer", "index", "concept_id", "mu"),)


class LatentNote(Base):
    """What people wrote about a latent of an SAE (its id): a short label and a longer note."""

    __tablename__ = "latent_notes"

    sae_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True)
    label: Mapped[str] = mapped_column(String(80), default="")
    note: Mapped[str] = mapped_column(Text, default="")
    changed: Mapped[dt.datetime] = mapped_column(Utc, default=now)


class LatentConcept(Base):
    """A concept whose memberships of an SAE's latents are there (LatentMembership), and of what they were made:
    `fingerprint` of the concept then, `recipe` in words and numbers."""

    __tablename__ = "latent_concepts"

    sae_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    concept: Mapped[str] = mapped_column(String(200), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    recipe: Mapped[dict[str, Any]] = mapped_column(JSON)


class LatentMembership(Base):
    """The membership μ of one latent of an SAE in one concept, where it is at least library.SMALLEST."""

    __tablename__ = "latent_memberships"

    sae_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    concept: Mapped[str] = mapped_column(String(200), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True)
    mu: Mapped[float] = mapped_column(Float)

    __table_args__ = (Index("ix_latent_memberships_latent", "sae_id", "index"),)


class AttachedSae(Base):
    """An SAE that a person attached to a model revision: where it was loaded from, so that it is there again after a
    start. `layer` and `site`: what was said beside what its files say, or None."""

    __tablename__ = "attached_saes"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    model_revision: Mapped[str] = mapped_column(String(80), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    path: Mapped[str] = mapped_column(Text)
    layer: Mapped[int | None] = mapped_column(Integer)
    site: Mapped[str | None] = mapped_column(String(16))
    created: Mapped[dt.datetime] = mapped_column(Utc, default=now)
