"""Contexts of the page of presets."""

import dataclasses
from typing import Any

from app import contexts as c
from tests.e2e.factories import STATE, shell


def row(name: str, words: str, **changes: Any) -> c.PresetRow:
    made = c.PresetRow(
        name, words, "/presets/a", "/presets/a.json", "/presets/a/apply", "2 hours ago", "2026-11-30T14:00:00Z"
    )
    return dataclasses.replace(made, **changes)


ROWS = (
    row("no traffic lights", "traffic light λ −1 · layers 2–4"),
    row("<img src=x onerror=alert(1)>", "text.5.730 = 3.25 · text.4.212 × 0 · answer positions"),
    row("a" * 80, " · ".join(f"concept {n} λ +{n / 4:g}" for n in range(12))),
)
PAGES = (
    c.PresetsPage(
        shell(title="Presets", active="concepts"), ROWS, (("fake-0", ROWS[:1]),), "7f3a9c", STATE,
        "What is on the left?", "/presets.json", "2 imported; 1 were there already.", "", (), "JSON, as exported here.",
    ),
    c.PresetsPage(
        shell(title="Presets", active="concepts"), (), (), "", "", "", "", "", "Nothing was imported.",
        ("mine: There is no concept “zebra”.", "mine: There is no neuron text.9.1."), "JSON, as exported here.",
    ),
)  # fmt: skip
