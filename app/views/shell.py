"""What stands around every page, and the pages that list things."""

from collections.abc import Sequence
from urllib.parse import quote

from app import formats, steerings
from app.contexts import (
    AskForm,
    AskPage,
    CheckLine,
    ModelPage,
    RunLine,
    RunsPage,
    SampleView,
    Shell,
)
from app.pictures import Sample
from app.tables import Run, now
from app.uploads import ACCEPT, Limits
from app.views.heat import picture_src
from app.worker import Worker

ENOUGH = 280
"""Characters of an answer or question that a list shows."""


def shell(worker: Worker, queue_length: int, title: str, active: str = "") -> Shell:
    info = worker.info
    messages = {"loading": "The model is loading. Questions can be asked already; they wait in the queue.", "ready": ""}
    return Shell(
        title=title,
        active=active,
        model_name=info.name if info else "no model",
        model_device=info.device if info else "",
        model_holds=info.holds if info else False,
        queue_length=queue_length,
        model_state=worker.state,
        model_message=messages.get(worker.state, f"No model is loaded: {worker.message}"),
    )


def run_line(run: Run) -> RunLine:
    answer = run.answer["text"] if run.answer else run.error
    return RunLine(
        href=f"/runs/{run.id}",
        picture=picture_src(run.picture_hash) or None,
        question=run.question[:ENOUGH],
        answer=answer[:ENOUGH],
        state=run.state,
        when=formats.ago(run.created, now()),
        when_iso=run.created.isoformat(timespec="seconds"),
        steering=steerings.in_words(run.steering),
    )


def ask_form(
    limits: Limits, max_question: int, *, question: str = "", sample: str = "", picture_hash: str = "", error: str = ""
) -> AskForm:
    return AskForm(
        action="/runs",
        question=question[:max_question],
        sample=sample,
        picture_hash=picture_hash,
        picture_src=picture_src(picture_hash),
        error=error,
        limits=str(limits),
        accept=ACCEPT,
        max_question=max_question,
    )


def ask_page(
    around: Shell, form: AskForm, samples: Sequence[Sample], recent: Sequence[Run], *, builtin: bool
) -> AskPage:
    return AskPage(
        shell=around,
        form=form,
        samples=tuple(
            SampleView(s.name, f"/samples/{quote(s.name, safe='')}", s.alt, s.questions, s.name == form.sample)
            for s in samples
        ),
        recent=tuple(run_line(run) for run in recent),
        builtin=builtin,
    )


def runs_page(around: Shell, listed: Sequence[Run], *, per_page: int, before: str) -> RunsPage:
    """`listed` may hold one run more than a page, which says that there are older ones."""
    shown = listed[:per_page]
    older = f"/runs?before={shown[-1].id}" if len(listed) > per_page else ""
    return RunsPage(around, tuple(run_line(run) for run in shown), older, "/runs" if before else "")


def model_page(around: Shell, worker: Worker, concepts: int) -> ModelPage:
    info = worker.info
    facts: list[tuple[str, str]] = []
    if info is not None:
        facts = [
            ("name", info.name),
            ("revision", info.revision),
            ("family", info.family),
            ("parameters", formats.thousands(info.n_parameters)),
            ("layers", str(info.n_layers)),
            ("hidden size", formats.thousands(info.d_model)),
            ("neurons in a layer", formats.thousands(info.d_mlp)),
            ("neurons", formats.thousands(info.n_neurons)),
            ("processor", info.processor),
            ("device and numbers", f"{info.device}, {info.dtype}"),
            ("concepts known", formats.thousands(concepts)),
        ]
    checks = info.checks if info else ()
    return ModelPage(
        shell=around,
        facts=tuple(facts),
        checks=tuple(CheckLine(check.name, check.holds, check.detail) for check in checks),
        holds=info.holds if info else False,
        builtin=info.builtin if info else False,
    )
