"""The pages of a training: what one would do, and one as it runs and when it is done."""

import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from app import figures_training, formats
from app.contexts import FigureView, Shell, TrainForm, TrainingPage, TrainingView, TrainPlanPage
from app.saejobs import Since
from app.saeplans import Draft, Plan
from app.tables import JobRow, now
from app.views import latents, saes
from engine.contract import saes as contract

COLUMNS = ("step", "loss", "explained variance", "L0", "dead share")
ROWS = 12
"""Lines of the table, spread over the steps; the last step is always one of them."""
STOP = "It can be stopped, and gone on with."
CAPTION = (
    "Explained variance (teal), the loss (rust, dashed) and the share of dead latents (dotted) of the batches that are "
    "learnt from, each a mean over some steps; L0 (gold) = latents active at a position, on the right axis."
)


def plan(around: Shell, form: TrainForm, draft: Draft, planned: Plan | None, error: str = "") -> TrainPlanPage:
    """`planned` is None where `error` says why."""
    facts: tuple[tuple[str, str], ...] = ()
    if planned is not None:
        facts = (
            ("positions learnt from", formats.thousands(planned.positions)),
            ("pictures looked at, beside the first", formats.thousands(planned.pictures)),
            ("memory beside the model", f"{planned.megabytes:,.0f} MB"),
            ("its file", f"{planned.size:.1f} MB" if planned.size >= 0.1 else f"{planned.size * 1024:.0f} kB"),
        )
    return TrainPlanPage(
        shell=around,
        form=form,
        error=error,
        estimate=estimate(planned) if planned is not None else "",
        facts=facts,
        start=f"{saes.HOME}/train" if planned is not None else "",
        hidden=tuple((name, value) for name in Draft.__slots__ if (value := getattr(draft, name))),
    )


def estimate(planned: Plan) -> str:
    if planned.seconds is None:
        return f"How long that takes is measured on the first steps, and then shown. {STOP}"
    time = wait(planned.seconds)
    return f"{time[0].upper()}{time[1:]}, {planned.basis}. {STOP}"


def wait(seconds: float) -> str:
    return formats.about(seconds) if seconds < 6000 else f"about {seconds / 3600:.1f} hours"


def page(
    around: Shell,
    job: JobRow,
    points: Sequence[Sequence[float]],
    gathered: int,
    since: Since | None,
    place: int,
    model: str,
    *,
    kept: bool,
) -> TrainingPage:
    recipe = job.params["recipe"]
    about = f"{latents.place_of(recipe)} · {saes.recipe_words(recipe)}"
    return TrainingPage(around, saes.title(recipe), about, view(job, points, gathered, since, place, model, kept=kept))


def view(
    job: JobRow,
    points: Sequence[Sequence[float]],
    gathered: int,
    since: Since | None,
    place: int,
    model: str,
    at: dt.datetime | None = None,
    *,
    kept: bool,
) -> TrainingView:
    """`points` and `gathered` as far as they are there; `since` this run of it goes on; `place` of a waiting one
    in the queue; `kept`: there is a checkpoint to go on from."""
    recipe, result = job.params["recipe"], job.result or {}
    url, stopped, steps = f"{saes.HOME}/train/{job.id}", job.state in ("failed", "cancelled"), int(recipe["steps"])
    points = result.get("points", points) if job.state == "done" else points
    figure = None
    if points:
        drawn = figures_training.curve(points, steps)
        figure = FigureView("training-curve", "The training’s curve", drawn, CAPTION)
    done = int(points[-1][0]) if points else 0
    return TrainingView(
        live=job.live,
        state=job.state,
        events=f"{url}/events" if job.live else "",
        headline=_headline(job, place, gathered, result),
        detail=_detail(job, recipe, points, gathered, since, at or now(), kept=kept),
        share=max(job.done, done) / steps if job.state != "done" else None,
        cancel=f"{url}/cancel" if job.live and not job.stop_requested else "",
        again=f"{url}/again" if stopped else "",
        anew=f"{url}/anew" if stopped and kept else "",
        error=job.error if job.state == "failed" else "",
        figure=figure,
        columns=COLUMNS,
        rows=tuple(_row(point) for point in _spread(points)),
        card=saes.card(contract.SaeInfo(**result["sae"]), result) if job.state == "done" and result else None,
        home=saes.HOME,
        facts=_facts(recipe, job.params["folder"]),
        command=command(recipe, job.params["folder"], model),
    )


def _headline(job: JobRow, place: int, gathered: int, result: Mapping[str, Any]) -> str:
    if job.state == "queued":
        return f"Number {max(place, 1)} in the queue"
    if job.state == "running":
        gathering = "Gathering the first positions" if not job.done else "Training"
        return "Stopping after this step" if job.stop_requested else gathering
    if job.state == "done" and result:
        explained = result["sae"]["card"].get("explained_variance")
        measured = f": it explains {formats.percent(explained)} of the variance on held-out pictures"
        return f"{result['sae']['name']} is trained{measured if explained is not None else ''}"
    return "It failed" if job.state == "failed" else "It was stopped"


def _detail(
    job: JobRow,
    recipe: Mapping[str, Any],
    points: Sequence[Sequence[float]],
    gathered: int,
    since: Since | None,
    at: dt.datetime,
    *,
    kept: bool,
) -> str:
    steps = formats.thousands(recipe["steps"])
    count = f"step {formats.thousands(max(job.done, int(points[-1][0]) if points else 0))} of {steps}"
    if job.state == "done":
        return f"{steps} steps; it is attached, and will be after a restart."
    if not job.live:
        return f"{count}; {'it can go on from there' if kept else 'nothing of it is kept'}."
    if job.state == "running" and not job.done:
        return f"{formats.thousands(gathered)} of {formats.thousands(recipe['kept'])} positions"
    if job.state == "queued" or since is None:
        return count
    left = (at.timestamp() - since[1]) * (recipe["steps"] - job.done) / max(job.done - since[0], 1)
    return f"{count} · {wait(left)} left"


def _spread(points: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    if len(points) <= ROWS:
        return list(points)
    chosen = sorted({round(k * (len(points) - 1) / (ROWS - 1)) for k in range(ROWS)})
    return [points[k] for k in chosen]


def _row(point: Sequence[float]) -> tuple[str, ...]:
    step, loss, explained, l0, dead = point
    shares = (f"{100 * explained:.1f} %".replace("-", "−"), f"{l0:.1f}", formats.percent(dead))
    return (formats.thousands(int(step)), f"{loss:.4f}", *shares)


def _facts(recipe: Mapping[str, Any], folder: str) -> tuple[tuple[str, str], ...]:
    return (
        ("place", latents.place_of(recipe)),
        ("architecture", saes.ARCHITECTURES[recipe["architecture"]]),
        ("latents", formats.thousands(recipe["n_latents"])),
        ("k", str(recipe["k"])),
        ("steps", formats.thousands(recipe["steps"])),
        ("batch", f"{formats.thousands(recipe['batch'])} positions"),
        ("rate", f"{recipe['rate']:g}"),
        ("seed", str(recipe["seed"])),
        ("pictures", folder or "the little world’s"),
    )


def command(recipe: Mapping[str, Any], folder: str, model: str) -> str:
    """What trains the same on the command line."""
    words = ["sfumato", "sae", "train"]
    for name, value in recipe.items():
        if value != "":
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--folder", folder] if folder else []
    words += ["--model", model] if model != "builtin" else []
    return f"{shlex.join(words)} --out DIR"
