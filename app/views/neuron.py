"""The neuron page: what it belongs to, what it says, when it is active, and what people wrote about it."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app import exports, figures, formats
from app.arrays import unpack
from app.contexts import (
    AlikeNeuron,
    BelongsTo,
    Choice,
    FigureView,
    LensView,
    MeasurementView,
    NeuronPage,
    RankedRun,
    SeenPicture,
    SeenView,
    Shell,
    Snippet,
    TokenBar,
)
from app.neuronqueries import Gathered, Place
from app.tables import JobRow, now
from app.views import heat
from app.views.neurons import image_share
from app.views.strip import visible
from engine.contract import neurons

SHOWN = 12
"""Memberships that are shown; the others are folded."""
AROUND = 40
"""Characters on each side of a snippet's token."""
TEACH = (
    "A survey runs the model over {what} and keeps, of every neuron, how active it is at image and at text positions "
    "and which pictures it answers to most. {cost}"
)
FEW = 20


def page(around: Shell, place: Place, found: Gathered, loaded_revision: str, limits: tuple[int, int]) -> NeuronPage:
    mine = place.revision == loaded_revision
    belongs = tuple(
        BelongsTo(name, kind, f"/concepts/{exports.quoted(name)}", mu, formats.membership(mu), weak)
        for name, kind, mu, weak in found.memberships
    )
    lens, seen = _lens(place, found, mine=mine), _seen(place, found, mine=mine)
    waits = found.job is not None and found.job.live
    return NeuronPage(
        shell=around,
        neuron=place.neuron,
        about=f"layer {place.layer}, index {place.index}" + (f" · {found.model}" if found.model else ""),
        here=place.path,
        other="" if mine else "This neuron belongs to a model that is not loaded now; what is stored of it is shown.",
        moves=_moves(place, found.shape),
        label=found.note.label if found.note else "",
        note=found.note.note if found.note else "",
        limits=limits,
        memberships=belongs[:SHOWN],
        folded=belongs[SHOWN:],
        concepts=f"{len(belongs)} of {found.n_concepts} concepts",
        lens=lens,
        seen=seen,
        live=mine and (waits or seen.work.live),
        runs=tuple(_run(*entry) for entry in found.runs),
    )


def _moves(place: Place, shape: tuple[int, int] | None) -> tuple[Choice, ...]:
    layers, indices = shape or (10**6, 10**7)
    steps = (
        ("← index", place.layer, place.index - 1), ("index →", place.layer, place.index + 1),
        ("↓ layer", place.layer - 1, place.index), ("layer ↑", place.layer + 1, place.index),
    )  # fmt: skip
    return tuple(
        Choice(
            label,
            f"/neurons/{place.revision}/text.{layer}.{index}" if 0 <= layer < layers and 0 <= index < indices else "",
            selected=False,
            value=f"text.{layer}.{index}",
        )
        for label, layer, index in steps
    )


def _lens(place: Place, found: Gathered, *, mine: bool) -> LensView:
    row, result = found.job, found.looked
    if result is None:
        message = "It is computed when the model that the neuron belongs to is loaded."
        if mine:
            message = "Reading the weights …" if row is None or row.live else f"It was not computed. {row.error}"
        again = f"{place.path}/look" if mine and row is not None and not row.live else ""
        return LensView(found.waiting or message, again, (), (), (), ())
    largest = max((abs(token["value"]) for side in ("promoted", "suppressed") for token in result[side]), default=0.0)
    sides = [
        tuple(
            TokenBar(visible(token["text"]), formats.signed(token["value"]), abs(token["value"]) / (largest or 1.0))
            for token in result[side]
        )
        for side in ("promoted", "suppressed")
    ]
    alike = tuple(
        AlikeNeuron(
            neuron, f"/neurons/{place.revision}/{neuron}", f"{cosine:.2f}".replace("-", "−"), max(0.0, cosine),
            found.labels.get(neuron, ""),
        )
        for neuron, cosine in result["alike"]
    )  # fmt: skip
    return LensView("", "", sides[0], sides[1], alike, tuple(result["notes"]))


def _seen(place: Place, found: Gathered, *, mine: bool) -> SeenView:
    work = survey_work(found, mine=mine)
    result, record = found.survey, found.record
    if result is None or record is None:
        blank = FigureView("activations-figure", "Activations", {}, "")
        return SeenView("", (), blank, (), (), (), "", work, f"/neurons/{place.revision}/survey")
    figure = FigureView(
        "activations-figure", "How often each activation occurs, at image and at text positions",
        figures.activations([record["bins"][k].tolist() for k in range(2)], neurons.EDGES.tolist()),
        "Share of positions by activation; the axis is in powers of two on both sides of zero.",
    )  # fmt: skip
    positions = result["positions"]
    facts = [("positions", formats.thousands(positions[0]), formats.thousands(positions[1]))]
    for term, name, shown in (
        ("mean", "mean", formats.plain), ("standard deviation", "deviation", formats.plain),
        ("above 0", "positive", formats.percent),
    ):  # fmt: skip
        pairs = zip(record[name], positions, strict=True)
        image, text = (shown(float(value)) if count else "–" for value, count in pairs)
        facts.append((term, image, text))
    return SeenView(
        of=_surveyed(result),
        facts=tuple(facts),
        figure=figure,
        bins=_bins(record),
        pictures=_pictures(found, result, record),
        snippets=_snippets(result, record),
        pending="" if found.looked is not None else "The patches follow." if mine else
        "Where in the pictures it is active is computed when its model is loaded.",
        work=work,
        action=f"/neurons/{place.revision}/survey",
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


def survey_work(found: Gathered, *, mine: bool, at: dt.datetime | None = None) -> MeasurementView:
    """The survey that waits or runs, or the button for one."""
    job, params = found.work, found.params
    what = [f"{params['scenes']} scenes of the little world"] if params["scenes"] else []
    if params["runs"]:
        what.append(_of_runs(params["runs"]))
    total = params["scenes"] + params["runs"]
    took = formats.about(total * found.pace) if found.pace else "well under a minute with a small model"
    cost = f"That takes {took}."
    few = " There are few pictures yet; the more were asked about, the more it says." if total < FEW else ""
    teach = TEACH.format(what=" and ".join(what), cost=cost) + few
    if not total:
        teach = "Nothing was asked yet. Ask some pictures; a survey then says to which this neuron answers most."
    done = found.survey is not None
    if done:
        news = params["scenes"] + params["runs"] != found.survey_total
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


def _bins(record: Any) -> tuple[tuple[str, str, str], ...]:
    """The histogram as a table, without bins that hold nothing."""
    names, whole = figures.bin_names(neurons.EDGES.tolist()), record["bins"].sum(axis=1).clip(min=1)
    rows = []
    for k, name in enumerate(names):
        counts = record["bins"][:, k]
        if counts.any():
            image, text = (formats.percent(float(part)) for part in counts / whole)
            rows.append((name, image, text))
    return tuple(rows)


def _pictures(found: Gathered, result: Mapping[str, Any], record: Any) -> tuple[SeenPicture, ...]:
    looked = found.looked or {}
    maps, grids = unpack(found.maps) if found.maps is not None else {}, looked.get("grids", [])
    largest = float(np.abs(record["value"][0]).max())
    made = []
    for k, (case, value) in enumerate(zip(record["case"][0].tolist(), record["value"][0].tolist(), strict=True)):
        if case < 0:
            continue
        picture, question, run_id = result["cases"][case]
        size = found.sizes.get(picture)
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


def _run(run: Any, picture: Any, row: Any, attribution: Any) -> RankedRun:
    return RankedRun(
        href=f"/runs/{run.id}",
        picture=heat.picture_src(picture.hash if picture else None),
        question=run.question,
        answer=run.answer["text"] if run.answer else "",
        rank=row.rank,
        score=formats.signed(row.score),
        polarity=formats.polarity(row.score),
        method=attribution.method,
        image=formats.percent(image_share(row)),
    )
