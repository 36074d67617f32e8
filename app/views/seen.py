"""When a neuron or a latent is active: its part of a survey, and the survey that waits or runs."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app import figures, formats
from app.arrays import unpack
from app.contexts import FigureView, MeasurementView, SeenPicture, SeenView, Snippet
from app.neuronqueries import Seen
from app.tables import JobRow, now
from app.views import heat
from engine.contract import neurons

AROUND = 40
"""Characters on each side of a snippet's token."""
TEACH = (
    "A survey runs the model over {what} and keeps, of every {noun}, how active it is at image and at text positions "
    "and which pictures it answers to most. {cost}"
)
FEW = 20
ACTIVE = int(np.searchsorted(neurons.EDGES, 0.0)) + 1
"""The first bin of a histogram that holds nothing but activations above zero."""


def view(seen: Seen, action: str, noun: str, *, mine: bool) -> SeenView:
    """`action`: where a survey is asked for. A "latent" is never below zero and mostly zero, so that its histogram is
    of the positions where it is active."""
    work = survey_work(seen, noun, mine=mine)
    result, record = seen.survey, seen.record
    if result is None or record is None:
        blank = FigureView("activations-figure", "Activations", {}, "")
        return SeenView("", (), blank, (), (), (), "", work, action)
    counts = record["bins"].copy()
    caption = "Share of positions by activation; the axis is in powers of two on both sides of zero."
    if noun == "latent":
        counts[:, :ACTIVE] = 0
        least = f"{neurons.EDGES[ACTIVE - 1]:.2g}"
        caption = f"Of the positions where it is above {least}: the share by activation, in powers of two."
    figure = FigureView(
        "activations-figure", "How often each activation occurs, at image and at text positions",
        figures.activations([counts[k].tolist() for k in range(2)], neurons.EDGES.tolist()), caption,
    )  # fmt: skip
    positions = result["positions"]
    facts = [("positions", formats.thousands(positions[0]), formats.thousands(positions[1]))]
    for term, name, shown in (
        ("mean", "mean", formats.plain), ("standard deviation", "deviation", formats.plain),
        ("active" if noun == "latent" else "above 0", "positive", formats.percent),
    ):  # fmt: skip
        pairs = zip(record[name], positions, strict=True)
        image, text = (shown(float(value)) if count else "–" for value, count in pairs)
        facts.append((term, image, text))
    return SeenView(
        of=_surveyed(result),
        facts=tuple(facts),
        figure=figure,
        bins=_bins(counts),
        pictures=_pictures(seen, result, record),
        snippets=_snippets(result, record),
        pending="" if seen.looked is not None else "The patches follow." if mine else
        "Where in the pictures it is active is computed when its model is loaded.",
        work=work,
        action=action,
    )  # fmt: skip


def _surveyed(result: Mapping[str, Any]) -> str:
    scenes, whole = result["scenes"], len(result["cases"])
    parts = [f"{scenes} scenes of the little world"] if scenes else []
    if whole > scenes:
        parts.append(_of_runs(whole - scenes))
    refused = f"; {result['refused']} could not be asked" if result["refused"] else ""
    few = " That is few: ask more pictures, and survey again." if whole < FEW else ""
    return f"Over {' and '.join(parts)}{refused}.{few}"


def _of_runs(count: int) -> str:
    return "the question of one run" if count == 1 else f"{count} questions of runs"


def survey_work(seen: Seen, noun: str, *, mine: bool, at: dt.datetime | None = None) -> MeasurementView:
    """The survey that waits or runs, or the button for one."""
    job, params = seen.work, seen.params
    what = [f"{params['scenes']} scenes of the little world"] if params["scenes"] else []
    if params["runs"]:
        what.append(_of_runs(params["runs"]))
    total = params["scenes"] + params["runs"]
    took = formats.about(total * seen.pace) if seen.pace else "well under a minute with a small model"
    cost = f"That takes {took}."
    few = " There are few pictures yet; the more were asked about, the more it says." if total < FEW else ""
    teach = TEACH.format(what=" and ".join(what), noun=noun, cost=cost) + few
    if not total:
        teach = f"Nothing was asked yet. Ask some pictures; a survey then says to which this {noun} answers most."
    done = seen.survey is not None
    if done:
        news = params["scenes"] + params["runs"] != seen.total
        teach = "More was asked since." if news else ""
    if not mine:
        return MeasurementView("survey", "Survey", "", False, "" if done else "No survey of this model is stored.")
    if job is not None and job.live:
        return MeasurementView(
            "survey", "Survey", job.state, True, teach, progress_of(job, "looking at the first pictures", at),
            cancel="" if job.stop_requested else f"/neurons/jobs/{job.id}/cancel",
            share=job.done / job.total if job.total else 0.0 if job.state == "queued" else None,
        )  # fmt: skip
    failed = job is not None and job.state == "failed"
    button = f"Survey {total} questions" if total and (not done or teach) else ""
    return MeasurementView(
        "survey", "Survey", job.state if job else "", False, teach,
        "The last survey was cancelled." if job is not None and job.state == "cancelled" else "",
        job.error if failed and job is not None else "", button,
    )  # fmt: skip


def progress_of(job: JobRow, first: str, at: dt.datetime | None = None) -> str:
    """How far a job is, in words; `first` while it has not said so."""
    if job.state == "queued":
        return "waits in the queue"
    if job.stop_requested:
        return "stopping after this batch"
    if not job.done or job.started is None:
        return first
    left = ((at or now()) - job.started).total_seconds() * (job.total - job.done) / job.done
    return f"{job.done} of {job.total} · {formats.about(left)} left"


def _bins(counts: Any) -> tuple[tuple[str, str, str], ...]:
    """The histogram as a table, without bins that hold nothing."""
    names, whole = figures.bin_names(neurons.EDGES.tolist()), counts.sum(axis=1).clip(min=1)
    rows = []
    for k, name in enumerate(names):
        if counts[:, k].any():
            image, text = (formats.percent(float(part)) for part in counts[:, k] / whole)
            rows.append((name, image, text))
    return tuple(rows)


def _pictures(seen: Seen, result: Mapping[str, Any], record: Any) -> tuple[SeenPicture, ...]:
    looked = seen.looked or {}
    maps, grids = unpack(seen.maps) if seen.maps is not None else {}, looked.get("grids", [])
    largest = float(np.abs(record["value"][0]).max())
    made = []
    for k, (case, value) in enumerate(zip(record["case"][0].tolist(), record["value"][0].tolist(), strict=True)):
        if case < 0:
            continue
        picture, question, run_id = result["cases"][case]
        size = seen.sizes.get(picture)
        if size is None:
            continue
        grid = grids[k] if k < len(grids) else None
        drawn = heat.cells(maps[f"map{k}"], grid, size, largest) if grid and f"map{k}" in maps else ()
        href = f"/runs/{run_id}" if run_id else ""
        made.append(SeenPicture(heat.picture_src(picture), *size, question, formats.signed(value), href, drawn))
    return tuple(made)


def _snippets(result: Mapping[str, Any], record: Any) -> tuple[Snippet, ...]:
    made: list[Snippet] = []
    columns = (record[name][1].tolist() for name in ("case", "position", "value"))
    for case, position, value in zip(*columns, strict=True):
        if case < 0:
            continue
        before, token, after = snippet(result["tokens"][case], position)
        run_id = result["cases"][case][2]
        made.append(Snippet(before, token, after, formats.signed(value), f"/runs/{run_id}" if run_id else ""))
    return tuple(made)


def snippet(tokens: Sequence[Sequence[Any]], position: int) -> tuple[str, str, str]:
    """(before, the token, after) of an absolute position; folded image positions read as a mark."""
    start = 0
    for k, (text, count) in enumerate(tokens):
        if start <= position < start + count:
            texts = [("▢" if n > 1 else piece) for piece, n in tokens]
            before, after = "".join(texts[:k]), "".join(texts[k + 1 :])
            return before[-AROUND:], str(text), after[:AROUND]
        start += count
    return "", "", ""
