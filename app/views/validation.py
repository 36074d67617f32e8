"""A concept's validation and collaboration, what was measured or how to have it measured; and the report of all."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from app import collaborating, exports, figures, formats, validating, validations
from app.contexts import Choice
from app.contexts.pages import Shell
from app.contexts.trust import FigureView, MeasurementView
from app.contexts.validation import ControlRow, CriterionRow, GroupRow, ReportPage, ReportRow, ValidationView
from app.state import address
from app.tables import now
from app.validations import Known, Line
from app.views import progress
from engine.contract import MAX_SET, concepts

TITLES = {"validate": "Validation", "collaborate": "Collaboration"}
CONTROLS = {
    "plain": ("nothing is ablated", "The model as it is"),
    "own": ("its own set", "The neurons of the concept’s α-cut at α = 0.5, set to zero at every position"),
    "random": ("random neurons", "As many random neurons of the same layers, another set for each probe"),
    "baseline": ("the single-token baseline’s set", "As many neurons as the published single-token score ranks first"),
    "other": ("another concept’s set", "As many neurons of another concept’s highest memberships"),
    "others_own": ("its own set, on others’ probes", "Specificity: the concept’s set, on probes of other concepts"),
}
COLUMNS = {
    "own": ("own drop", "Share of the concept’s own answers that fall without its set"),
    "random": ("random", "… without as many random neurons of the same layers"),
    "baseline": ("baseline", "… without as many neurons of the single-token baseline"),
    "other": ("another’s", "… without another concept’s set"),
    "specificity": ("specificity", "Own drop less the drop of other concepts’ answers without the same set"),
    "pointing": ("pointing", "How often its heat map has its maximum on the thing"),
    "split half": ("split half", "Overlap of the 20 first neurons of two halves of its probes"),
    "passes": ("passes", "Every needed condition holds on held-out probes"),
}


def view(found: Known, at: dt.datetime | None = None) -> ValidationView:
    time = at or now()
    name = found.row.name
    live = any(job.live for job in found.jobs.values())
    tested, joint = _result(found, "validate"), _result(found, "collaborate")
    figures_known = "passes" in found.row.figures
    weak = found.row.figures.get("passes") == 0
    verdict = "" if not figures_known else "Weak." if weak else "It passes."
    because = tested.get("reason", "")
    if not because and figures_known:
        because = _shipped(found.row.figures)
    return ValidationView(
        action="/validation",
        hidden=(("concept", name),),
        live=live,
        events=address("/validation/events", [("concept", name)]) if live else "",
        report="/concepts/report",
        validation=_validation(found, time),
        weak=weak,
        verdict=verdict,
        because=because,
        how=tested.get("how", ""),
        controls=tuple(_control(field, tested[field]) for field in CONTROLS) if tested else (),
        criteria=tuple(CriterionRow(**criterion) for criterion in tested.get("criteria", ())),
        facts=_facts(tested) if tested else (),
        collaboration=_collaboration(found, time),
        alpha=f"{found.alpha:g}",
        top=str(found.top),
        limits=(*(f"{bound:g}" for bound in collaborating.ALPHAS), "0.05", *map(str, collaborating.TOPS)),
        said=_said(joint) if joint else (),
        matrix=_matrix(joint) if joint else None,
        columns=("neuron", "alone", *joint.get("top", ())),
        rows=_rows(joint) if joint else (),
        over=f"{joint['how']} α = {joint['alpha']:g}, {len(joint['members'])} neurons." if joint else "",
    )


def settled(found: Known) -> bool:
    """Nothing of this card waits or runs."""
    return not any(job.live for job in found.jobs.values())


def _result(found: Known, kind: str) -> Mapping[str, Any]:
    job = found.jobs.get(kind)
    return (job.result if job is not None and job.state == "done" else None) or {}


def _shipped(known: Mapping[str, float]) -> str:
    """What the library's own figures say, without the probes."""
    n = known.get("held-out probes", 0)
    return (
        f"The library came with this: of {n:.0f} held-out answers, {formats.percent(known.get('plain', 0))} are right, "
        f"and without its neurons {formats.percent(known.get('own', 0))}."
    )


def _validation(found: Known, at: dt.datetime) -> MeasurementView:
    teach = (
        "Its neurons are set to zero on probes that it was not made of, against random neurons, the single-token "
        "baseline and another concept’s; then on other concepts’ probes. "
    )
    if found.derived:
        words = "It is derived from other concepts and has no probes of its own; validate the concepts that it names."
        return MeasurementView("validate", TITLES["validate"], "", False, words)
    if found.built is not None and found.built < validating.FEWEST:
        words = (
            f"The model took {found.built} of its probes; validation holds half of them out and needs at least "
            f"{validating.FEWEST}. Add probes, and build it."
        )
        return MeasurementView("validate", TITLES["validate"], "", False, words)
    return _measurement(found, "validate", teach, "Validate now", at)


def _collaboration(found: Known, at: dt.datetime) -> MeasurementView:
    teach = (
        "What do its neurons carry together, against what each carries alone? All of the α-cut, each member, and each "
        f"pair of the first {found.top} are set to zero. "
    )
    if found.derived:
        words = "It is derived from other concepts and has no probes of its own; measure the concepts that it names."
        return MeasurementView("collaborate", TITLES["collaborate"], "", False, words)
    count = min(found.members, MAX_SET)
    if count < 2:
        few = f"The α-cut at {found.alpha:g} has {count} neurons; collaboration takes at least 2. Lower α. "
        return _measurement(found, "collaborate", few, "Measure collaboration", at, costed=False)
    return _measurement(found, "collaborate", teach, "Measure collaboration", at)


def _measurement(
    found: Known, kind: str, teach: str, button: str, at: dt.datetime, *, costed: bool = True
) -> MeasurementView:
    job = found.jobs.get(kind)
    state = job.state if job is not None else ""
    live = job is not None and job.live
    again = state in ("failed", "cancelled")
    done = state == "done" and kind == "validate"
    return MeasurementView(
        kind=kind,
        title=TITLES[kind],
        state=state,
        live=live,
        teach=teach + (_cost(found, kind) if costed else ""),
        message=progress.message(job, found.places.get(kind, 1), at) if job is not None else "",
        error=job.error if job is not None and state == "failed" else "",
        button="" if live or done else f"{button.split(maxsplit=1)[0]} again" if again else button,
        cancel=f"/validation/{job.id}/cancel" if job is not None and live and not job.stop_requested else "",
        share=job.done / job.total if job is not None and job.total else 0.0 if state == "queued" else None,
    )


def _cost(found: Known, kind: str) -> str:
    steps = validations.steps(found, kind)
    unit = "runs of the model" if kind == "collaborate" else "steps of a few runs of the model"
    if kind not in found.paces:
        return f"That takes {formats.thousands(steps)} {unit}."
    return f"That takes {formats.thousands(steps)} {unit}: {formats.about(steps * found.paces[kind])}."


def _control(field: str, value: Mapping[str, Any]) -> ControlRow:
    label, about = CONTROLS[field]
    right = f"{round(value['value'] * value['n'])} of {value['n']}"
    span = max(value["high"] - value["low"], 0.0)
    return ControlRow(label, about, value["value"], value["low"], span, right, field in ("own", "others_own"))


def interval(value: Mapping[str, Any], signed: bool = False) -> str:
    """For example “0.52 [0.31, 0.78]”."""
    sign = "+" if signed else ""
    words = f"{value['value']:{sign}.2f} [{value['low']:{sign}.2f}, {value['high']:{sign}.2f}]"
    return words.replace("-", "−")


def _facts(tested: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    facts = [
        ("neurons ablated", str(tested["size"]), "Members of the α-cut, at most as many as a steering turns"),
        ("split half", f"{tested['split_half']:.2f}", "Overlap of the 20 first neurons of two halves of its probes"),
        ("other concepts", f"{tested['between']:.2f}", "The largest such overlap with another concept"),
    ]
    if tested["shuffled"] is not None:
        words = "Overlap of the 20 first neurons when the picture’s patches change places"
        facts.append(("patches shuffled", f"{tested['shuffled']:.2f}", words))
    if tested["pointing"]:
        where = tested["pointing"]
        facts += [
            ("pointing", interval(where["concept"]), "How often its heat map has its maximum on the thing"),
            ("attention points", interval(where["attention"]), "The same of the last layer’s attention"),
            ("chance", f"{where['chance']['value']:.2f}", "The thing’s share of the picture’s patches"),
        ]
    return tuple(facts)


def _said(joint: Mapping[str, Any]) -> tuple[str, ...]:
    """Synergy in plain words, and the pair that departs most from the sum of its two."""
    synergy, count = joint["synergy"], len(joint["members"])
    size = formats.plain(abs(synergy["value"]))
    if synergy["low"] > 0:
        what = f"Together these {count} neurons carry {size} nats more than one by one: they need one another."
    elif synergy["high"] < 0:
        what = f"Together these {count} neurons carry {size} nats less than one by one: they stand in for one another."
    else:
        what = f"Together these {count} neurons carry about what they carry one by one."
    sums = (
        f"Without all of them what says the concept loses {interval(joint['joint'])} nats; the losses without each one "
        f"alone sum to {interval(joint['apart'])}. Synergy {interval(synergy, signed=True)}."
    )
    names, matrix = joint["top"], joint["interactions"]
    pairs = [(matrix[i][j], i, j) for i in range(len(names)) for j in range(i) if matrix[i][j] is not None]
    if not pairs:
        return what, sums
    value, i, j = max(pairs, key=lambda pair: abs(pair[0]))
    if not value:
        return what, sums
    how = "stand in for one another most" if value < 0 else "need one another most"
    return what, sums, f"Of the pairs, {names[j]} and {names[i]} {how}: {formats.signed(value)} nats."


def _matrix(joint: Mapping[str, Any]) -> FigureView:
    made = figures.interactions(joint["top"], joint["single"], joint["interactions"])
    caption = (
        "Off the diagonal, what a pair carries beyond the sum of its two: teal, they need one another; rust, they "
        "stand in for one another. On it, gold, what each carries alone. Nats."
    )
    return FigureView("validation-matrix", "Interactions of the first neurons in pairs", made, caption)


def _rows(joint: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (name, formats.signed(alone), *("" if i == j else formats.signed(value or 0.0) for j, value in enumerate(row)))
        for i, (name, alone, row) in enumerate(zip(joint["top"], joint["single"], joint["interactions"], strict=True))
    )


def report(shell: Shell, lines: Sequence[Line], sort: str) -> ReportPage:
    """`sort` = one of COLUMNS, or '' for kinds."""
    done = [line for line in lines if line.validated]
    passing = sum(not line.weak for line in done)
    lead = f"{passing} of {len(done)} validated concepts pass"
    if len(done) < len(lines):
        lead += f"; {len(lines) - len(done)} are not validated"
    return ReportPage(
        shell=shell,
        lead=f"{lead}.",
        columns=tuple(
            Choice(label, address("/concepts/report", [("sort", column)]), column == sort, about)
            for column, (label, about) in COLUMNS.items()
        ),
        groups=tuple(
            GroupRow(name, str(len(some)), tuple(_mean(validations.mean(some, column)) for column in COLUMNS))
            for name, some in validations.groups(lines)
        ),
        rows=tuple(_line(line) for line in validations.ordered(lines, sort)),
        by_kind=Choice("kind", "/concepts/report", sort not in COLUMNS, "By kind and name"),
        csv="/concepts/report.csv",
        json="/concepts/report.json",
        empty="" if lines else "No concepts are known for this model.",
    )


def _mean(value: concepts.results.Interval | None) -> str:
    if value is None:
        return "–"
    return f"{value.value:.2f} [{value.low:.2f},\u00a0{value.high:.2f}]".replace("-", "−")


def _line(line: Line) -> ReportRow:
    state = "" if not line.validated else "weak" if line.weak else "passes"
    values = [line.value(column) for column in COLUMNS]
    shown = [f"{value:.2f}".replace("-", "−") if value is not None else "–" for value in values[:-1]]
    mark = {"": "–", "weak": "✗ weak", "passes": "✓"}[state]
    return ReportRow(line.name, f"/concepts/{exports.quoted(line.name)}", line.kind, (*shown, mark), state)
