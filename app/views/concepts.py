"""The pages of concepts."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import exports, figures, formats
from app.contexts import Choice, ConceptLine, ConceptPage, ConceptsPage, MemberRow, MembershipView, Shell
from app.state import address
from app.tables import ConceptRow
from app.worker import Worker
from engine.contract import MAX_SET

Member = tuple[int, int, float]


def line(row: ConceptRow) -> ConceptLine:
    """`members` counts the neurons that a steering turns."""
    members = min(row.members, MAX_SET)
    return ConceptLine(row.name, row.kind, row.probes, f"{row.cardinality:.1f}", members, href(row.name))


def href(name: str) -> str:
    return f"/concepts/{exports.quoted(name)}"


def index(
    shell: Shell, worker: Worker, rows: Sequence[ConceptRow], kinds: Sequence[Any], query: str, kind: str
) -> ConceptsPage:
    total = sum(count for _, count in kinds)
    asked = [("q", query)] if query else []
    choices = [("all", address("/concepts", asked), not kind, "")]
    for name, count in kinds:
        choices.append((f"{name} ({count})", address("/concepts", [*asked, ("kind", name)]), kind == name, name))
    empty = ""
    if not rows:
        if worker.info is None:
            empty = "The concepts appear when the model is loaded."
        elif not total:
            empty = "No concepts are known for this model."
        else:
            empty = f"None of the {total} concepts is called that. Search for a part of its name, or choose “all”."
    return ConceptsPage(
        shell, query, tuple(Choice(*choice) for choice in choices), tuple(map(line, rows)), total, empty
    )


def show(
    shell: Shell,
    row: ConceptRow,
    members: Sequence[Any],
    memberships: Mapping[tuple[int, int], Sequence[tuple[str, float]]],
) -> ConceptPage:
    rows = tuple(
        MemberRow(
            rank, f"text.{layer}.{index}", layer, mu, formats.membership(mu),
            tuple(
                MembershipView(name, other, formats.membership(other), href(name))
                for name, other in memberships.get((layer, index), ())
                if name != row.name
            )[:4],
        )
        for rank, (layer, index, mu) in enumerate(members, start=1)
    )  # fmt: skip
    return ConceptPage(
        shell=shell,
        concept=line(row),
        members=rows,
        figure=figures.cardinality_by_layer(row.layers),
        layers=tuple((str(layer), f"{value:.2f}") for layer, value in enumerate(row.layers)),
        figures=tuple((name, f"{value:.4g}") for name, value in row.figures.items()),
        recipe=tuple((name, _short(value)) for name, value in row.recipe.items()),
    )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
