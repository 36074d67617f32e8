"""The page of presets."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from app import formats, steerings
from app.contexts import PresetRow, PresetsPage, Shell
from app.tables import Preset, Run, now

LIMITS = "JSON, as exported here: one preset or several. All of them are taken, or none."


def page(
    shell: Shell, rows: Sequence[Preset], revision: str, run: Run | None, *,
    note: str = "", error: str = "", reasons: Iterable[str] = (),
) -> PresetsPage:  # fmt: skip
    """`revision`: of the model whose presets come first."""
    mine = [row for row in rows if row.model_revision == revision]
    rest = sorted((row for row in rows if row.model_revision != revision), key=lambda row: row.model_revision)
    return PresetsPage(
        shell=shell,
        rows=tuple(_row(row, run) for row in mine),
        others=tuple(
            (of, tuple(_row(row, run) for row in group)) for of, group in groupby(rest, lambda row: row.model_revision)
        ),
        run=run.id if run is not None else "",
        run_href=f"/runs/{run.id}" if run is not None else "",
        question=run.question if run is not None else "",
        export="/presets.json" if rows else "",
        note=note,
        error=error,
        reasons=tuple(reasons),
        limits=LIMITS,
    )


def _row(row: Preset, run: Run | None) -> PresetRow:
    return PresetRow(
        name=row.name,
        words=steerings.in_words(row.steering),
        url=f"/presets/{row.id}",
        export=f"/presets/{row.id}.json",
        apply=f"/presets/{row.id}/apply" if run is not None else "",
        when=formats.ago(row.created, now()),
        when_iso=row.created.isoformat(timespec="seconds"),
    )
