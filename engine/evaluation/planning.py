"""What is searched, and what is chosen: pure functions of dev scores. Torch-free.

A choice is made for a group of cells. `groups` says which these are at each level; `ranked` orders settings by their
gain over the group's dev questions, and `chosen` refuses one whose gain is within its own error: with many settings
tried on few questions, the best of them gains by luck.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from engine.evaluation.contract import EASY, NONE, DevRow, Item, Setting, Settings
from engine.evaluation.stats import gain

Cell = tuple[str, str]
Group = tuple[str, str]
DevScores = Mapping[Cell, Mapping[Setting, Sequence[float]]]
"""Scores of a cell's first dev questions under each setting that was tried there; NONE = the baseline's, of all."""


def coarse(settings: Settings) -> tuple[Setting, ...]:
    """The first step's settings."""
    return tuple(Setting(rule, lam) for rule in settings.rules for lam in settings.lambdas)


def variants(base: Setting, settings: Settings) -> tuple[Setting, ...]:
    """The second step's: one thing changed at a time, and λ halved."""
    changes = (("positions", settings.positions), ("layers", settings.layers), ("map", settings.maps))
    found = [
        dataclasses.replace(base, **{name: value})  # type: ignore[arg-type] # all three are texts
        for name, values in changes
        for value in values
    ]
    found.append(dataclasses.replace(base, lam=base.lam / 2))
    return tuple(dict.fromkeys(setting for setting in found if setting != base))


def groups(level: str, cells: Sequence[Cell]) -> dict[Group, tuple[Cell, ...]]:
    """(kind, condition) of a choice, with "all" kinds or "hard" conditions where it is made over several cells, and
    those cells. A choice over hard conditions says nothing about easy ones."""
    found: dict[Group, list[Cell]] = {}
    for kind, condition in cells:
        key = {
            "cell": (kind, condition),
            "kind": (kind, "hard"),
            "condition": ("all", condition),
            "all": ("all", "hard"),
        }[level]
        if condition != EASY or level in ("cell", "condition"):
            found.setdefault(key, []).append((kind, condition))
    return {key: tuple(members) for key, members in found.items()}


def by_cell(items: Sequence[Item]) -> dict[Cell, list[Item]]:
    found: dict[Cell, list[Item]] = {}
    for item in items:
        found.setdefault(item.cell, []).append(item)
    return found


def ranked(cells: Sequence[Cell], scores: DevScores, least: int = 0) -> tuple[DevRow, ...]:
    """The settings tried in all of these cells (on at least `least` questions each, or all that there are), best gain
    first; ties by smaller λ, then by name."""
    shared = set(scores[cells[0]])
    for cell in cells[1:]:
        shared &= set(scores[cell])
    rows = []
    for setting in shared - {NONE}:
        tried = [scores[cell][setting] for cell in cells]
        if any(len(some) < min(least, len(scores[cell][NONE])) for some, cell in zip(tried, cells, strict=True)):
            continue
        plain = [scores[cell][NONE][: len(some)] for some, cell in zip(tried, cells, strict=True)]
        after, before = np.concatenate(tried).astype(np.float64), np.concatenate(plain).astype(np.float64)
        rows.append(DevRow(setting, float(after.mean()), *gain(after, before), len(after)))
    return tuple(sorted(rows, key=lambda row: (-row.gain, row.setting.lam, row.setting.key)))


def best(rows: Sequence[DevRow], keep: int) -> tuple[Setting, ...]:
    """The first `keep` that gain anything."""
    return tuple(row.setting for row in rows[:keep] if row.gain > 0)


def chosen(rows: Sequence[DevRow], margin: float) -> Setting:
    """The best of the rows if its gain is more than `margin` standard errors of it, and not nothing; else NONE."""
    if rows and rows[0].gain > 0 and rows[0].gain > margin * rows[0].error:
        return rows[0].setting
    return NONE
