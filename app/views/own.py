"""The pages of a person's own concepts."""

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from app import formats, own
from app.contexts import (
    AddRunPage,
    BuildView,
    Choice,
    DeletePage,
    NewConceptPage,
    OwnPage,
    OwnProbeRow,
    ProbesView,
    Shell,
)
from app.own import KIND, MAX_DRAWN, MAX_PROBES, Draft
from app.services import Services
from app.tables import JobRow, OwnConcept, ProbeRow, Run, now
from app.views.concepts import href
from app.views.heat import picture_src
from engine.contract import concepts

SHOWN = 50
"""Probes that the page shows at first."""
MAPS = {"linear": "linear", "s_function": "Zadeh’s S-function", "logistic": "logistic"}
MODES = {"raw": "raw: the mean evidence share", "specific": "specific: less the contrast’s"}


def url(row: OwnConcept) -> str:
    return f"/concepts/own/{row.id}"


def new_page(
    shell: Shell,
    services: Services,
    draft: Draft,
    worlds: Mapping[str, str],
    mine: Sequence[OwnConcept],
    known: Collection[str],
    error: str = "",
) -> NewConceptPage:
    """`known`: names of the concepts that are in the library."""
    grouped: defaultdict[str, list[Choice]] = defaultdict(list)
    for name, kind in sorted(worlds.items()):
        grouped[kind].append(Choice(name, "", name == draft.world, name))
    return NewConceptPage(
        shell=shell, error=error, name=draft.name, kind=draft.kind or KIND, forms=draft.forms,
        source=draft.source if draft.source != "world" or worlds else "file",
        worlds=tuple((kind, tuple(choices)) for kind, choices in sorted(grouped.items())),
        n=draft.n, most_drawn=MAX_DRAWN, limits=limits(services), pictures=str(services.limits),
        mine=tuple(Choice(row.name, url(row), False, _standing(row, known)) for row in mine),
    )  # fmt: skip


def _standing(row: OwnConcept, known: Collection[str]) -> str:
    if row.name in known:
        return "derived" if row.expression else ""
    return "cannot be made" if own.lacking(row, known) else "not built yet"


def limits(services: Services) -> str:
    return f"all files together at most {services.settings.max_upload / 2**20:.0f} MB, {MAX_PROBES} probes a concept"


def page(
    shell: Shell, services: Services, row: OwnConcept, probes: Sequence[ProbeRow], built: Iterable[int],
    build: BuildView, others: Sequence[str], *, every: bool,
) -> OwnPage:  # fmt: skip
    """`others`: own concepts to contrast it with; `every` probe is shown."""
    return OwnPage(
        shell=shell, url=url(row), name=row.name,
        kind="own concept" if row.kind == KIND else f"{row.kind}, own concept",
        forms=", ".join(row.forms) or row.name, typed="\n".join(row.forms),
        expression=row.expression, build=build,
        probes=probes_view(row, probes, built, every=every),
        maps=tuple(Choice(MAPS.get(name, name), "", name == row.map, name) for name in concepts.fuzzy.MAPS),
        quantile=f"{row.quantile:g}",
        modes=tuple(Choice(MODES.get(name, name), "", name == row.mode, name) for name in concepts.evidence.MODES),
        contrasts=tuple(Choice(name, "", name in row.contrast, name) for name in others),
        limits=limits(services),
    )  # fmt: skip


def outcome(probe: ProbeRow, built: Iterable[int]) -> str:
    if probe.refused:
        return "refused"
    if probe.id not in built:
        return "waiting"
    return "right" if probe.correct else "wrong"


def probes_view(row: OwnConcept, found: Sequence[ProbeRow], built: Iterable[int], *, every: bool) -> ProbesView:
    done = set(built)
    probes, lines = [p for p in found if p.question], [p for p in found if not p.question]
    shown = probes if every else probes[:SHOWN]
    told = [outcome(probe, done) for probe in probes]
    counts = [f"{told.count(name)} {words}" for name, words in WORDS.items() if name in told]
    return ProbesView(
        rows=tuple(_row(row, probe, done) for probe in shown),
        summary=f"{len(probes)} {'probe' if len(probes) == 1 else 'probes'}"
        + (f": {', '.join(counts)}" if counts else ""),
        more=f"{url(row)}?rows=all" if len(shown) < len(probes) else "",
        lines=tuple((line.source, line.refused, f"{url(row)}/probes/{line.id}/remove") for line in lines),
    )


WORDS = {
    "right": "answered right", "wrong": "answered otherwise", "refused": "refused", "waiting": "not built yet",
}  # fmt: skip


def _row(row: OwnConcept, probe: ProbeRow, done: set[int]) -> OwnProbeRow:
    start, end = concepts.probes.find_form(probe.answer, probe.says) or (0, 0)
    return OwnProbeRow(
        picture=picture_src(probe.picture_hash), question=probe.question, before=probe.answer[:start],
        says=probe.answer[start:end], after=probe.answer[end:], against=probe.against or "",
        logprob="" if probe.logprob is None else formats.plain(probe.logprob), outcome=outcome(probe, done),
        refused=probe.refused, source=probe.source, remove=f"{url(row)}/probes/{probe.id}/remove",
    )  # fmt: skip


def build_view(
    row: OwnConcept, probes: Sequence[ProbeRow], built: Iterable[int], job: JobRow | None, *, adopting: bool,
    known: bool, place: int, pace: float | None, lacking: Sequence[str] = (), every: bool = False,
    at: dt.datetime | None = None,
) -> BuildView:  # fmt: skip
    """`job`: the newest that built it; `adopting`: a change is on its way into the library; `place` in the queue;
    `known`: it is in the library; `pace`: seconds a probe of earlier builds; `lacking`: what a derived one names and is
    not there; `every` probe is shown."""
    if row.expression:
        return _derived(row, lacking, adopting=adopting, known=known)
    done, real = set(built), [probe for probe in probes if probe.question]
    waiting = sum(outcome(probe, done) == "waiting" for probe in real)
    state = job.state if job is not None else ""
    building = job is not None and job.live
    live = building or adopting
    drawn = job.params.get("n", 0) if job is not None and state != "done" and not real else 0
    left = waiting or drawn
    button = "" if building or not left else "Build" if not done else "Build the rest"
    return BuildView(
        state="running" if live else state, live=live,
        headline=_headline(len(real), waiting, drawn, building=building, adopting=adopting),
        message=_message(job, left, place, pace, at or now()), share=(len(real) - waiting) / max(1, len(real)),
        error=job.error if job is not None and state == "failed" else "", button=button, action=f"{url(row)}/build",
        cancel=f"{url(row)}/cancel" if building and job is not None and not job.stop_requested else "",
        events=f"{url(row)}/events{'?rows=all' if every else ''}" if live else "",
        public=href(row.name) if known else "",
    )  # fmt: skip


def _derived(row: OwnConcept, lacking: Sequence[str], *, adopting: bool, known: bool) -> BuildView:
    lost = bool(lacking) and not known
    names = " and ".join(f"“{name}”" for name in lacking)
    error = f"There is no concept {names} any more. Make it again, or delete this one." if lost else ""
    headline = "It is in the library" if known else "It cannot be made" if lost else "It waits for the model"
    return BuildView(
        state="running" if adopting else "", live=adopting, share=float(known),
        headline="Its memberships are being made" if adopting else headline, message="", error=error, button="",
        action=f"{url(row)}/build", cancel="", events=f"{url(row)}/events" if adopting else "",
        public=href(row.name) if known else "",
    )  # fmt: skip


def _headline(count: int, waiting: int, drawn: int, *, building: bool, adopting: bool) -> str:
    if building:
        return "Drawing its probes" if drawn else f"{count - waiting} of {count} probes built"
    if adopting:
        return "Its memberships are being made anew"
    if drawn:
        return f"{drawn} probes are to be drawn and built"
    if not count:
        return "It has no probes yet"
    if waiting:
        return "Its probe is not built yet" if count == 1 else f"{waiting} of {count} probes are not built yet"
    return "Built: its memberships are in the library"


def _message(job: JobRow | None, left: int, place: int, pace: float | None, at: dt.datetime) -> str:
    estimate = f"{formats.about(left * pace)} for {left}, as probes took before" if pace and left else ""
    if job is not None and job.state == "queued":
        return f"number {place} in the queue" + (f"; {estimate}" if estimate else "")
    if job is not None and job.state == "running":
        return _running(job, estimate, at)
    if not left:
        return ""
    stopped = "Cancelled; what was done is kept. " if job is not None and job.state == "cancelled" else ""
    return stopped + (f"That takes {estimate}." if estimate else FIRST)


FIRST = "How long that takes is measured on the first of them, and then shown."


def _running(job: JobRow, estimate: str, at: dt.datetime) -> str:
    """`done` and `total` count the probes of this job; what is left follows from its own pace."""
    if job.stop_requested:
        return "stopping after this batch"
    if not job.done or job.started is None:
        return estimate or "measuring how long a probe takes"
    left = (at - job.started).total_seconds() * (job.total - job.done) / job.done
    return f"{job.done} of {job.total} done · {formats.about(left)} left"


def delete_page(
    shell: Shell, row: OwnConcept, probes: int, naming: Sequence[str], contrasting: Sequence[str]
) -> DeletePage:
    """`naming` and `contrasting`: the concepts that this one's end is felt in (see app.own)."""
    return DeletePage(shell, url(row), row.name, probes, _listed(naming), _listed(contrasting), bool(row.expression))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"“{name}”" for name in names)


def add_page(
    shell: Shell, run: Run, says: str, mine: Sequence[OwnConcept], *, chosen: str = "", name: str = "", error: str = ""
) -> AddRunPage:
    options = [Choice(row.name, "", row.id == chosen, row.id) for row in mine if not row.expression]
    return AddRunPage(
        shell=shell, error=error, run=f"/runs/{run.id}", action=f"/concepts/own/add/{run.id}",
        picture=picture_src(run.picture_hash), question=run.question, answer=(run.answer or {}).get("text", ""),
        says=says, concepts=(Choice("a new concept", "", not chosen, ""), *options), name=name,
    )  # fmt: skip


def as_json(row: OwnConcept, probes: Sequence[ProbeRow], built: Iterable[int], job: JobRow | None) -> dict[str, Any]:
    """The concept as data: settings, probes and what came of them, lines that could not be taken, how far it is."""
    done = set(built)
    return {
        "id": row.id, "name": row.name, "kind": row.kind, "surface_forms": row.forms, "expression": row.expression,
        "model_revision": row.model_revision, "map": row.map, "quantile": row.quantile, "mode": row.mode,
        "contrast": row.contrast,
        "probes": [
            {
                "id": p.id, "source": p.source, "picture": p.picture_hash, "question": p.question, "answer": p.answer,
                "says": p.says, "against": p.against, "box": p.box, "outcome": outcome(p, done), "refused": p.refused,
                "logprob": p.logprob, "right": p.correct,
            }
            for p in probes if p.question
        ],
        "lines": [{"source": p.source, "reason": p.refused} for p in probes if not p.question],
        "build": {"state": job.state, "done": job.done, "total": job.total, "error": job.error} if job else None,
    }  # fmt: skip
