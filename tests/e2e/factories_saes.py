"""Contexts of the page of sparse autoencoders, and of trainings in every state."""

import dataclasses
import math
from typing import Any

from app import contexts as c
from app import figures_training
from tests.e2e import factories_making
from tests.e2e.factories import choice, shell

XSS = "<script>alert(1)</script>"
FACTS = (("latents", "2,048 over 256 dimensions"), ("explained variance", "0.93"), ("source", "built in"))
TRIED = (("explained variance", "0.91"), ("L0 (active at a position)", "31.8"), ("dead latents", "71 %"))
SAE = c.SaeCard(
    "world-mlp-4", "TopK, k = 32, at the MLP of layer 4", FACTS, "", "sfumato sae train --layer 4", "ab12", TRIED,
    "four pictures of the little world", (), "/saes/detach", True,
)  # fmt: skip
OTHER = c.SaeCard(
    XSS, "JumpReLU, at the stream after layer 9", FACTS, f"it is 4,096 wide {XSS}", "", "cd34", TRIED, XSS, (XSS,)
)
ATTEMPTS = (
    c.AttemptView(f"/data/{XSS}", "Its files are read, and it is tried.", True, "", ""),
    c.AttemptView(
        XSS, f"It could not be attached again at the start. {XSS} holds none.", False, "/saes/a/again", "/saes/a/forget"
    ),
)
SITES = (choice("the stream after the layer", selected=True), choice("what its MLP writes"))


def attach_form(**changes: Any) -> c.AttachForm:
    form = c.AttachForm("/saes/attach", "", "", SITES, "A folder or file in /data/saes.", "")
    return dataclasses.replace(form, **changes)


def train_form() -> c.TrainForm:
    numbers = tuple(
        (name, name, str(k), 0, 999, f"hint {XSS}" if k == 1 else "") for k, name in enumerate(("layer", "k", "steps"))
    )
    sources = (choice("the little world", selected=True), choice("a folder"))
    return c.TrainForm("/saes/plan", SITES, (choice("TopK"), choice("JumpReLU")), numbers, XSS, sources, XSS, "/data")


def line(state: str) -> c.EvaluationLine:
    result = "explains 93 %" if state == "done" else "41 % done"
    return c.EvaluationLine(
        "/saes/train/ab", XSS, "the MLP of layer 4", state, result, "", "2 min ago", "2026-01-02T03:04:05+00:00"
    )


def saes_page(**changes: Any) -> c.SaesPage:
    page = c.SaesPage(
        shell(title="Sparse autoencoders", active="model"), (SAE, OTHER), "", attach=attach_form(), train=train_form(),
        trainings=(line("done"), line("running")),
    )  # fmt: skip
    return dataclasses.replace(page, **changes)


def curve(steps: int, whole: int) -> c.FigureView:
    points = [
        [float(k), math.exp(-k / 300), 1 - math.exp(-k / 250), 32 + 40 * math.exp(-k / 200), 0.2 - k / 20_000]
        for k in range(10, steps + 1, 10)
    ]
    return c.FigureView("training-curve", "The curve", figures_training.curve(points, whole), "What the lines are.")


def training(**changes: Any) -> c.TrainingView:
    columns = ("step", "loss", "explained variance", "L0", "dead share")
    view = c.TrainingView(
        True, "running", "", "Training", "step 800 of 2,000 · about 4 min left", 0.4, "/saes/train/ab/cancel", "", "",
        "", curve(800, 2000), columns, (("800", "0.0650", "93.1 %", "32.0", "8 %"),), None, "/saes",
        (("place", "the MLP of layer 4"), ("pictures", XSS)), f"sfumato sae train --name '{XSS}' --out DIR",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


GATHERING = training(
    headline="Gathering the first positions", detail="12,000 of 32,768 positions", share=0.0, figure=None, rows=()
)
STOPPED = training(
    live=False, state="cancelled", headline="It was stopped", detail="step 800 of 2,000; it can go on from there.",
    cancel="", again="/saes/train/ab/again", anew="/saes/train/ab/anew",
)  # fmt: skip
FAILED = dataclasses.replace(STOPPED, state="failed", headline="It failed", error=f"out of {XSS}", anew="")
DONE = training(
    live=False, state="done", headline="world-mlp-4 is trained", detail="2,000 steps", share=None, cancel="", card=SAE,
    figure=curve(2000, 2000),
)  # fmt: skip
TRAININGS = (training(), GATHERING, STOPPED, FAILED, DONE)


def pages() -> dict[str, tuple[Any, ...]]:
    around = shell(title="Train an SAE", active="model")
    plan = c.TrainPlanPage(
        around, train_form(), "", "About 12 min.", (("positions", "2,048,000"),), "/saes/train", (("name", XSS),)
    )
    return {
        "latents/saes.html": (
            saes_page(),
            saes_page(memberships=factories_making.OF_SAES),
            saes_page(attempts=ATTEMPTS, live=True, attach=attach_form(error=f"{XSS} is not there.", path=XSS)),
            saes_page(saes=(), empty="No SAE is attached to the loaded model.", train=None, trainings=()),
        ),
        "latents/plan.html": (
            plan,
            dataclasses.replace(plan, error=f"The k is {XSS}.", estimate="", facts=(), start=""),
        ),
        "latents/training.html": tuple(c.TrainingPage(around, XSS, "about", view) for view in TRAININGS),
    }
