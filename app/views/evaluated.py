"""What came of an evaluation, in words, figures and files."""

import math
from collections.abc import Iterable
from typing import Any

from app import exports, formats
from app.contexts import ArmBar, GainRow, KindCard, ResultRow
from engine.contract import evaluation

Row = evaluation.KindResult
ARMS = {
    "baseline": ("baseline", "The model as it is: nothing is turned"),
    "modulated": ("modulated", "Concepts turned by the setting that was chosen on dev"),
    "random_control": ("random", "The same factors dealt to as many random neurons of the same layers"),
    "single_token_control": ("single-token", "As many neurons as the published single-token score ranks first"),
}
COLUMNS = (
    ("n", "Test questions"),
    *((label, about) for label, about in ARMS.values()),
    ("gain", "Modulated less baseline, in points, with its 95 % interval (paired bootstrap)"),
    ("p", "McNemar’s exact test on the questions that one answers rightly and the other does not"),
    ("over random", "Modulated less random control, in points, with its 95 % interval"),
    ("over single-token", "Modulated less single-token control, in points, with its 95 % interval"),
)
KINDS = {
    "name": "what the one thing is", "side": "what is on one side", "catname": "which thing of a category it is",
    "count": "how many of a thing", "countcat": "how many of a category", "exist": "is there a thing",
    "existcat": "is there one of a category", "category": "what category it is of", "color": "a shape’s colour",
    "shape": "a shape’s form", "relation": "what is beside, above or below", "next": "what the other thing is",
    "position": "where a thing is", "describe": "everything in the picture", "twohop": "a fact about what is seen",
}  # fmt: skip
"""The built-in set's kinds of question in words."""
SURE = 0.05
"""A p from which on McNemar’s test tells nothing from chance."""
UNGRADED = {"cell": "one setting for each kind of question", "kind": "one setting for each kind of question",
            "condition": "one setting for all kinds", "all": "one setting for all kinds"}  # fmt: skip
"""evaluation.LEVELS in the words of a person's files, whose questions have one condition."""
ALL = {"all": "all", "hard": "all hard ones"}


def level_of(result: evaluation.Evaluation) -> str:
    """Over what the settings were chosen of which the report speaks."""
    levels = result.settings.levels
    return "cell" if "cell" in levels else levels[0]


def whole(result: evaluation.Evaluation) -> Row:
    """The row that the headline is about: all kinds in all hard conditions, else over everything that there is."""
    level = level_of(result)
    rows = [row for row in (*result.totals, *result.kinds) if row.level == level]
    for condition in ("hard", "all") if graded(result) else ("all",):
        for row in rows:
            if (row.kind, row.condition) == ("all", condition) and row.n:
                return row
    return rows[0]


def graded(result: evaluation.Evaluation) -> bool:
    """Whether some of the set's conditions are easy and others hard; those of a person's files are neither."""
    return result.settings.set == "builtin"


def sign(change: evaluation.Difference) -> str:
    """'for' or 'against' where the interval leaves zero out, else 'even'."""
    return "for" if change.low > 0 else "against" if change.high < 0 else "even"


def points(value: float) -> str:
    if math.isnan(value):
        return "–"
    text = f"{100 * value:+.1f}"
    return text[1:] if text[1:] == "0.0" else text.replace("-", "−")


def interval(change: evaluation.Difference) -> str:
    """For example “+5.4 [+2.1, +8.7]”."""
    return f"{points(change.value)} [{points(change.low)},\u00a0{points(change.high)}]"


def chance(p: float) -> str:
    return "–" if math.isnan(p) else "p\u00a0<\u00a00.001" if p < 0.001 else f"p\u00a0=\u00a0{p:.3f}"


def accuracy(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}\u00a0%"


def headline(result: evaluation.Evaluation) -> str:
    """What came of it in one or two plain sentences; a gain is claimed only where its interval is above zero."""
    row = whole(result)
    where = "hard questions" if row.condition == "hard" else "questions"
    before, after = (accuracy(row.arms[arm].accuracy) for arm in ("baseline", "modulated"))
    change, found = row.delta, f"{interval(row.delta)} points, {chance(row.delta.p)}, {row.n} test questions"
    cells = [cell for cell in result.kinds if cell.level == row.level]
    if all(cell.chosen == evaluation.NONE for cell in cells):
        return (
            "No gain: on dev no setting was found better than turning nothing, or there were too few errors to mend. "
            f"Nothing is turned, and {before} of {row.n} test questions are answered rightly."
        )
    if sign(change) == "for":
        said = f"Turning concepts answers more {where} rightly: {after} instead of {before} ({found})."
        if row.against_random.low <= 0:
            said += " But so does the same turn of random neurons: the difference between them may be nothing."
        if row.delta.p >= SURE:
            said += " McNemar’s test, which knows right and wrong alone, does not tell it from chance."
        return said
    if sign(change) == "against":
        return f"No gain: turning concepts answers fewer {where} rightly, {after} instead of {before} ({found})."
    return f"No gain: turning concepts changes {before} to {after}, which may be nothing ({found})."


def gains(result: evaluation.Evaluation) -> str:
    """Which kinds gain, lose, or show neither; '' where there is but one kind."""
    found = [row for row in by_kind(result) if row.n]
    if len(found) < 2:
        return ""
    parts = []
    for polarity, words in (("for", "more right"), ("against", "fewer right"), ("even", "no clear difference")):
        named = [row.kind for row in found if sign(row.delta) == polarity]
        if named:
            parts.append(f"{words}: {', '.join(named)}")
    return f"By kind of question: {'; '.join(parts)}."


def by_kind(result: evaluation.Evaluation) -> list[Row]:
    """One row for each kind: over its hard conditions, else over all, else its only cell."""
    level = level_of(result)
    found: dict[str, tuple[int, Row]] = {}
    for row in (*result.kinds, *result.totals):
        if row.level == level and row.kind != "all":
            rank = {"hard": 2 if graded(result) else -2, "all": 1}.get(row.condition, 0)
            if row.n and rank >= found.get(row.kind, (-1, row))[0]:
                found[row.kind] = (rank, row)
    return [row for _, row in found.values()]


def bars(row: Row) -> tuple[ArmBar, ...]:
    made = []
    for arm, (label, about) in ARMS.items():
        value = row.arms[arm]
        text = f"{accuracy(value.accuracy)} [{100 * value.low:.0f}, {100 * value.high:.0f}]"
        low, high = _inside(value.low), _inside(value.high)
        made.append(ArmBar(arm, label, about, _inside(value.accuracy), low, high - low, text))
    return tuple(made)


def _inside(value: float) -> float:
    return 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)


def reach(rows: Iterable[Row]) -> float:
    """The end of the gains' axis: the farthest end of an interval, in steps of 0.05, at least 0.1."""
    ends = [abs(end) for row in rows for end in (row.delta.low, row.delta.high) if not math.isnan(end)]
    return max(0.1, math.ceil(round(20 * max(ends, default=0.0), 6)) / 20)


def gain(row: Row, label: str, end: float) -> GainRow:
    def place(value: float) -> float:
        return 0.5 if math.isnan(value) else _inside((value + end) / (2 * end))

    change = row.delta
    low, high = place(change.low), place(change.high)
    setting = "" if row.chosen is None else str(row.chosen)
    return GainRow(label, place(change.value), low, high - low, interval(change), sign(change), setting)


def cards(result: evaluation.Evaluation, end: float) -> tuple[KindCard, ...]:
    level = level_of(result)
    made = []
    for row in by_kind(result):
        cells = [cell for cell in result.kinds if cell.level == level and cell.kind == row.kind]
        made.append(
            KindCard(
                name=row.kind,
                about=KINDS.get(row.kind, "") if result.settings.set == "builtin" else "",
                over=over(row),
                bars=bars(row),
                gains=tuple(gain(cell, cell.condition if graded(result) else "gain", end) for cell in cells),
            )
        )
    return tuple(made)


def over(row: Row) -> str:
    """Which questions a row gathers."""
    where = {"hard": ", hard conditions", "all": "", "as given": ""}.get(row.condition, f", {row.condition}")
    return f"{row.n} test questions{where}"


def result_row(row: Row) -> ResultRow:
    arms = (accuracy(row.arms[arm].accuracy) for arm in ARMS)
    p = chance(row.delta.p).removeprefix("p\u00a0=\u00a0").removeprefix("p\u00a0")
    controls = (interval(row.against_random), interval(row.against_single_token))
    values = (str(row.n), *arms, interval(row.delta), p, *controls)
    setting = "" if row.chosen is None else str(row.chosen)
    kind, condition = ALL.get(row.kind, row.kind), ALL.get(row.condition, row.condition)
    return ResultRow(kind, condition, values, sign(row.delta), setting)


def rows(result: evaluation.Evaluation) -> tuple[ResultRow, ...]:
    level = level_of(result)
    return tuple(result_row(row) for row in result.kinds if row.level == level)


def totals(result: evaluation.Evaluation) -> tuple[ResultRow, ...]:
    """Over everything, once for each level, and by kind and condition at the report's."""
    level = level_of(result)
    made: list[ResultRow] = []
    for row in result.totals:
        if row.condition != "all" and not graded(result):
            continue
        if row.kind == "all" and row.condition in ALL:
            told = result_row(row)
            words = evaluation.LEVELS[row.level] if graded(result) else UNGRADED.get(row.level, "")
            if graded(result) or words not in [other.setting for other in made]:
                made.append(ResultRow(told.name, told.condition, told.values, told.polarity, words))
        elif row.level == level:
            made.append(result_row(row))
    return tuple(made)


def rules(result: evaluation.Evaluation) -> tuple[tuple[str, str], ...]:
    """The rules that were chosen anywhere, and what they mean."""
    chosen = {row.chosen.rule for row in result.kinds if row.chosen is not None}
    return tuple((rule, words) for rule, words in evaluation.RULES.items() if rule in chosen)


def as_json(result: evaluation.Evaluation) -> dict[str, Any]:
    """The result for programs: the four arms over all, the same for each kind and condition, and what they are made
    with."""
    total = whole(result)
    return {
        "headline": headline(result),
        "set": result.settings.set,
        "model": result.model,
        "settings": evaluation.to_json(result.settings),
        **_told(total),
        "kinds": [_told(row) for row in result.kinds],
        "totals": [_told(row) for row in result.totals],
        "warnings": list(result.warnings),
    }


def _told(row: Row) -> dict[str, Any]:
    changes = {name: getattr(row, name) for name in ("delta", "against_random", "against_single_token")}
    return {
        "kind": row.kind,
        "condition": row.condition,
        "level": row.level,
        "n": row.n,
        "chosen": None if row.chosen is None else evaluation.to_json(row.chosen),
        **{
            arm: {
                "accuracy": exports.finite(value.accuracy),
                "interval": [exports.finite(value.low), exports.finite(value.high)],
                "n": value.n,
            }
            for arm, value in row.arms.items()
        },
        **{
            name: {
                "value": exports.finite(change.value),
                "interval": [exports.finite(change.low), exports.finite(change.high)],
                "p": exports.finite(change.p),
                "gained": change.gained,
                "lost": change.lost,
            }
            for name, change in changes.items()
        },
        "extra": evaluation.to_json(row.extra),
    }


def table(result: evaluation.Evaluation) -> str:
    """The result as text."""
    return "\n".join([evaluation.table(result), "", headline(result), *filter(None, [gains(result)])])


def wait(seconds: float) -> str:
    """A long time to wait, roughly."""
    return formats.about(seconds) if seconds < 6000 else f"about {seconds / 3600:.1f} hours"
