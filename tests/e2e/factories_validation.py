"""Contexts of a concept's validation and of the report, in every state."""

from typing import Any

from app import contexts as c
from app import figures
from tests.e2e.factories import replaced, shell

NASTY = "<script>alert(1)</script> & <b>what?</b>"
SOME = (
    c.ControlRow("nothing is ablated", "The model as it is", 1.0, 0.76, 0.24, "12 of 12"),
    c.ControlRow("its own set", "The α-cut at zero", 0.17, 0.05, 0.4, "2 of 12", own=True),
    c.ControlRow("random neurons", "As many of the same layers", 1.0, 0.76, 0.24, "12 of 12"),
)
CRITERIA = (
    c.CriterionRow("takes more of its own answers than as many random neurons", True, True, "0.833 [0.583, 1.000]"),
    c.CriterionRow("leaves others’ answers", False, True, f"own drop 0.833 {NASTY}"),
    c.CriterionRow("points more often than attention", False, False, "0.583 against 1.000"),
)
NAMES = tuple(f"text.{n % 6}.{97 * n % 768}" for n in range(1, 7))


def measured(kind: str, **changes: Any) -> c.MeasurementView:
    title = "Validation" if kind == "validate" else "Collaboration"
    view = c.MeasurementView(kind, title, "", False, "That takes 120 steps.", button=f"{title} now")
    return replaced(view, changes)


def running(kind: str) -> c.MeasurementView:
    return measured(
        kind, state="running", live=True, message="24 of 120 · about 40 s left", cancel="/validation/a1/cancel",
        share=0.2, button="",
    )  # fmt: skip


def validation(**changes: Any) -> c.ValidationView:
    view = c.ValidationView(
        action="/validation", hidden=(("concept", "traffic light"),), live=False, events="", report="/concepts/report",
        validation=measured("validate"), weak=False, verdict="", because="", how="", controls=(), criteria=(), facts=(),
        collaboration=measured("collaborate"), alpha="0.5", top="12", limits=("0.05", "1", "0.05", "2", "24"),
        said=(), matrix=None, columns=("neuron", "alone"), rows=(), over="",
    )  # fmt: skip
    return replaced(view, changes)


def known(**changes: Any) -> c.ValidationView:
    values = [[0.0 if i == j else (i - j) / 10 for j in range(6)] for i in range(6)]
    drawn = figures.interactions(NAMES, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1], values)
    given: dict[str, Any] = {
        "verdict": "Weak.", "weak": True, "because": f"Weak: {NASTY}", "how": "On 12 probes drawn anew for it.",
        "controls": SOME, "criteria": CRITERIA, "facts": (("neurons ablated", "183", "members of the α-cut"),),
        "validation": measured("validate", state="done", button=""),
        "said": ("Together these 183 neurons carry 2.1 nats more than one by one: they need one another.", "Sums."),
        "matrix": c.FigureView("validation-matrix", "Interactions", drawn, "Off the diagonal, pairs."),
        "columns": ("neuron", "alone", *NAMES), "rows": tuple((n, "+0.3", *("−0.1",) * 6) for n in NAMES),
        "over": "Over 8 probes.",
    }  # fmt: skip
    return validation(**{**given, **changes})


VIEWS = (
    validation(),
    validation(live=True, events="/validation/events?concept=a", validation=running("validate")),
    validation(
        validation=measured("validate", state="failed", error=NASTY, button="Validate again"),
        collaboration=measured("collaborate", state="cancelled", message="Cancelled; nothing was kept."),
    ),
    known(),
    known(live=True, events="/validation/events?concept=a", collaboration=running("collaborate"), weak=False),
)


def report(**changes: Any) -> c.ReportPage:
    columns = tuple(
        c.Choice(name, f"/concepts/report?sort={name}", name == "own", f"what {name} is")
        for name in ("own", "random", "baseline", "other", "specificity", "pointing", "split half", "passes")
    )
    mean = "0.82 [0.79,\u00a00.86]"
    page = c.ReportPage(
        shell=shell(title="Validation of the concepts", active="concepts"),
        lead="212 of 240 validated concepts pass.",
        columns=columns,
        groups=tuple(c.GroupRow(name, "120", (mean,) * 8) for name in ("all", "one token", "several tokens", "object")),
        rows=tuple(
            c.ReportRow(
                f"concept {n} {NASTY}", f"/concepts/{n}", "object", (*("0.83",) * 7, "✓"), "passes" if n % 3 else "weak"
            )
            for n in range(30)
        ),
        by_kind=c.Choice("kind", "/concepts/report", False, "By kind and name"),
        csv="/concepts/report.csv",
        json="/concepts/report.json",
        empty="",
    )  # fmt: skip
    return replaced(page, changes)


PAGES = {"validation/report.html": (report(), report(rows=(), groups=(), empty="No concepts are known."))}
FRAGMENTS = {"concepts/_validation.html": ("validation", VIEWS)}
