"""The pages of experiments with latents: the list with its form and the plan of one, and one as it runs and as a
report."""

import dataclasses
import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from app import experiments, formats, latentjobs
from app.contexts import (
    Choice,
    EvaluationLine,
    ExperimentForm,
    ExperimentPage,
    ExperimentsPage,
    ExperimentView,
    LatentField,
    Shell,
)
from app.experiments import Draft, Known, Plan
from app.questionsets import BUILTIN
from app.services import Services
from app.state import address
from app.tables import JobRow, QuestionSet, now
from app.views import evaluated, evaluation, experimented, latents
from engine.contract import saes

HOME, PLAN = "/experiments", "/experiments/plan"
ITEMS = (
    "Each item is a question with its right answer. Only items that the model answers rightly with the SAE in place go "
    "on; one backward run ranks all latents by their influence on the answer."
)
MASKING = (
    "Masking: K latents are zeroed wherever the SAE stands, and the question is answered again; the K of largest "
    "influence, of largest mean activation, of least influence, and random active ones as the control."
)
SWAPPING = (
    "Swapping: of two items with different right answers — where there are any, one question about two pictures — the "
    "first gets the second’s K latents, at their largest activation there, in place of its own. Does its answer leave, "
    "and does it become the other’s?"
)
AGREEMENT = "Agreement: both rankings are compared with what the answer loses when each active latent alone is zeroed."
HONEST = (
    "Differences are counted item by item, with 95 % intervals and McNemar’s exact test; where the figures show none, "
    "or the opposite of what is hoped for, the report says so."
)
TEACH = (ITEMS, MASKING, SWAPPING, AGREEMENT, HONEST)
NO_SAE = "No SAE stands on the loaded model, so there are no latents to mask."
STOP = "It can be stopped, and gone on with."
WITH_PICTURES = ("vqa", "gqa", "pope")
"""Formats whose questions are about pictures."""


def set_name(row: QuestionSet | None) -> str:
    return "The little world" if row is None else row.name


def form(draft: Draft, usable: tuple[saes.SaeInfo, ...], sets: Sequence[QuestionSet]) -> ExperimentForm:
    """What was typed stays; a choice that does not exist is the first one."""
    chosen = next((sae for sae in usable if draft.sae in (sae.id, sae.name)), usable[0] if usable else None)
    variant = {
        part: known[said if (said := draft.variant.get(latentjobs.field_of(part), "")) in known else next(iter(known))]
        for part, known in latentjobs.FIELDS.items()
    }
    named = [(BUILTIN, f"{set_name(None)} (built in)"), *((row.hash, set_label(row)) for row in sets)]
    options = tuple(Choice(name, "", selected=value == draft.set, value=value) for value, name in named)
    given = {"settings": variant, **({"sae": chosen.id} if chosen else {})}
    return ExperimentForm(
        action=PLAN,
        fields=tuple(
            dataclasses.replace(field, label=field.label[0].upper() + field.label[1:])
            for field in (LatentField("set", "questions", options), *latents.fields(usable, given))
        ),
        limit=draft.limit or str(experiments.LIMIT),
        seed=draft.seed or "0",
        most=experiments.MOST,
    )


def set_label(row: QuestionSet) -> str:
    return f"{row.name} ({evaluation.about_set(row)})"


def index(
    around: Shell,
    services: Services,
    draft: Draft,
    jobs: Sequence[JobRow],
    sets: Sequence[QuestionSet],
    plan: Plan | None = None,
    error: str = "",
) -> ExperimentsPage:
    """`plan` of a draft that was sent."""
    usable = tuple(sae for sae in services.worker.saes if not sae.fits)
    names = {row.hash: row for row in sets}
    row = names.get(draft.set)
    facts: tuple[tuple[str, str], ...] = ()
    if plan is not None:
        facts = (("items", formats.thousands(plan.items)), ("pairs to swap, at most", formats.thousands(plan.pairs)))
    bad = tuple((int(line), str(reason)) for line, reason in (row.bad if row is not None else ()))
    rest = row.left_out - len(bad) if row is not None else 0
    return ExperimentsPage(
        shell=around,
        teach=TEACH,
        form=form(draft, usable, sets),
        empty="" if usable else around.model_message or NO_SAE,
        error=error,
        facts=facts,
        estimate=estimate(plan) if plan is not None else "",
        start=HOME if plan is not None else "",
        hidden=tuple(pairs(draft)),
        shapes=evaluation.SHAPES,
        limits=evaluation.limits(services, "sfumato sae experiment"),
        lines=tuple(line(job, names.get(job.params["set"])) for job in jobs),
        bad=bad,
        more=f"… and {rest} more" if rest > 0 else "",
    )


def pairs(draft: Draft) -> list[tuple[str, str]]:
    """A draft as fields of a form."""
    given = [(name, getattr(draft, name)) for name in ("set", "sae", "limit", "seed") if getattr(draft, name)]
    return [*given, *draft.variant.items()]


def of_set(set_hash: str) -> str:
    """The address of the plan of a set."""
    return address(PLAN, [("set", set_hash)])


def estimate(plan: Plan) -> str:
    if plan.seconds is None:
        return f"How long that takes is measured on the first items, and then shown. {STOP}"
    time = evaluated.wait(plan.seconds)
    return f"{time[0].upper()}{time[1:]} on this machine, at the pace of the newest experiment. {STOP}"


def line(job: JobRow, row: QuestionSet | None) -> EvaluationLine:
    said, polarity = "", ""
    if job.state == "done" and job.result:
        report = saes.experiment_from_json(job.result["report"])
        by = {(one.method, one.k): one.em.mean for one in report.masked}
        kept = (f"{100 * by[method, '10']:.0f}\u00a0%" for method in ("influence", "activation"))
        said, polarity = f"EM at K = 10: {' against '.join(kept)}", experimented.polarity(report)
    elif job.total and job.state != "done":
        said = f"{formats.percent(job.done / job.total)} done"
    return EvaluationLine(
        href=f"{HOME}/{job.id}",
        what=_title(job.params, row),
        about=_about(job.params),
        state=job.state,
        gain=said,
        polarity=polarity,
        when=formats.ago(job.queued, now()),
        when_iso=job.queued.isoformat(timespec="seconds"),
    )


def _title(params: Mapping[str, Any], row: QuestionSet | None) -> str:
    return (
        f"{params['name']} · {set_name(row) if row is not None or params['set'] == BUILTIN else 'a set that is gone'}"
    )


def _about(params: Mapping[str, Any]) -> str:
    return f"at most {params['limit']} items, seed {params['seed']} · {latents.in_words(params['settings'])}"


def page(around: Shell, found: Known, model: str, at: dt.datetime | None = None) -> ExperimentPage:
    params = found.job.params
    return ExperimentPage(around, _title(params, found.row), _about(params), view(found, model, at))


def view(found: Known, model: str, at: dt.datetime | None = None) -> ExperimentView:
    job, time = found.job, at or now()
    url = f"{HOME}/{job.id}"
    stopped = job.state in ("failed", "cancelled")
    report = None
    if job.state == "done" and job.result:
        report = saes.experiment_from_json(job.result["report"])
    said = saes.conclusions(report) if report is not None else ()
    return ExperimentView(
        live=job.live,
        state=job.state,
        events=f"{url}/events" if job.live else "",
        headline=evaluation.headline(job, found.place, "item") if report is None else said[0],
        polarity="" if report is None else experimented.polarity(report),
        detail=_detail(found, time) if report is None else _counted(report),
        share=(job.done / job.total if job.total else 0.0) if job.live or stopped else None,
        cancel=f"{url}/cancel" if job.live and not job.stop_requested else "",
        again=f"{url}/again" if stopped else "",
        error=job.error if job.state == "failed" else "",
        said=said[1:],
        parts=experimented.parts(report) if report is not None else (),
        protocol=TEACH,
        facts=_facts(found, report),
        command=command(job.params, found.row, model),
        take=(Choice("CSV", f"{url}.csv", False), Choice("JSON", f"{url}.json", False)) if report is not None else (),
        bad=report.refused if report is not None else (),
    )


def _counted(report: saes.Report) -> str:
    return (
        f"{report.right} of {report.asked} items are answered rightly with the SAE in place; "
        f"{report.active.mean:.0f} latents are active in one, and the SAE explains "
        f"{formats.percent(report.explained_variance.mean)}."
    )


def _detail(found: Known, at: dt.datetime) -> str:
    job = found.job
    count = f"{job.done:,} of at most {job.total:,} steps" if job.total else ""
    if not job.live:
        kept = f"{found.parts} finished steps are kept" if found.parts else "nothing was finished"
        return f"{count}; {kept}." if count else f"{kept[0].upper()}{kept[1:]}."
    if job.state == "queued" or not job.done or job.started is None:
        return f"{found.parts} finished steps are kept." if found.parts else "Nothing is answered yet."
    left = (at - job.started).total_seconds() * (job.total - job.done) / job.done
    stage = "swapping latents" if job.done >= job.params["limit"] else "masking latents"
    return f"{count} · {evaluated.wait(left)} left · {stage}"


def _facts(found: Known, report: saes.Report | None) -> tuple[tuple[str, str], ...]:
    params = found.job.params
    facts = [
        ("questions", set_name(found.row)),
        ("items", f"at most {params['limit']}"),
        ("seed", str(params["seed"])),
        ("SAE", params["name"]),
        *((latents.LABELS[part][0], words) for part, words in _variant(params["settings"])),
        ("compared with exact ablation", f"the first {params['ablated']} items"),
        ("pairs that swap", f"at most {params['swapped']}"),
        ("model revision", params["model_revision"][:16]),
        *((f"file {name}", sha[:16]) for name, sha in (found.row.files if found.row is not None else ())),
    ]
    if report is not None:
        facts.append(("site", latents.place_of({"site": report.sae.site, "layer": report.sae.layer})))
    return tuple(facts)


def _variant(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (part, latents.LABELS[part][1][next(said for said, means in known.items() if means == settings[part])])
        for part, known in latentjobs.FIELDS.items()
    ]


def command(params: Mapping[str, Any], row: QuestionSet | None, model: str) -> str:
    """What reproduces an experiment on the command line, where the set's files lie there."""
    settings = params["settings"]
    words = ["sfumato", "sae", "experiment", "--sae", params["name"]]
    if row is not None:
        files = [name for name, _ in row.files]
        words += ["--file", files[0], *(("--annotations", files[1]) if len(files) > 1 else ())]
        words += ["--pictures", "PICTURES"] if row.format in WITH_PICTURES else []
    words += ["--limit", str(params["limit"]), "--seed", str(params["seed"])]
    words += ["--ablated", str(params["ablated"]), "--swapped", str(params["swapped"])]
    default = saes.Settings()
    for part in ("of", "quantity", "positive"):
        if settings[part] != getattr(default, part):
            words += [f"--{part}", settings[part]]
    words += [flag for flag, on in (("--drop-error", not settings["keep_error"]), ("--bos", settings["bos"])) if on]
    if model != BUILTIN:
        words += ["--model", model]
    return shlex.join(words)
