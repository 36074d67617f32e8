"""Durable jobs: the states of runs and attributions, and every change of them.

    queued ──claim──▶ running ──▶ done | failed | cancelled        (cancelled, failed ──ask again──▶ queued)
       └────stop────▶ cancelled

A stop of a running job is a request in its row; the worker honours it within one token and asks the row once more
before it writes `cancelled`: whoever asked for the same run again in the meantime has taken the request back. Jobs
found `running` at start were cut off by a crash and are queued again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from app import queries, records, steerings
from app.database import Database
from app.tables import AttributionRow, NeuronRow, Run, now
from app.targets import TargetChoice, from_json
from engine.contract import PLAIN, Answer, Attribution, ModelInfo, Steered, Steering, Target, Variant, saes

RESULTS = 1
"""Part of every identity. Raise it when a change of the engine gives other numbers for the same question and model
(a corrected formula, another order of steps, another way to generate): what was stored before is not served as new."""
STORED = 2
"""What is kept of an attribution. Raise it when a page shows more of it: what was stored before is computed again."""
SLOW_METHODS = ("ablation", "logprob_increase")
"""Methods that may take seconds: they are taken up when nothing else waits, and `ablation` lets others pass between its
batches."""
CONTROL_SEED = 0
OTHER_MODEL = "This run was asked of another model than the one that is loaded now"
OTHER_MODEL_REMEDY = "Ask the question again, or start the server with that model."
OTHER_LIBRARY = "This steering was made with an earlier concept library, and its concepts may mean other neurons now."
OTHER_LIBRARY_REMEDY = "Steer the original run again."
NO_SAE = "This steering turns latents of an SAE that is not attached to the loaded model"
NO_SAE_REMEDY = "Attach it again, or steer the original run without them."


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What the worker needs of a claimed row. `original_ids`: the parent's answer for a steered run, this run's own
    answer for an attribution, whose target is `choice`. `attribution_id` is None for a run."""

    run_id: str
    attribution_id: int | None
    picture_hash: str | None
    question: str
    max_new_tokens: int
    method: str
    steering: Steering
    original_ids: tuple[int, ...]
    choice: TargetChoice
    parent_id: str | None


def identity(
    picture_hash: str | None,
    question: str,
    model: dict[str, Any],
    max_new_tokens: int,
    method: str,
    steering: dict[str, Any] | None,
) -> str:
    """A hash over all that a run's results depend on. Generation is greedy, so it has one parameter; the library counts
    where a steering names concepts (`model` then holds its revision, see `model_of_steered`)."""
    made_by = [RESULTS, *(model.get(name, "") for name in ("revision", "processor", "dtype")), _device(model)]
    library = model.get("library", "") if steering and steering["concepts"] else ""
    what = [made_by, library, picture_hash, question, max_new_tokens, method, steering]
    return hashlib.sha256(json.dumps(what, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _device(model: Mapping[str, Any]) -> str:
    """The kind of device, without its number."""
    return str(model.get("device", "")).partition(":")[0]


def model_of_steered(session: Session, parent: Run, steering: Mapping[str, Any]) -> dict[str, Any]:
    """What a steered run remembers of its model: with the library's revision where the steering names concepts."""
    assert parent.model is not None, "a run that has an answer has a model"
    if not steering["concepts"]:
        return parent.model
    return {**parent.model, "library": queries.library_revision(session, parent.model_revision)}


def own_method(info: ModelInfo | None) -> str:
    """The method that comes with an answer: `gradient`, where the model can be gone through backwards."""
    return "direct" if info is not None and info.no_gradient else "gradient"


def same_model(run: Run, info: ModelInfo | None) -> bool:
    """Was this run answered (or asked) by what is loaded: the same weights, on the same kind of device, in the same
    numbers? All that is computed about one run comes from one model."""
    if info is None or not run.model:
        return False
    return (run.model_revision, _device(run.model), run.model["dtype"]) == (
        info.revision, info.device.partition(":")[0], info.dtype,
    )  # fmt: skip


def _same_library(session: Session, run: Run) -> bool:
    """Do the concepts of this run's steering mean today what they meant when it was asked?"""
    if not run.steering or not run.steering["concepts"] or not run.model:
        return True
    return bool(run.model.get("library") == queries.library_revision(session, run.model_revision))


def _lost(run: Run, attached: Sequence[saes.SaeInfo]) -> list[str]:
    """The names of the SAEs whose latents this run's steering turns and that are not attached."""
    usable = {sae.id for sae in attached if not sae.fits}
    turned = (run.steering or {}).get("latents", ())
    return list(dict.fromkeys(str(name) for sae, name, *_ in turned if sae not in usable))


def outdated(
    session: Session, run: Run, row: AttributionRow, info: ModelInfo | None, attached: Sequence[saes.SaeInfo]
) -> bool:
    """May this attribution be computed anew? It lacks what is STORED today, or its concepts come from an earlier
    library, or it failed for want of the model, library or SAE that is there now."""
    if not same_model(run, info) or not _same_library(session, run) or _lost(run, attached):
        return False
    if row.state == "failed":
        return row.error.startswith((OTHER_MODEL, OTHER_LIBRARY, NO_SAE))
    if row.state != "done":
        return False
    summary = row.summary or {}
    library = queries.library_revision(session, run.model_revision)
    return summary.get("stored") != STORED or summary.get("library") != library


def unfit(session: Session, run: Run, info: ModelInfo, attached: Sequence[saes.SaeInfo]) -> tuple[str, str]:
    """(error, remedy): why what is loaded cannot work on this run; ("", "") when it can."""
    if not same_model(run, info):
        model = run.model or {}
        kept = (model.get("name"), run.model_revision[:12], model.get("device"), model.get("dtype"))
        return f"{OTHER_MODEL} ({', '.join(map(str, filter(None, kept)))}).", OTHER_MODEL_REMEDY
    if lost := _lost(run, attached):
        return f"{NO_SAE} ({', '.join(lost)}).", NO_SAE_REMEDY
    return ("", "") if _same_library(session, run) else (OTHER_LIBRARY, OTHER_LIBRARY_REMEDY)


def recover(database: Database) -> None:
    """Queue again what a crash cut off; drop what was asked to stop."""
    with database.write() as session:
        running = Run.state == "running"
        session.execute(update(Run).where(running, Run.stop_requested).values(state="cancelled", stop_requested=False))
        session.execute(update(Run).where(running).values(state="queued"))
        session.execute(update(AttributionRow).where(AttributionRow.state == "running").values(state="queued"))


def claim(
    database: Database, info: ModelInfo, attached: Sequence[saes.SaeInfo], told: Callable[[], None], *,
    urgent: bool = False,
) -> Job | None:  # fmt: skip
    """Take the next job: steered runs, attributions, plain runs, attributions by SLOW_METHODS (not with `urgent`); each
    first come, first served. `told` of each row that is settled without a job: it is asked of another model."""
    while True:
        with database.read() as session:  # an idle worker looks often; it must not take the write lock for that
            if _next(session, urgent=urgent) is None:
                return None
        with database.write() as session:
            row = _next(session, urgent=urgent)
            if isinstance(row, AttributionRow):
                job = _claim_attribution(session, row, info, attached)
            else:
                job = _claim_run(session, row, info, attached) if row is not None else None
        if job is not None:
            return job
        told()


def _next(session: Session, *, urgent: bool) -> Run | AttributionRow | None:
    return (
        _next_run(session, steered=True)
        or _next_attribution(session, slow=False)
        or _next_run(session, steered=False)
        or (None if urgent else _next_attribution(session, slow=True))
    )


def waits(database: Database) -> bool:
    """Does an answer or attribution that somebody waits for stand in the queue?"""
    with database.read() as session:
        return _next(session, urgent=True) is not None


def _next_run(session: Session, *, steered: bool) -> Run | None:
    kind = Run.parent_id.is_not(None) if steered else Run.parent_id.is_(None)
    chosen = select(Run).where(Run.state == "queued", kind).order_by(Run.queued, Run.id).limit(1)
    return session.scalars(chosen.with_for_update()).first()


def _next_attribution(session: Session, *, slow: bool) -> AttributionRow | None:
    method = AttributionRow.method.in_(SLOW_METHODS) if slow else AttributionRow.method.not_in(SLOW_METHODS)
    chosen = select(AttributionRow).where(AttributionRow.state == "queued", method)
    ordered = chosen.order_by(AttributionRow.queued, AttributionRow.id).limit(1)
    return session.scalars(ordered.with_for_update()).first()


def _claim_run(session: Session, run: Run, info: ModelInfo, attached: Sequence[saes.SaeInfo]) -> Job | None:
    parent = session.get(Run, run.parent_id) if run.parent_id else None
    if not run.model_revision:
        _bind(session, run, info)
    error, remedy = unfit(session, run, info, attached)
    if error:
        run.state, run.error, run.remedy, run.finished = "failed", error, remedy, now()
        return None
    run.state, run.started = "running", now()
    answered = parent.answer if parent is not None else None
    return job_of(run, None, run.method, TargetChoice(Target()), records.ids(answered) if answered else [])


def _claim_attribution(
    session: Session, row: AttributionRow, info: ModelInfo, attached: Sequence[saes.SaeInfo]
) -> Job | None:
    run = session.get_one(Run, row.run_id)
    error, remedy = unfit(session, run, info, attached)
    if error or run.answer is None:
        row.state, row.error = "failed", f"{error} {remedy}".strip() or "This run has no answer to explain."
        return None
    row.state = "running"
    return job_of(run, row.id, row.method, from_json(row.start, row.end, row.target))


def job_of(
    run: Run, attribution_id: int | None, method: str, choice: TargetChoice, original_ids: list[int] | None = None
) -> Job:
    """`original_ids`: this run's own answer unless another is given."""
    if original_ids is None:
        original_ids = records.ids(run.answer) if run.answer else []
    steering = steerings.from_json(run.steering) if run.steering else PLAIN
    return Job(
        run.id, attribution_id, run.picture_hash, run.question, run.max_new_tokens, method, steering,
        tuple(original_ids), choice, run.parent_id,
    )  # fmt: skip


def _bind(session: Session, run: Run, info: ModelInfo) -> None:
    """Give a run that was asked before this model was known its model and its true identity. Where another row has
    that identity already, this one gets a name of its own."""
    model = records.model_to_json(info)
    run.method = own_method(info)
    true = identity(run.picture_hash, run.question, model, run.max_new_tokens, run.method, None)
    taken = session.scalars(select(Run.id).where(Run.identity == true, Run.id != run.id)).first()
    run.identity = f"again:{run.id}" if taken else true
    run.model, run.model_revision = model, info.revision


def save_answer(
    database: Database, run_id: str, answer: Answer, steered: Steered | None, timing: dict[str, float]
) -> None:
    """Save what is known when the answer is there; `timing` is completed by `finish`."""
    with database.write() as session:
        run = session.get_one(Run, run_id)
        run.timing = timing
        run.answer = records.answer_to_json(answer)
        run.pair = records.pair_to_json(steered) if steered is not None else None


def row_of(run_id: str, choice: TargetChoice, method: str) -> AttributionRow:
    """A new row for a target's attribution."""
    start, end = choice.span
    return AttributionRow(
        run_id=run_id, start=start, end=end, key=choice.key, target=choice.to_json(), method=method
    )  # fmt: skip


def save_attribution(
    database: Database,
    run_id: str,
    choice: TargetChoice,
    method: str,
    attribution: Attribution,
    ways: Mapping[str, tuple[Variant, ...]] | None = None,
) -> None:
    """Insert or replace the attribution of this target by this method, with its ranked neurons. `ways`: those in which
    the target's texts can be written, by field."""
    with database.write() as session:
        row = queries.attribution(session, run_id, choice.key, method, arrays=False)
        if row is None:
            row = row_of(run_id, choice, method)
            row.state = "running"
            session.add(row)
            session.flush()
        row.state, row.error = "done", ""
        model_revision = session.get_one(Run, run_id).model_revision
        neurons = records.fill(row, attribution, queries.library_revision(session, model_revision), ways or {})
        row.summary = {**(row.summary or {}), "stored": STORED}
        session.execute(delete(NeuronRow).where(NeuronRow.attribution_id == row.id))
        columns = [column.key for column in NeuronRow.__mapper__.column_attrs]
        if neurons:
            session.execute(insert(NeuronRow), [{key: getattr(n, key) for key in columns} for n in neurons])


def save_control(database: Database, run_id: str, steered: Steered, original_ids: tuple[int, ...]) -> None:
    """What the control (the same multipliers on random neurons) answered."""
    same = [token.id for token in steered.answer.tokens] == list(original_ids)
    with database.write() as session:
        run = session.get_one(Run, run_id)
        run.control = {"text": steered.answer.text, "same": same, "seed": CONTROL_SEED, "n_neurons": steered.n_neurons}


def finish(database: Database, job: Job, timing: dict[str, float]) -> None:
    with database.write() as session:
        if job.attribution_id is None:
            run = session.get_one(Run, job.run_id)
            run.state, run.timing, run.finished, run.stop_requested = "done", timing, now(), False
            run.error = run.remedy = ""


def fail(database: Database, job: Job, error: str, remedy: str) -> None:
    """Without effect on a row that is not there any more."""
    with database.write() as session:
        if job.attribution_id is not None:
            row = session.get(AttributionRow, job.attribution_id)
            if row is not None:
                row.state, row.error = "failed", f"{error} {remedy}".strip()
        elif (run := session.get(Run, job.run_id)) is not None:
            run.state, run.error, run.remedy, run.finished = "failed", error, remedy, now()
            run.stop_requested = False


def stopped(database: Database, job: Job) -> None:
    """The worker stopped this job: cancelled if that is still wanted, else queued again; nothing if its row is gone."""
    with database.write() as session:
        if job.attribution_id is not None:
            row = session.get(AttributionRow, job.attribution_id)
            if row is not None:
                row.state = "queued"
        elif (run := session.get(Run, job.run_id)) is not None:
            wanted, run.stop_requested = run.stop_requested, False
            run.state = "cancelled" if wanted else "queued"
            run.finished = now() if wanted else None
