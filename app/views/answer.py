"""The status line and the answer, token by token."""

import math

from app import formats, jobs
from app.contexts import AlternativeView, AnswerView, Choice, StatusView, TokenView
from app.state import address
from app.views import target
from app.views.load import Loaded
from app.worker import Worker
from engine.contract import MAPPED, METHODS, AnswerToken, ModelInfo

METHOD_LABELS = {"logprob_increase": "log-prob increase"}


def status(loaded: Loaded, worker: Worker) -> StatusView:
    run = loaded.run
    pending = not run.live and loaded.attribution is not None and loaded.attribution.live
    failed = loaded.attribution is not None and loaded.attribution.state == "failed"
    timings = [(stage, formats.milliseconds(ms)) for stage, ms in (run.timing or {}).items() if ms >= 0.5]
    return StatusView(
        state=run.state,
        live=run.live or pending,
        queue_position=loaded.position,
        message=_message(loaded, worker, pending=pending),
        error=run.error or (loaded.attribution.error if failed and loaded.attribution else ""),
        remedy=run.remedy,
        cancel=f"/runs/{run.id}/cancel" if run.live else "",
        again=f"/runs/{run.id}/again" if run.state in ("failed", "cancelled") else "",
        timings=tuple(timings) if run.state == "done" else (),
        notes=_notes(loaded, worker),
    )


def _message(loaded: Loaded, worker: Worker, *, pending: bool) -> str:
    run = loaded.run
    if (run.live or pending) and worker.state == "loading":
        return "loading the model"
    if (run.live or pending) and worker.state == "refused":
        return f"nothing can be computed: {worker.message}"
    if pending:
        return f"attributing “{loaded.target_text}”{_so_far(loaded, worker)}"
    if run.state == "queued" and worker.slow:
        return "slow work lets it pass"
    if run.state == "running":
        if run.answer is None:
            return "answering"
        return "finding its neurons" if loaded.attribution is None else "asking the random control"
    return ""


def _so_far(loaded: Loaded, worker: Worker) -> str:
    """How far a slow attribution is, once that is known."""
    steps = worker.progress(loaded.attribution.id) if loaded.attribution is not None else None
    return f": {steps[0]} of {steps[1]} ablated runs" if steps else ""


def _notes(loaded: Loaded, worker: Worker) -> tuple[str, ...]:
    run, notes = loaded.run, []
    if worker.info is not None and run.model and not jobs.same_model(run, worker.info):
        made_by = ", ".join((run.model["name"], run.model_revision[:12], run.model["device"], run.model["dtype"]))
        notes.append(f"Answered by {made_by}; another model is loaded now.")
    if loaded.outdated:
        notes.append("Similarities and heat maps of concepts were made with an earlier concept library.")
    return tuple(notes)


def answer(loaded: Loaded, partial: tuple[AnswerToken, ...] | None, info: ModelInfo | None = None) -> AnswerView:
    """`info`: of the loaded model, which need not be able to do everything."""
    run = loaded.run
    streaming = run.live and run.answer is None
    tokens = (partial or ()) if streaming else loaded.tokens
    return AnswerView(
        question=run.question,
        streaming=streaming,
        tokens=tuple(_token(loaded, i, token) for i, token in enumerate(tokens)),
        text="".join(token.text for token in tokens).strip() if streaming else (run.answer or {}).get("text", ""),
        stopped_by_length=bool(run.answer) and run.answer["stopped"] == "length" if run.answer else False,
        target=target.view(loaded),
        methods=tuple(_method(loaded, name, info) for name in METHODS),
        add="" if streaming or run.steering or not loaded.tokens else _add(loaded),
    )


def _add(loaded: Loaded) -> str:
    """What is explained is proposed as the part that says the concept."""
    start, end = loaded.span or (0, 0)
    asked = [("span", f"{start}-{end}")] if start < end else []
    return address(f"/concepts/own/add/{loaded.run.id}", asked)


def _method(loaded: Loaded, name: str, info: ModelInfo | None) -> Choice:
    state = loaded.state
    off = info.no_gradient if info is not None and name in MAPPED else ""
    if name == "logprob_increase" and state.quantity == "logit":
        off = "It explains log-probabilities, and the target is a logit."
    href = state.url(loaded.run.id, method=name)
    return Choice(METHOD_LABELS.get(name, name), href, state.method == name, name, off)


def _token(loaded: Loaded, position: int, token: AnswerToken) -> TokenView:
    state, run_id = loaded.state, loaded.run.id
    start, end = loaded.span or (0, 0)
    chosen = state.span or (position, position + 1)
    probability = math.exp(min(0.0, token.logprob))
    return TokenView(
        position=position,
        text=token.text,
        id=token.id,
        probability=probability,
        percent=formats.percent(probability),
        logprob=formats.plain(token.logprob),
        in_target=start <= position < end,
        href=state.url(run_id, **target.OWN, span=(position, position + 1)),
        extend=state.url(run_id, **target.OWN, span=(min(chosen[0], position), max(chosen[1], position + 1))),
        alternatives=alternatives(token),
    )


def alternatives(token: AnswerToken) -> tuple[AlternativeView, ...]:
    made = []
    for other in token.alternatives:
        probability = math.exp(min(0.0, other.logprob))
        made.append(AlternativeView(other.text, probability, formats.percent(probability)))
    return tuple(made)
