"""The thread that owns the engine. It builds it, takes jobs one at a time, and commits each result as it comes.

What lives here and not in the database: the tokens of the answer that is being generated (`partial`), or of all the
answers of a sweep (`points`), how far a slow attribution is (`progress`), who waits for a sweep (`audience`), which
running job is asked to stop, and whether the engine is loading, ready or refused. A crash loses nothing else.

Slow work lets others pass: between two of its batches the same thread does what a person waits for (`_giving_way`),
one job inside the other. The inner job ends, in whatever way, before the outer one goes on.
"""

import dataclasses
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from app import conceptjobs, jobs, latentconcepts, library, longjobs, measurements, own, runners, saejobs
from app.audience import Audience
from app.broker import Broker
from app.database import Database
from app.jobs import Job
from app.longjobs import LongJob
from app.pictures import Store
from app.sweeppoints import SweepPoints
from app.targets import TargetChoice
from engine.contract import (
    Answer,
    AnswerToken,
    Cancelled,
    Engine,
    ModelInfo,
    ModelRefused,
    NonFinite,
    OnProgress,
    Question,
    RequestError,
    Steered,
    Target,
    Variant,
    saes,
    sweeps,
)

log = logging.getLogger("sfumato.worker")
EngineFactory = Callable[[], Engine]
PACE = 0.3
"""Seconds between two notes of progress while slow work runs, and at most between two looks at what waits."""
HANDOVER = 0.0005
"""Seconds after which Python takes another thread: what answers a request must not wait for what computes."""
RETRY = 0.5
"""Seconds between two attempts to write down how a job ended."""


class Partial(NamedTuple):
    """An answer in the making."""

    tokens: tuple[AnswerToken, ...]


class Worker:
    """`state` is 'loading', 'ready' or 'refused'; `message` says why in the last case; `info` and `saes` once it is
    ready. `slow` while slow work runs, which lets others pass."""

    def __init__(
        self, database: Database, store: Store, broker: Broker, factory: EngineFactory, ranked: int = 100
    ) -> None:
        self.database, self.store, self.broker, self.ranked = database, store, broker, ranked
        self.state, self.message = "loading", ""
        self.info: ModelInfo | None = None
        self.saes: tuple[saes.SaeInfo, ...] = ()
        self._factory = factory
        self.slow = False
        self.audience = Audience()
        self._partial: dict[str, Partial] = {}
        self._points = SweepPoints()
        self._progress: dict[int, tuple[int, int]] = {}
        self._stops: set[str] = set()
        self._unsettled: list[tuple[Job | LongJob, BaseException]] = []
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._live, name="sfumato-worker", daemon=True)

    def start(self) -> None:
        jobs.recover(self.database)
        longjobs.recover(self.database)
        self._thread.start()

    def close(self, timeout: float = 10) -> None:
        """Stop within one token; what was running is queued again."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def wake(self) -> None:
        """There may be work."""
        self._wake.set()

    def stop(self, run_id: str, wanted: bool = True) -> None:
        """Mirror a row's `stop_requested` for the running job; call after the row is committed."""
        if wanted:
            self._stops.add(run_id)
        else:
            self._stops.discard(run_id)

    def partial(self, run_id: str) -> Partial | None:
        return self._partial.get(run_id)

    def points(self, job_id: str) -> tuple[sweeps.SweepPoint, ...]:
        """What a running sweep has so far."""
        return self._points.of(job_id)

    def progress(self, attribution_id: int) -> tuple[int, int] | None:
        """(done, all) steps of a slow attribution that is running."""
        return self._progress.get(attribution_id)

    def _live(self) -> None:
        sys.setswitchinterval(HANDOVER)
        engine = self._load()
        if engine is None:
            return
        try:
            while not self._closing.is_set():
                self._wake.clear()
                if not self._step(engine):
                    self._wake.wait(5)
        finally:
            engine.close()

    def _load(self) -> Engine | None:
        try:
            engine = self._factory()
            info, attached = engine.info(), saejobs.restore(self.database, engine)
            with self.database.write() as session:
                own.adopt(session, info, engine)
                library.copy(session, info.revision, engine.library())
                latentconcepts.copy_shipped(session, info.revision, engine, attached)
        except ModelRefused as refused:
            self.state, self.message = "refused", str(refused)
        except BaseException as error:  # whatever a model's files hold must not take the pages down
            log.exception("the model could not be loaded")
            self.state, self.message = "refused", f"The model could not be loaded: {type(error).__name__}: {error}"
        else:
            self.saes = attached
            self.info, self.state = info, "ready"
            self.broker.publish_all()
            return engine
        self.broker.publish_all()
        return None

    def _step(self, engine: Engine, *, urgent: bool = False) -> bool:
        """Do one job; False when there is none. With `urgent`, only what a person waits for, inside slow work that must
        go on whatever happens here. Never raises."""
        assert self.info is not None
        if self._unsettled and not self._settle_rest():
            return self._later(RETRY, urgent=urgent)
        job: Job | LongJob | None = None
        try:
            told = self.broker.publish_all
            conceptjobs.follow(conceptjobs.Room(engine, self.info, self.database, self.store))
            job = jobs.claim(self.database, self.info, self.saes, told, urgent=urgent)
            job = job or longjobs.claim(self.database, self.info, self.saes, told, urgent=urgent)
            if job is None:
                return False
            self.broker.publish(_topic(job))
            if isinstance(job, LongJob):
                self._measure(engine, job)
            else:
                self._do(engine, job)
        except BaseException as error:  # one bad job must not end the thread that serves all others
            if job is None:
                log.error("no job could be claimed", exc_info=error)
                return self._later(1, urgent=urgent)
            self._settle(job, error)
        finally:
            if job is not None:
                self._forget(job, urgent=urgent)
        return True

    def _later(self, seconds: float, *, urgent: bool) -> bool:
        """The database does not take what it is told: wait and try again, unless slow work can go on meanwhile."""
        if not urgent:
            self._closing.wait(seconds)
        return not urgent

    def _forget(self, job: Job | LongJob, *, urgent: bool) -> None:
        self._partial.pop(_topic(job), None)
        self._stops.discard(_name(job))
        if isinstance(job, LongJob) and self._points.end(job.id):
            self.audience.end(job.id)
        if isinstance(job, Job) and job.attribution_id is not None:
            self._progress.pop(job.attribution_id, None)
        if not urgent:
            self.slow = False
        self.broker.publish_all()  # whoever waits has moved up in the queue

    def _question(self, job: Job) -> Question:
        picture = self.store.load(job.picture_hash) if job.picture_hash else None
        return Question(picture, job.question, job.max_new_tokens)

    def _do(self, engine: Engine, job: Job) -> None:
        question = self._question(job)
        began = time.perf_counter()
        if job.attribution_id is not None:
            self._attribute(engine, job, question)
            timing = {"attribute": 1000 * (time.perf_counter() - began)}
        elif job.parent_id is not None:
            timing = self._steer(engine, job, question)
        else:
            timing = self._ask(engine, job, question)
        jobs.finish(self.database, job, timing)

    def _attribute(self, engine: Engine, job: Job, question: Question) -> None:
        target, ways = written(engine, question, job)
        giving_way = self._giving_way(engine, job) if job.method in jobs.SLOW_METHODS else None
        attribution = engine.attribute(
            question, job.original_ids, target, job.method, job.steering, self.ranked, self._asked(job), giving_way
        )
        jobs.save_attribution(self.database, job.run_id, job.choice, job.method, attribution, ways)

    def _measure(self, engine: Engine, job: LongJob) -> None:
        giving_way, asked = self._giving_way(engine, job), self._asked(job)
        if job.of is None:
            assert self.info is not None, "jobs are done once the model is there"
            room = conceptjobs.Room(engine, self.info, self.database, self.store)
            result, arrays = runners.RUNNERS[job.kind](room, job.params, giving_way, asked)
            self.saes = engine.saes()
        elif job.kind == longjobs.SWEEP:
            question, topic = self._question(job.of), job.topic
            pointing = self._points.begin(job.id, lambda: self.broker.publish(topic, passing=True))
            stop = self._points.making_way(job.id, asked, self._wake, lambda: jobs.waits(self.database))
            result, arrays = measurements.sweep(engine, job, job.of, question, pointing, stop)
        else:
            question = self._question(job.of)
            target, _ = written(engine, question, job.of)
            result, arrays = measurements.measure(engine, job, job.of, question, target, giving_way, asked)
        longjobs.finish(self.database, job.id, result, arrays)

    def _giving_way(self, engine: Engine, job: Job | LongJob) -> OnProgress:
        """To be called between two steps of slow work, with nothing left on the model: notes how far it is, and does
        what somebody waits for."""
        self.slow = self.slow or not isinstance(job, LongJob) or job.kind not in longjobs.QUICK
        noted = time.monotonic()

        def on_progress(done: int, total: int) -> None:
            nonlocal noted
            late = time.monotonic() - noted >= PACE or done >= total
            if late:
                self._note(job, done, total)
            if late or self._wake.is_set():
                self._wake.clear()
                while not self._closing.is_set() and self._step(engine, urgent=True):
                    pass
            if late:
                noted = time.monotonic()

        return on_progress

    def _note(self, job: Job | LongJob, done: int, total: int) -> None:
        """Write down how far slow work is. A note that cannot be written is not worth the work it tells of."""
        if isinstance(job, LongJob):
            try:
                if longjobs.progress(self.database, job.id, done, total):
                    self._stops.add(job.id)
            except SQLAlchemyError:
                log.warning("how far a job is could not be written down", exc_info=True)
        elif job.attribution_id is not None:
            self._progress[job.attribution_id] = (done, total)
        self.broker.publish(_topic(job))

    def _ask(self, engine: Engine, job: Job, question: Question) -> dict[str, float]:
        def on_answer(answer: Answer) -> None:
            self._answered(job, answer, None, {})

        asked = engine.ask(
            question, job.method, top=self.ranked, on_token=self._streaming(job), on_answer=on_answer,
            cancelled=self._asked(job),
        )  # fmt: skip
        whole = TargetChoice(Target(0, len(asked.answer.tokens)))
        jobs.save_attribution(self.database, job.run_id, whole, job.method, asked.attribution)
        return dict(asked.timing_ms)

    def _steer(self, engine: Engine, job: Job, question: Question) -> dict[str, float]:
        """The steered answer, its attribution, and the control: each is committed and shown when it is there."""
        marks = [time.perf_counter()]
        steered = engine.steer(question, job.original_ids, job.steering, self._streaming(job), self._asked(job))
        marks.append(time.perf_counter())
        self._answered(job, steered.answer, steered, {"steer": 1000 * (marks[1] - marks[0])})
        if steered.answer.tokens:
            ids = [token.id for token in steered.answer.tokens]
            attribution = engine.attribute(
                question, ids, Target(), job.method, job.steering, self.ranked, self._asked(job)
            )
            whole = TargetChoice(Target(0, len(ids)))
            jobs.save_attribution(self.database, job.run_id, whole, job.method, attribution)
            self.broker.publish(job.run_id)
        marks.append(time.perf_counter())
        control = dataclasses.replace(job.steering, control=jobs.CONTROL_SEED)
        dealt = engine.steer(question, job.original_ids, control, None, self._asked(job))
        jobs.save_control(self.database, job.run_id, dealt, job.original_ids)
        marks.append(time.perf_counter())
        stages = [1000 * (after - before) for before, after in itertools.pairwise(marks)]
        return dict(zip(("steer", "attribute", "control"), stages, strict=True)) | {"total": sum(stages)}

    def _answered(self, job: Job, answer: Answer, steered: Steered | None, timing: dict[str, float]) -> None:
        jobs.save_answer(self.database, job.run_id, answer, steered, timing)
        self._partial.pop(job.run_id, None)
        self.broker.publish(job.run_id)

    def _streaming(self, job: Job) -> Callable[[AnswerToken], None]:
        self._partial[job.run_id] = Partial(())

        def on_token(token: AnswerToken) -> None:
            self._partial[job.run_id] = Partial((*self._partial[job.run_id].tokens, token))
            self.broker.publish(job.run_id, passing=True)

        return on_token

    def _asked(self, job: Job | LongJob) -> Callable[[], bool]:
        """Is this job to stop? An attribution of a finished run stops for nobody but the end of the process."""
        if isinstance(job, LongJob):
            return lambda: self._closing.is_set() or job.id in self._stops
        if job.attribution_id is not None:
            return self._closing.is_set
        return lambda: self._closing.is_set() or job.run_id in self._stops

    def _settle(self, job: Job | LongJob, error: BaseException) -> None:
        """Write down how a job ended that did not come to its end. What cannot be written is remembered, and tried
        again before anything else is begun: a row must not stay `running` while nothing works on it."""
        if not self._written_down(job, error):
            self._unsettled.append((job, error))

    def _settle_rest(self) -> bool:
        """Try again what could not be written down; whether nothing is left of it."""
        self._unsettled = [ended for ended in self._unsettled if not self._written_down(*ended)]
        return not self._unsettled

    def _written_down(self, job: Job | LongJob, error: BaseException) -> bool:
        try:
            if isinstance(error, Cancelled):
                self._stopped(job)
            elif isinstance(error, RequestError):
                self._failed(job, str(error), "")
            elif isinstance(error, NonFinite):
                self._failed(job, str(error), "The model's numbers broke down; try another question.")
            else:
                log.error("%s failed", _name(job), exc_info=error)
                what = f"The engine stopped with {type(error).__name__}: {error}"
                self._failed(job, what, "Ask again; the server's log holds the details.")
        except Exception:
            log.exception("the end of a job could not be written down yet")
            return False
        self.broker.publish_all()
        return True

    def _stopped(self, job: Job | LongJob) -> None:
        if isinstance(job, LongJob):
            longjobs.stopped(self.database, job.id)
        else:
            jobs.stopped(self.database, job)

    def _failed(self, job: Job | LongJob, error: str, remedy: str) -> None:
        if isinstance(job, LongJob):
            longjobs.fail(self.database, job.id, f"{error} {remedy}".strip())
        else:
            jobs.fail(self.database, job, error, remedy)


def written(engine: Engine, question: Question, job: Job) -> tuple[Target, dict[str, tuple[Variant, ...]]]:
    """The job's target with its texts as they are written (the most probable way unless they are meant exactly), and
    the ways in which each can be written, by field."""
    target, ways = job.choice.target, {}
    before = job.original_ids[: target.start]
    if target.text is not None:
        ways["text"] = engine.variants(question, target.text, before)
    if target.against is not None:
        ways["against"] = engine.variants(question, target.against, before)
    if not job.choice.exact:
        text, against = (ways[field][0].text if field in ways else None for field in ("text", "against"))
        target = dataclasses.replace(target, text=text, against=against)
    return target, ways


def _topic(job: Job | LongJob) -> str:
    """Whom this job's changes are told to."""
    return job.topic if isinstance(job, LongJob) else job.run_id


def _name(job: Job | LongJob) -> str:
    return job.id if isinstance(job, LongJob) else job.run_id
