"""Contexts of experiments with latents in every state, from results that are made up."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from app import contexts as c
from app import experiments
from app.experiments import Draft, Known
from app.tables import JobRow, QuestionSet
from app.views import evaluation as evaluations
from app.views import experiment as views
from engine.contract import saes
from engine.fake_saes import SHIPPED
from engine.sae.masking import METHODS, SIZES
from tests.e2e.factories import STATE, replaced, shell
from tests.e2e.factories_evaluation import AT, NASTY, file_set

SWAPPED, SWAP_SIZES = ("influence", "activation", "random"), (1, 5, 10, 20, 50)
LOSS = {"influence": 0.9, "activation": 0.4, "bottom": 0.02, "random": 0.05}


def share(mean: float, n: int = 120) -> saes.Share:
    return saes.Share(mean, max(0.0, mean - 0.08), min(1.0, mean + 0.08), n)


def rows(sizes: Sequence[int | str]) -> list[tuple[int, int | str]]:
    return list(enumerate(sizes, 1))


def report(turn: float = 1.0, **changes: Any) -> saes.Report:
    """`turn` −1: mean activation loses more; 0: neither."""
    loss = dict(LOSS)
    if turn < 0:
        loss |= {"influence": LOSS["activation"], "activation": LOSS["influence"]}
    gap, p = (saes.Share(0.4 * turn, 0.4 * turn - 0.1, 0.4 * turn + 0.1, 120), 0.0001 if turn else 0.4)
    masked = tuple(
        saes.Masked(m, str(k), 10.0 * place, share(1 - loss[m] * place / 6), share(1 - loss[m] * place / 7))
        for place, k in rows(SIZES)
        for m in METHODS
    )
    swaps = tuple(
        saes.Swapped(m, str(k), 2.0 * float(k), share(loss[m] * place / 5, 40), share(loss[m] * place / 12, 40))
        for place, k in rows(SWAP_SIZES)
        for m in SWAPPED
    )
    found = saes.Report(
        SHIPPED, saes.Settings(), 160, 120, masked, tuple((str(k), gap, p) for k in SIZES),
        {"influence": share(0.61, 10), "mean activation": share(0.12, 10)},
        {"influence and mean activation, first 10": share(0.18), f"{NASTY}, first 10": share(float("nan"), 0)},
        saes.Share(365.0, 350.0, 380.0, 120), share(0.81), swaps, tuple((str(k), gap, p) for k in SWAP_SIZES), 40, 36,
    )  # fmt: skip
    return dataclasses.replace(found, **changes)


def known(state: str, found: saes.Report | None = None, of: QuestionSet | None = None, **more: Any) -> Known:
    params = {
        "sae": SHIPPED.id, "name": SHIPPED.name, "settings": dataclasses.asdict(saes.Settings()), "limit": 160,
        "seed": 0, "set": of.hash if of else "builtin", "ablated": 10, "swapped": 40, "model_revision": "d8",
    }  # fmt: skip
    fields = {"done": 0, "total": 0, "error": "", "queued": AT, "started": AT, "stop_requested": False, **more}
    told = {"report": saes.experiment_as_json(found), "pace": 2.5, "left_out": 0} if found is not None else None
    job = JobRow(id="ab12cd34ef56", kind="experiment", state=state, params=params, result=told, **fields)
    return Known(job, of, 2, 14 if fields["done"] else 0)


def view(found: Known) -> c.ExperimentView:
    seen = views.view(found, "builtin", AT)
    return replaced(seen, {"events": f"{STATE}/events" if seen.live else ""})


REPORT = known("done", report())
BAD = known("done", report(0.0, refused=((3, NASTY),), swaps=(), swap_gaps=(), pairs=0, alike=0), file_set())
VIEWS = (
    view(known("queued")),
    view(known("running", done=40, total=200)),
    view(known("running", done=170, total=200, stop_requested=True)),
    view(known("cancelled", done=40, total=200)),
    view(known("failed", of=file_set(), error=NASTY)),
    view(REPORT),
    view(known("done", report(-1.0))),
    view(BAD),
)


def index(**changes: Any) -> c.ExperimentsPage:
    jobs = [REPORT.job, known("running", done=40, total=200).job, known("failed").job]
    sets = (file_set(),)
    page = c.ExperimentsPage(
        shell=shell(title="Which latents matter?", active="evaluate"), teach=views.TEACH,
        form=views.form(Draft(), (SHIPPED,), sets), empty="", error="", facts=(), estimate="", start="", hidden=(),
        shapes=evaluations.SHAPES, limits="all files together at most 20 MB", bad=(), more="",
        lines=tuple(views.line(job, None) for job in jobs),
    )  # fmt: skip
    return replaced(page, changes)


def planned() -> c.ExperimentsPage:
    row = file_set()
    plan = experiments.Plan({}, row, 160, 40, 400.0)
    return index(
        facts=(("items", "160"), ("pairs to swap, at most", "40")), estimate=views.estimate(plan), start=views.HOME,
        hidden=(("set", row.hash),), bad=((17, NASTY),), more="… and 2 more",
    )  # fmt: skip


def page(found: Known) -> c.ExperimentPage:
    whole = views.page(shell(title="Experiment", active="evaluate"), found, "builtin", AT)
    return replaced(whole, {"experiment": view(found)})


PAGES = {
    "experiment/index.html": (index(), planned(), index(lines=(), error=NASTY, empty=views.NO_SAE)),
    "experiment/show.html": (
        page(REPORT),
        page(known("running", done=40, total=200, of=file_set())),
        page(BAD),
        page(known("failed", error=NASTY)),
    ),
}
FRAGMENTS = {"experiment/_experiment.html": ("experiment", VIEWS)}
