"""Jobs about whole SAEs: `attach` and `detach` (quick), and `saetrain`, which trains one.

What was attached is remembered in AttachedSae, so that it is there after a start (`restore`). On attaching, the SAE is
tried on a sample at once: newest questions of this model, or pictures of the little world. A training keeps its curve
as parts of its job (at most POINTS, means over the steps between two) and its checkpoint in its folder; whatever stops
it, it goes on from there.
"""

import contextlib
import dataclasses
import logging
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import jobparts, longjobs
from app.conceptjobs import Done, Room
from app.database import Database
from app.pictures import Store
from app.saeplaces import TRAINED
from app.tables import AttachedSae, EvaluationPart, JobRow, Run, now
from engine.contract import Engine, EngineError, IsCancelled, OnProgress, Question, UnknownName, saes

log = logging.getLogger("sfumato.saes")
ATTACH, DETACH, TRAIN = "attach", "detach", "saetrain"
SAMPLE = 4
"""Newest questions that an SAE of another model than the built-in one is tried on."""
POINTS = 200
GATHERED, SINCE = "gathered", "since"
"""Keys of parts that are no points: positions before the first step, and a Since."""
Since = tuple[float, float]
"""The step that this run of a training's job began at, and when (seconds since 1970)."""
START = "start"
"""`asked` of an attempt to attach that a start of the server made."""


def attach_params(revision: str, path: str, layer: int | None, site: str | None, asked: str) -> dict[str, Any]:
    """`asked` makes an attempt a job of its own: what is detached can be attached again."""
    return {"model_revision": revision, "path": path, "layer": layer, "site": site, "asked": asked}


def attach(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """See `_kept`."""
    info = room.engine.attach_sae(params["path"], params["layer"], params["site"])
    return _kept(room, info, params), None


def _kept(room: Room, info: saes.SaeInfo, params: dict[str, Any]) -> dict[str, Any]:
    """Remember an SAE that stands, unless it ships with the model, and try it on a sample: `sae`, `fit` (None: it could
    not be tried, `note` says why), `sample` in words."""
    with room.database.write() as session:
        if not _ships(info):
            key = (info.id, room.info.revision)
            row = session.get(AttachedSae, key) or AttachedSae(id=key[0], model_revision=key[1])
            row.name, row.path, row.layer, row.site = info.name, params["path"], params["layer"], params["site"]
            session.add(row)
        retried = select(JobRow).where(JobRow.kind == ATTACH, JobRow.state == "failed")
        for job in session.scalars(retried):
            if job.params["path"] == params["path"] and job.params["model_revision"] == room.info.revision:
                session.delete(job)
    questions, words = _sample(room)
    fit, note = None, ""
    try:
        fit = dataclasses.asdict(room.engine.check_sae(info.id, questions))
    except EngineError as error:
        note = f"It is attached, but could not be tried: {error}"
    return {"sae": dataclasses.asdict(info), "fit": _finite(fit), "sample": words, "note": note}


def _ships(info: saes.SaeInfo) -> bool:
    """What ships with a model says so in words; all else has a path."""
    return not Path(info.source).is_absolute()


def _finite(fit: dict[str, Any] | None) -> dict[str, Any] | None:
    """JSON has no word for what is not finite."""
    if fit is None:
        return None
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fit.items()}


def _sample(room: Room) -> tuple[Sequence[Question], str]:
    if not room.info.builtin:
        with room.database.read() as session:
            mine = select(Run).where(Run.model_revision == room.info.revision, Run.state == "done")
            mine = mine.where(Run.picture_hash.is_not(None), Run.parent_id.is_(None)).order_by(Run.created.desc())
            asked = [(run.picture_hash, run.question) for run in session.scalars(mine.limit(SAMPLE))]
        questions = [Question(room.store.load(picture), text, 1) for picture, text in asked if picture]
        if questions:
            return questions, f"the newest {len(questions)} questions about pictures"
    return (), "four pictures of the little world with their questions"


def detach(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: sae (its id), asked."""
    with contextlib.suppress(UnknownName):
        room.engine.detach_sae(params["sae"])
    with room.database.write() as session:
        session.execute(delete(AttachedSae).where(AttachedSae.id == params["sae"], _of(room.info.revision)))
    return {}, None


def _of(revision: str) -> Any:
    return AttachedSae.model_revision == revision


def restore(database: Database, engine: Engine) -> tuple[saes.SaeInfo, ...]:
    """Attach again what was attached to this model, in that order; what stands then. One that cannot be is remembered
    as an attempt that failed, and the others are attached nevertheless."""
    revision = engine.info().revision
    with database.read() as session:
        rows = list(session.scalars(select(AttachedSae).where(_of(revision)).order_by(AttachedSae.created)))
    for row in rows:
        error = _again(engine, row)
        with database.write() as session:
            _attempt(session, row, error)
    return engine.saes()


def _again(engine: Engine, row: AttachedSae) -> str:
    """Attach a row's SAE; '' or why it cannot be."""
    try:
        info = engine.attach_sae(row.path, row.layer, row.site, row.name)
    except EngineError as error:
        return str(error)
    except Exception as error:  # whatever its files hold must not keep the model away
        log.exception("%s could not be attached again", row.path)
        return f"{type(error).__name__}: {error}"
    if info.id == row.id or any(sae.id == row.id for sae in engine.saes()):
        return ""
    engine.detach_sae(info.id)
    return "Its files hold another SAE now. Attach that one anew, or put the old files back."


def _attempt(session: Session, row: AttachedSae, error: str) -> None:
    params = attach_params(row.model_revision, row.path, row.layer, row.site, f"{START} {row.id}")
    params["name"] = row.name
    identity = longjobs.identity(ATTACH, None, params)
    known = session.scalars(select(JobRow).where(JobRow.identity == identity)).first()
    if not error:
        if known is not None:
            session.delete(known)
        return
    if known is None:
        known = JobRow(id=identity[:12], identity=identity, kind=ATTACH, run_id=None, params=params)
        session.add(known)
    known.state, known.error, known.finished = "failed", error, now()


def train_params(revision: str, recipe: saes.Recipe, folder: str) -> dict[str, Any]:
    """The same recipe, pictures and model: the same training."""
    return {"model_revision": revision, "recipe": dataclasses.asdict(recipe), "folder": folder}


def folder_of(store: Store, params: dict[str, Any]) -> Path:
    """Where a training's checkpoint and its SAE lie."""
    recipe, identity = params["recipe"], longjobs.identity(TRAIN, None, params)
    return store.folder.resolve().parent / TRAINED / f"{recipe['name'] or recipe['site']}-{identity[:8]}"


def forget_checkpoint(store: Store, params: dict[str, Any]) -> None:
    """So that a training begins anew."""
    shutil.rmtree(folder_of(store, params), ignore_errors=True)


def train(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """As `attach`, and `points`: the curve (step, loss, explained variance, L0, dead share), `pace` = seconds a step
    (None: nothing was left to be done)."""
    recipe, out = saes.Recipe(**params["recipe"]), folder_of(room.store, params)
    curve = Curve(room, longjobs.identity(TRAIN, None, params), recipe, on_progress)
    checkpoint = out / saes.CHECKPOINT
    if (out / "card.json").is_file():  # it was finished, and what came after was cut off
        info = room.engine.attach_sae(str(out))
    else:
        info = room.engine.train_sae(recipe, str(out), params["folder"], checkpoint.is_file(), curve, cancelled)
    kept = _kept(room, info, attach_params(room.info.revision, str(out.resolve()), None, None, ""))
    checkpoint.unlink(missing_ok=True)
    return {**kept, "points": curve.points(), "pace": curve.pace, "folder": str(out)}, None


class Curve:
    """Keeps a training's points as they come, tells how far it is, and lets others pass."""

    def __init__(self, room: Room, identity: str, recipe: saes.Recipe, on_progress: OnProgress) -> None:
        self.room, self.identity, self.on_progress = room, identity, on_progress
        self.every = max(1, math.ceil(recipe.steps / POINTS))
        self.seen: list[saes.TrainingPoint] = []
        self.waiting: dict[str, list[float]] = {}
        self.last, self.first, self.began = 0, -1, 0.0
        self.pace: float | None = None
        jobparts.kept(room.database, TRAIN, identity)  # those of finished trainings are dropped

    def __call__(self, point: saes.TrainingPoint) -> None:
        if point.step > self.last:
            self._took(point)
        elif point.step == 0:
            self._keep({GATHERED: [float(point.gathered)]}, 0)
        self.on_progress(point.step, point.steps)

    def _took(self, point: saes.TrainingPoint) -> None:
        if self.first < 0:
            self.first, self.began = point.step, time.monotonic()
            self._drop(point.step)
        elif point.step > self.first:
            self.pace = (time.monotonic() - self.began) / (point.step - self.first)
        self.last = point.step
        self.seen.append(point)
        if point.step % self.every == 0 or point.step == point.steps:
            self.waiting[f"{point.step:08d}"] = _mean(self.seen)
            self.seen = []
            if self._keep(self.waiting, point.step):
                self.waiting = {}

    def _drop(self, step: int) -> None:
        """What was learnt after the checkpoint is learnt again."""
        with self.room.database.write() as session:
            mine = EvaluationPart.evaluation == self.identity
            session.execute(delete(EvaluationPart).where(mine, EvaluationPart.place >= step))
        self._keep({SINCE: [float(step - 1), time.time()]}, 0)

    def _keep(self, parts: dict[str, list[float]], place: int) -> bool:
        """A database that does not take it now takes it with the next points: it is not worth the training."""
        try:
            with self.room.database.write() as session:
                for key, value in parts.items():
                    part = EvaluationPart(evaluation=self.identity, key=key, place=place, value=value)
                    session.merge(part)
        except SQLAlchemyError:
            log.warning("a training's points could not be written down", exc_info=True)
            return False
        return True

    def points(self) -> list[list[float]]:
        return points_of(jobparts.kept(self.room.database, TRAIN, self.identity))


def _mean(seen: Sequence[saes.TrainingPoint]) -> list[float]:
    columns = zip(*((p.loss, p.explained_variance, p.l0, p.dead_share) for p in seen), strict=True)
    means = [sum(column) / len(seen) for column in columns]
    return [float(seen[-1].step), *(value if math.isfinite(value) else 0.0 for value in means)]


def points_of(parts: dict[str, Any]) -> list[list[float]]:
    """(step, loss, explained variance, L0, dead share), by step."""
    return sorted(value for key, value in parts.items() if key not in (GATHERED, SINCE))


def started(session: Session, job: JobRow) -> tuple[list[list[float]], int, Since | None]:
    """(points so far, positions gathered before the first step, when this run of it began) of a training."""
    chosen = select(EvaluationPart).where(EvaluationPart.evaluation == job.identity).order_by(EvaluationPart.place)
    parts = {part.key: part.value for part in session.scalars(chosen)}
    since = (parts[SINCE][0], parts[SINCE][1]) if SINCE in parts else None
    return points_of(parts), int(parts.get(GATHERED, [0])[0]), since


RUNNERS = {ATTACH: attach, DETACH: detach, TRAIN: train}
"""Raise RequestError for what is missing or does not fit."""
