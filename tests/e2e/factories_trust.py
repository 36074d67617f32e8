"""Contexts of the card that says how far a ranking can be trusted, filled with plausible values."""

import dataclasses
from typing import Any

from app import contexts as c
from app import figures

STATE = "/runs/7f3a9c"
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
TERMS = ("area between", "AUC", "Spearman", "completeness")
VALUES = (
    "2.431 nats",
    "3.102 nats",
    "0.912",
    "all scores sum to 6.9, without any neuron the log-probability falls by 7.2",
)


def measurement(kind: str, **changes: Any) -> c.MeasurementView:
    teach = "The neurons ranked first are set to zero, and so are random ones. That takes about 12 s."
    view = c.MeasurementView(kind, kind.capitalize(), "", False, teach, button=f"Measure {kind}")
    return dataclasses.replace(view, **changes)


def drawn() -> tuple[c.FigureView, ...]:
    ranked = [-0.1 - 0.6 * k for k in range(len(SIZES))]
    random = [[-0.1 - 0.02 * k * j for k in range(len(SIZES))] for j in range(1, 4)]
    curve = figures.deletion_curve(SIZES, ranked, random, -0.1, "log-probability")
    scores = [0.5 - k / 50 for k in range(50)]
    names = [f"text.{k % 6}.{k}" for k in range(50)]
    effects = [score * 0.9 + 0.02 * (k % 3) for k, score in enumerate(scores)]
    scatter = figures.scores_and_effects(names, scores, effects, equal=True)
    caption = "Ablating the 50 neurons ranked first lowers the log-probability from −0.100 to −3.100."
    return (
        c.FigureView("trust-curve", "Deletion curve", curve, caption),
        c.FigureView("trust-scatter", "Scores against exact effects", scatter, "Spearman 0.91."),
    )


def trust(**changes: Any) -> c.TrustView:
    """Both measurements may be asked for."""
    empty = tuple(dataclasses.replace(figure, figure={}) for figure in drawn())
    view = c.TrustView(
        False, "", "gradient for “traffic light”", f"{STATE}/measurements", (("span", "0-2"),), False, "",
        measurement("faithfulness"), measurement("noise"), "Spearman from 0.8 on: agrees.", empty,
        tuple((term, "…", "its meaning") for term in TERMS), ("neurons ablated", "ranked first", "random, mean"),
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def measured(**changes: Any) -> c.TrustView:
    view = trust(
        faithfulness=measurement("faithfulness", state="done", button=""),
        noise=measurement("noise", state="done", button=""),
        verdict="Yes.",
        because="The order agrees with exact ablation (Spearman 0.91 over 100 neurons).",
        figures=drawn(),
        facts=tuple((term, value, "its meaning") for term, value in zip(TERMS, VALUES, strict=True)),
        rows=tuple((str(size), "−0.7", "−0.1") for size in SIZES),
        bands=(
            c.BandView("bfloat16", "In bfloat16, 2 change place:", (("text.4.212", STATE), ("text.1", STATE))),
            c.BandView("a batch of two", "In a batch of two, none of the first 20 changes place.", ()),
        ),
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def measuring(**changes: Any) -> c.TrustView:
    """One runs, the other waits."""
    view = trust(
        live=True,
        events=f"{STATE}/events",
        faithfulness=measurement(
            "faithfulness", state="running", live=True, message="80 of 137 ablated runs · about 7 s left", button="",
            cancel="/measurements/ab12/cancel", share=80 / 137,
        ),
        noise=measurement("noise", state="queued", live=True, message="number 2 in the queue", button=""),
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


VIEWS = (
    trust(),
    trust(waiting=True),
    trust(empty="There is no ranking here that could be judged."),
    measuring(),
    measured(),
    trust(
        faithfulness=measurement(
            "faithfulness", state="failed", error="<script>alert(1)</script> broke.", button="Measure again"
        ),
        noise=measurement("noise", state="cancelled", message="Cancelled; nothing was kept.", button="Measure again"),
    ),
)
