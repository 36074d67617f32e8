"""From scores to rows, and rows as text. Torch-free."""

import csv
import dataclasses
import io
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from engine.evaluation import planning
from engine.evaluation.contract import (
    ARMS,
    EASY,
    NONE,
    Evaluation,
    Item,
    KindResult,
    Setting,
    Settings,
)
from engine.evaluation.metrics import yes_no_figures
from engine.evaluation.planning import Cell, Group
from engine.evaluation.stats import arm, difference

FEW = 30
"""Rows of fewer test questions are warned of."""


@dataclasses.dataclass(frozen=True)
class Tested:
    """A cell's test questions, and the scores and answers of each (setting, arm); (NONE, arm) = the baseline's."""

    items: tuple[Item, ...]
    scores: dict[tuple[Setting, str], list[float]]
    said: dict[tuple[Setting, str], list[str]]


def _row(
    settings: Settings, level: str, key: Group, cells: Sequence[tuple[Tested, Setting]], dev: tuple[Any, ...]
) -> KindResult:
    """One row over cells, each under its own setting."""
    seed = zlib.crc32(f"{settings.seed}/{level}/{key[0]}/{key[1]}".encode())
    arms = {name: [one for tested, setting in cells for one in tested.scores[setting, name]] for name in ARMS}
    chosen = {setting for _, setting in cells}
    extra: dict[str, dict[str, float]] = {}
    if settings.metric == "yesno":
        right = [item.answers[0] for tested, _ in cells for item in tested.items]
        for name in ARMS:
            said = [one for tested, setting in cells for one in tested.said[setting, name]]
            extra[name] = yes_no_figures(said, right)
    return KindResult(
        kind=key[0],
        condition=key[1],
        level=level,
        n=len(arms["baseline"]),
        chosen=next(iter(chosen)) if len(chosen) == 1 else None,
        dev=dev,
        arms={name: arm(scores, seed) for name, scores in arms.items()},
        delta=difference(arms["modulated"], arms["baseline"], seed),
        against_random=difference(arms["modulated"], arms["random_control"], seed),
        against_single_token=difference(arms["modulated"], arms["single_token_control"], seed),
        extra=extra,
    )


def _totals(cells: Sequence[Cell]) -> dict[Group, list[Cell]]:
    """Rows over several cells: each kind's hard conditions, each condition's kinds, all hard, all."""
    found: dict[Group, list[Cell]] = {}
    for kind, condition in cells:
        keys: list[Group] = [("all", condition)]
        if condition != EASY:
            keys += [(kind, "hard"), ("all", "hard")]
        keys.append(("all", "all"))
        for key in keys:
            found.setdefault(key, []).append((kind, condition))
    return {key: members for key, members in found.items() if len(members) > 1}


def evaluation_of(
    settings: Settings,
    model: dict[str, str],
    tested: Mapping[Cell, Tested],
    choices: Mapping[str, Mapping[Group, tuple[Setting, tuple[Any, ...]]]],
    warnings: Sequence[str],
) -> Evaluation:
    """All rows: a cell under the setting of its group where that was tested there, else under none."""
    kinds: list[KindResult] = []
    totals: list[KindResult] = []
    for level, by_group in choices.items():
        used: dict[Cell, tuple[Setting, tuple[Any, ...]]] = {}
        for key, members in planning.groups(level, list(tested)).items():
            setting, dev = by_group.get(key, (NONE, ()))
            for cell in members:
                used[cell] = (setting if (setting, "modulated") in tested[cell].scores else NONE, dev)
        for cell, (setting, dev) in used.items():
            kinds.append(_row(settings, level, cell, [(tested[cell], setting)], dev))
        for key, cells in _totals(list(used)).items():
            dev = by_group[key][1] if key in by_group else ()
            totals.append(_row(settings, level, key, [(tested[cell], used[cell][0]) for cell in cells], dev))
    few = sum(row.n < FEW for row in kinds if row.level == settings.levels[0])
    said = list(warnings)
    if few:
        said.append(f"{few} rows have fewer than {FEW} test questions: their intervals are wide. Raise the limit.")
    return Evaluation(settings, dict(model), tuple(kinds), tuple(totals), tuple(said))


def _figures(row: KindResult) -> list[str]:
    arms = [f"{row.arms[name].accuracy:.3f}" for name in ARMS]
    delta = f"{row.delta.value:+.3f} [{row.delta.low:+.3f}, {row.delta.high:+.3f}]"
    return [*arms, delta, f"{row.delta.p:.3g}"]


def _setting(row: KindResult) -> str:
    return "each its own" if row.chosen is None else str(row.chosen)


def table(evaluation: Evaluation) -> str:
    """The rows as aligned text."""
    head = ["kind", "condition", "n", *(name.replace("_", " ") for name in ARMS), "Δ [95 %]", "p", "setting"]
    lines: list[str] = []
    for level in evaluation.settings.levels:
        rows = [row for row in (*evaluation.kinds, *evaluation.totals) if row.level == level]
        cells = [[row.kind, row.condition, str(row.n), *_figures(row), _setting(row)] for row in rows]
        widths = [max(len(line[k]) for line in [head, *cells]) for k in range(len(head))]
        lines.append(f"Setting chosen by {level}")
        lines += ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
                  for line in [head, *cells]]  # fmt: skip
        lines.append("")
    return "\n".join([*lines, *evaluation.warnings])


def inert(text: str) -> str:
    """A text that spreadsheets would compute, with a quote before it that keeps them from it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def to_csv(evaluation: Evaluation) -> str:
    """One line a row, with every interval."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    parts = ("accuracy", "low", "high")
    gaps = ("delta", "against_random", "against_single_token")
    fields = ("value", "low", "high", "p", "gained", "lost")
    writer.writerow(["level", "kind", "condition", "n", "setting", *(f"{a}_{p}" for a in ARMS for p in parts),
                     *(f"{g}_{f}" for g in gaps for f in fields)])  # fmt: skip
    for row in (*evaluation.kinds, *evaluation.totals):
        writer.writerow([row.level, inert(row.kind), row.condition, row.n, _setting(row),
                         *(getattr(row.arms[a], p) for a in ARMS for p in parts),
                         *(getattr(getattr(row, g), f) for g in gaps for f in fields)])  # fmt: skip
    return file.getvalue()
