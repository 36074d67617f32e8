"""Contexts of evaluations in every state, from results that are made up."""

import dataclasses
import datetime as dt
from typing import Any

from app import contexts as c
from app import evaluations
from app.evaluations import Draft, Known
from app.tables import JobRow, QuestionSet
from app.views import evaluation as views
from engine.contract import evaluation
from tests.e2e.factories import STATE, replaced, shell

NASTY = "<script>alert(1)</script> & <b>what?</b>"
AT = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
CHOSEN = evaluation.Setting("candidates", 0.5, "image")
KINDS = ("name", "side", "color", "twohop")
CONDITIONS = tuple(evaluation.builtin.CONDITIONS)


def arm(accuracy: float, n: int) -> evaluation.ArmResult:
    return evaluation.ArmResult(accuracy, max(0.0, accuracy - 0.09), min(1.0, accuracy + 0.09), n)


def change(value: float, wide: float = 0.05) -> evaluation.Difference:
    return evaluation.Difference(value, value - wide, value + wide, 0.0004 if abs(value) > wide else 0.41, 12, 5)


def row(kind: str, condition: str, before: float, gain: float, level: str = "cell", n: int = 100) -> Any:
    chosen = None if "all" in (kind, condition) or condition == "hard" else CHOSEN if gain else evaluation.NONE
    arms = dict(zip(evaluation.ARMS, (arm(before + more, n) for more in (0, gain, gain / 5, gain / 2)), strict=True))
    gaps = (change(gain), change(0.8 * gain), change(gain / 2))
    return evaluation.KindResult(kind, condition, level, n, chosen, (), arms, *gaps)


def result(gain: float = 0.12, **changes: Any) -> evaluation.Evaluation:
    """Kinds that gain, lose and do neither; in the first, nothing is chosen where it is easy."""
    signs = dict(zip(KINDS, (1.0, -1.0, 0.3, 0.0), strict=True))
    cells = [
        row(kind, name, 0.5, 0.0 if name == evaluation.EASY else sign * gain)
        for kind, sign in signs.items()
        for name in CONDITIONS
    ]
    totals = [row(kind, "hard", 0.5, sign * gain, n=700) for kind, sign in signs.items()]
    totals += [row("all", where, 0.5, gain, level, 2800) for level in ("cell", "all") for where in ("hard", "all")]
    model = {"name": "builtin", "revision": "d8c1afefe6f04513", "library": "1e098790d1462b28"}
    made = evaluation.Evaluation(evaluation.Settings(), model, tuple(cells), tuple(totals), ("Few questions.",))
    return dataclasses.replace(made, **changes)


def file_set(**changes: Any) -> QuestionSet:
    given: dict[str, Any] = {
        "hash": "5e" * 32, "name": "street questions.jsonl", "format": "table", "metric": "exact",
        "files": [["street.jsonl", "a1" * 32]],
        "questions": 412, "kinds": {"colour": 300, NASTY: 112}, "conditions": {"all": 412}, "left_out": 3,
        "bad": [[17, "There is no picture 'a.png' in the zip."], [18, NASTY]], "created": AT,
    }  # fmt: skip
    return QuestionSet(**{**given, **changes})


def known(state: str, found: evaluation.Evaluation | None = None, of: QuestionSet | None = None, **more: Any) -> Known:
    settings = evaluation.Settings(kinds=more.pop("kinds", ()), conditions=more.pop("conditions", ()))
    params = {"settings": evaluation.to_json(settings), "set": of.hash if of else "builtin", "model_revision": "d8"}
    fields = {"done": 0, "total": 0, "error": "", "queued": AT, "started": AT, "stop_requested": False, **more}
    told = {"evaluation": evaluation.to_json(found), "pace": 0.1} if found is not None else None
    job = JobRow(id="ab12cd34ef56", kind="evaluation", state=state, params=params, result=told, **fields)
    return Known(job, settings, of, 2, 14 if fields["done"] else 0, "dev/side/noise 70/kind 2 all all fuzzy/rest")


def view(found: Known) -> c.EvaluationView:
    seen = views.view(found, "builtin", AT + dt.timedelta(seconds=80))
    return replaced(seen, {"events": f"{STATE}/events" if seen.live else ""})


REPORT = known("done", result())
VIEWS = (
    view(known("queued")),
    view(known("running", done=640, total=4800)),
    view(known("running", done=640, total=4800, stop_requested=True)),
    view(known("cancelled", done=640, total=4800)),
    view(known("failed", of=file_set(), error=NASTY)),
    view(REPORT),
    view(known("done", result(0.0), file_set())),
)


def index(**changes: Any) -> c.EvaluationsPage:
    jobs = [REPORT.job, known("running", done=640, total=4800, kinds=("name", "side")).job, known("failed").job]
    page = c.EvaluationsPage(
        shell=shell(title="Does turning concepts help?", active="evaluate"), teach=views.TEACH,
        form=views.form(views.FIRST, None), sets=(c.Choice(f"a {NASTY}", "/evaluations/plan?set=5e", False, "table"),),
        shapes=views.SHAPES, limits="all files together at most 20 MB", error="",
        lines=tuple(views.line(job, None) for job in jobs),
    )  # fmt: skip
    return replaced(page, changes)


def plan(row: QuestionSet | None, seconds: float | None, error: str = "") -> c.PlanPage:
    draft = Draft(set=row.hash if row else "builtin", kinds=("name",) if row is None else ())
    planned = evaluations.Plan(evaluation.Settings(), row, 1600, 960, 21_344, seconds, measured=seconds != 9.0)
    around = shell(title="The built-in set", active="evaluate")
    return views.plan(around, draft, row, None if error else planned, error)


def page(found: Known) -> c.EvaluationPage:
    whole = views.page(shell(title="Evaluation", active="evaluate"), found, "builtin")
    return replaced(whole, {"evaluation": view(found)})


PAGES = {
    "evaluation/index.html": (index(), index(lines=(), sets=(), error=NASTY)),
    "evaluation/plan.html": (plan(None, 7200.0), plan(file_set(left_out=180), 9.0), plan(None, None, NASTY)),
    "evaluation/show.html": (
        page(REPORT),
        page(known("running", done=640, total=4800, of=file_set())),
        page(known("done", result(0.0), file_set())),
        page(known("failed", error=NASTY)),
    ),
}
FRAGMENTS = {"evaluation/_evaluation.html": ("evaluation", VIEWS)}
