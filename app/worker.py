"""The thread that owns the engine. It builds it, takes jobs one at a time, and commits each result as it comes.

What lives here and not in the database: the tokens of the answer that is being generated (`partial`), which running
job is asked to stop, and whether the engine is loading, ready or refused. A crash loses nothing else.
"""

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from app import jobs, library, queries
from app.broker import Broker
from app.database import Database
from app.jobs import Job
from app.pictures import Store
from engine.contract import (
    Answer,
    AnswerToken,
    Cancelled,
    Engine,
    ModelInfo,
    ModelRefused,
    NonFinite,
    Question,
    RequestError,
    Steered,
    Target,
)

log = logging.getLogger("sfumato.worker")
EngineFactory = Callable[[], Engine]
RETRY = 0.5
"""Seconds between two attempts to write down how a job ended."""


class Partial(NamedTuple):
    """An answer in the making."""

    tokens: tuple[AnswerToken, ...]


class Worker:
    """`state` is 'loading', 'ready' or 'refused'; `message` says why in the last case; `info` once it is ready."""

    def __init__(
        self, database: Database, store: Store, broker: Broker, factory: EngineFactory, ranked: int = 100
    ) -> None:
        self.database, self.store, self.broker, self.ranked = database, store, broker, ranked
        self.state, self.message = "loading", ""
        self.info: ModelInfo | None = None
        self._factory = factory
        self._partial: dict[str, Partial] = {}
        self._stops: set[str] = set()
        self._unsettled: tuple[Job, BaseException] | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._live, name="sfumato-worker", daemon=True)

    def start(self) -> None:
        jobs.recover(self.database)
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

    def _live(self) -> None:
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
            info = engine.info()
            with self.database.write() as session:
                library.copy(session, info.revision, engine.library())
        except ModelRefused as refused:
            self.state, self.message = "refused", str(refused)
        except BaseException as error:  # whatever a model's files hold must not take the pages down
            log.exception("the model could not be loaded")
            self.state, self.message = "refused", f"The model could not be loaded: {type(error).__name__}: {error}"
        else:
            self.info, self.state = info, "ready"
            self.broker.publish_all()
            return engine
        self.broker.publish_all()
        return None

    def _step(self, engine: Engine) -> bool:
        """Do one job; False when there is none. Never raises."""
        assert self.info is not None
        if self._unsettled is not None:
            self._settle(*self._unsettled)
            return True
        job = None
        try:
            job = jobs.claim(self.database, self.info)
            if job is None:
                return self._more_to_claim()
            self.broker.publish(job.run_id)
            self._do(engine, job)
        except BaseException as error:  # noqa: BLE001 - one bad job must not end the thread that serves all others
            self._settle(job, error)
        finally:
            if job is not None:
                self._partial.pop(job.run_id, None)
                self._stops.discard(job.run_id)
                self.broker.publish_all()  # whoever waits has moved up in the queue
        return True

    def _more_to_claim(self) -> bool:
        """A claim may settle a row without a job (see jobs.OTHER_MODEL): look again while the queue is not empty."""
        self.broker.publish_all()
        with self.database.read() as session:
            return queries.queue_length(session, running=False) > 0

    def _do(self, engine: Engine, job: Job) -> None:
        picture = self.store.load(job.picture_hash) if job.picture_hash else None
        question = Question(picture, job.question, job.max_new_tokens)
        began = time.perf_counter()
        if job.attribution_id is not None:
            attribution = engine.attribute(
                question, job.original_ids, job.target, job.method, job.steering, self.ranked, self._asked(job)
            )
            jobs.save_attribution(self.database, job.run_id, _span(job), job.method, attribution)
            timing = {"attribute": 1000 * (time.perf_counter() - began)}
        elif job.parent_id is not None:
            timing = self._steer(engine, job, question)
        else:
            timing = self._ask(engine, job, question)
        jobs.finish(self.database, job, timing)

    def _ask(self, engine: Engine, job: Job, question: Question) -> dict[str, float]:
        def on_answer(answer: Answer) -> None:
            self._answered(job, answer, None, {})

        asked = engine.ask(
            question, job.method, top=self.ranked, on_token=self._streaming(job), on_answer=on_answer,
            cancelled=self._asked(job),
        )  # fmt: skip
        whole = (0, len(asked.answer.tokens))
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
            jobs.save_attribution(self.database, job.run_id, (0, len(ids)), job.method, attribution)
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
            self.broker.publish(job.run_id)

        return on_token

    def _asked(self, job: Job) -> Callable[[], bool]:
        """Is this job to stop? An attribution of a finished run stops for nobody but the end of the process."""
        if job.attribution_id is not None:
            return self._closing.is_set
        return lambda: self._closing.is_set() or job.run_id in self._stops

    def _settle(self, job: Job | None, error: BaseException) -> None:
        """Write down how a job ended that did not come to its end. What cannot be written is remembered, and tried
        again before the next job: a row must not stay `running` while the worker does something else."""
        self._unsettled = None
        try:
            if job is None:
                log.error("no job could be claimed", exc_info=error)
                self._closing.wait(1)
            elif isinstance(error, Cancelled):
                jobs.stopped(self.database, job)
            elif isinstance(error, RequestError):
                jobs.fail(self.database, job, str(error), "")
            elif isinstance(error, NonFinite):
                jobs.fail(self.database, job, str(error), "The model's numbers broke down; try another question.")
            else:
                log.error("run %s failed", job.run_id, exc_info=error)
                what = f"The engine stopped with {type(error).__name__}: {error}"
                jobs.fail(self.database, job, what, "Ask again; the server's log holds the details.")
        except Exception:
            log.exception("the end of a job could not be written down yet")
            self._unsettled = (job, error) if job is not None else None
            self._closing.wait(RETRY)
        else:
            self.broker.publish_all()


def _span(job: Job) -> tuple[int, int]:
    return job.target.start, len(job.original_ids) if job.target.end is None else job.target.end
