"""Contexts of the card that shows a sweep."""

import dataclasses
from typing import Any

from app import contexts as c
from app import sweepchart

STATE = "/runs/7f3a9c"
VALUES = tuple(step / 2 for step in range(-4, 9))
TEXTS = ("a polar bear.",) * 2 + ("a penguin.",) + ("a traffic light.",) * 9 + ("<b>light light</b>",)
KEYS = {"a traffic light.": "A", "a polar bear.": "B", "a penguin.": "C", "<b>light light</b>": "D"}
NO_SWEEP = c.SweepView(
    False, False, "", "", "", "", "", "", "", "", "", "", (), (), c.FigureView("sweep-chart", "", {}, ""), (), (), (),
    (), "", True,
)  # fmt: skip


def number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def sweep(**changes: Any) -> c.SweepView:
    """A finished sweep of 13 values; the panel stands at −1.5."""
    default = [min(1.0, 0.02 * 2 ** min(6, k)) for k in range(len(VALUES))]
    given = [max(0.55, p) for p in default]
    labels = [f"λ {number(value)}: {text}" for value, text in zip(VALUES, TEXTS, strict=True)]
    chart = sweepchart.sweep(VALUES, given, default, labels, -1.5, "λ of traffic light", "probability")
    rows = tuple(
        c.SweepRow(f"{value:g}", number(value), text, f"{p:.0%}", f"{q:.0%}", KEYS[text] == "A", value == -1.5)
        for value, text, p, q in zip(VALUES, TEXTS, given, default, strict=True)
    )
    strip = tuple(
        c.AnswerRun(count, KEYS[text], text, KEYS[text] == "A", f"λ: {text}")
        for count, text in ((2, TEXTS[0]), (1, TEXTS[2]), (9, TEXTS[3]), (1, TEXTS[12]))
    )
    wheres = ("λ −0.5 … 3.5", "λ −2 … −1.5", "λ −1", "λ 4")
    view = c.SweepView(
        present=True, live=False, events="", field="concept:traffic light", symbol="λ", name="traffic light",
        summary="λ −2 … 4 · with penguin λ +1 · image positions", message="13 answers in one batch, 312 ms", error="",
        cancel="", again="", action=f"{STATE}/steer", hidden=(("heat", "all"), ("panel", "p")),
        others=(("concept:penguin", "1.0"), ("positions", "image")),
        figure=c.FigureView("sweep-chart", "Probability at each λ", chart, "Probability of the answer given."),
        strip=strip,
        answers=tuple(
            c.DistinctAnswer(key, text, key == "A", where)
            for (text, key), where in zip(KEYS.items(), wheres, strict=True)
        ),
        columns=("λ", "answer", "its probability", "default answer’s"), rows=rows, export="/sweeps/ab12.json",
        listed=True,
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


BARE = {
    "figure": c.FigureView("sweep-chart", "Probability at each λ", {}, "Probability of the answer given."),
    "strip": (),
    "answers": (),
    "rows": (),
}
VIEWS = (
    NO_SWEEP,
    sweep(),
    sweep(listed=False),
    sweep(**BARE, live=True, events=f"{STATE}/events", message="number 2 in the queue", cancel="/sweeps/ab12/cancel"),
    sweep(live=True, events=f"{STATE}/events", message="2 tokens so far", cancel="/sweeps/ab12/cancel"),
    sweep(**BARE, message="Cancelled; nothing was kept.", again=f"{STATE}/sweep"),
    sweep(**BARE, message="", error="<script>alert(1)</script> broke.", again=f"{STATE}/sweep"),
)
