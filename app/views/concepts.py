"""The pages of concepts: their list, and one of them."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from app import exports, figures, formats
from app.conceptqueries import Alike, ConceptHead, Example
from app.contexts import (
    AlikeRow,
    Choice,
    ConceptLatentsView,
    ConceptLine,
    ConceptPage,
    ConceptsPage,
    CutView,
    DerivedView,
    ExampleView,
    MemberRow,
    MembershipView,
    ProbeView,
    Shell,
    ValidationView,
)
from app.state import address
from app.tables import ConceptRow, OwnConcept, ProbeRow
from app.views import sets
from app.views.heat import cells, picture_src
from app.worker import Worker
from engine.contract import MAX_SET, Floats, concepts

NEAREST, SHOWN_PROBES, OTHERS = 8, 24, 4
SHOWN_ABOVE = ("cardinality", "support")
"""Figures of a library that the page computes itself."""
WEAK = "Its validation failed: on held-out probes its neurons do not carry it better than others do."


def line(row: ConceptRow | ConceptHead) -> ConceptLine:
    return ConceptLine(
        row.name, row.kind, row.probes, f"{row.cardinality:.1f}", min(row.members, MAX_SET), href(row.name),
        WEAK if row.figures.get("passes") == 0 else "",
    )  # fmt: skip


def href(name: str) -> str:
    return f"/concepts/{exports.quoted(name)}"


def index(
    shell: Shell, worker: Worker, rows: Sequence[ConceptHead], kinds: Sequence[Any], query: str, kind: str, sort: str
) -> ConceptsPage:
    def to(**changes: str) -> str:
        chosen = {"q": query, "kind": kind, "sort": sort} | changes
        return address("/concepts", [(name, value) for name, value in chosen.items() if value])

    total = sum(count for _, count in kinds)
    empty = ""
    if not rows:
        if worker.info is None:
            empty = "The concepts appear when the model is loaded."
        elif not total:
            empty = "No concepts are known for this model."
        else:
            empty = f"None of the {total} concepts is called that. Search for a part of its name, or choose “all”."
    return ConceptsPage(
        shell=shell,
        query=query,
        kind=kind,
        sort=sort,
        kinds=kind_choices(kinds, kind, lambda name: to(kind=name)),
        sorts=tuple(
            Choice(label, to(sort=value), sort == value, value)
            for label, value in (("concept", "name"), ("kind", ""), ("cardinality Σμ", "cardinality"),
                                 ("probes", "probes"))
        ),
        concepts=tuple(map(line, rows)),
        total=total,
        empty=empty,
    )  # fmt: skip


def kind_choices(kinds: Sequence[Any], kind: str, to: Callable[[str], str]) -> tuple[Choice, ...]:
    """All kinds, and each with the number of its concepts."""
    named = (Choice(f"{name} ({count})", to(name), kind == name, name) for name, count in kinds)
    return (Choice("all", to(""), not kind), *named)


def show(
    shell: Shell,
    row: ConceptRow,
    memberships: Floats,
    cut: CutView,
    beside: Alike | None,
    examples: Sequence[Example],
    own: OwnConcept | None,
    probes: tuple[Sequence[ProbeRow], int],
    validation: ValidationView,
    latents: tuple[ConceptLatentsView, ...],
) -> ConceptPage:
    counts = sets.by_band(memberships)
    near, inside, holds = alike(row.name, beside)
    listed, number = probes
    return ConceptPage(
        shell=shell,
        concept=line(row),
        facts=sets.facts(memberships),
        cut=cut,
        bands=figures.members_by_band(counts, sets.band_labels()),
        band_columns=("layer", *sets.band_labels()),
        band_rows=tuple((str(layer), *map(str, column)) for layer, column in enumerate(counts.T.tolist())),
        figure=figures.cardinality_by_layer(row.layers),
        layers=tuple((str(layer), f"{value:.2f}") for layer, value in enumerate(row.layers)),
        near=near,
        inside=inside,
        holds=holds,
        examples=tuple(map(example, examples)),
        probes=tuple(map(probe, listed)),
        probes_note=f"the first {len(listed)} of {number}" if number > len(listed) else f"{number}",
        derived=_derived(own),
        figures=tuple((name, f"{value:.4g}") for name, value in row.figures.items() if name not in SHOWN_ABOVE),
        recipe=tuple((name, _short(value)) for name, value in row.recipe.items()) if own is None else _own_recipe(own),
        algebra=sets.in_algebra(row.name),
        own=f"/concepts/own/{own.id}" if own is not None and not own.expression else "",
        validation=validation,
        latents=latents,
    )


def cut_view(
    row: ConceptRow,
    memberships: Floats,
    alpha: float,
    others: Mapping[tuple[int, int], Sequence[tuple[str, float]]],
    weak: Collection[str],
    intervals: concepts.evidence.Intervals | None,
    sampled: tuple[int, int],
) -> CutView:
    """`others`: to what the listed members belong (see queries.memberships), some of it `weak`; `intervals` of the
    members in their order; `sampled` = (probes, draws) of the bootstrap."""
    listed = sets.cut_members(memberships, alpha)
    count = int(np.count_nonzero(sets.fuzzy.alpha_cut(memberships, alpha)))
    words = sets.cut_words(memberships, alpha)
    if count > len(listed):
        words += f"; the {len(listed)} strongest are listed"
    about = ""
    if intervals is not None:
        n_probes, draws = sampled
        about = f"Intervals: 95 %, by bootstrap over {n_probes} probes, {draws} draws."
        if draws < concepts.evidence.DRAWS:
            about += f" (Fewer than {concepts.evidence.DRAWS} draws: the model has many neurons.)"
        if n_probes == 1:
            about = "Built from one probe: nothing is known of how memberships would vary."
    return CutView(
        action=href(row.name),
        alpha=f"{alpha:.2f}",
        words=words,
        layers=sets.layer_bars(memberships, alpha),
        members=tuple(
            _member(rank, member, row, others.get(member[:2], ()), weak, intervals)
            for rank, member in enumerate(listed, start=1)
        ),
        about=about,
        empty="" if listed else "No neuron belongs to it by so much." if memberships.any() else "It has no member.",
    )


def _member(
    rank: int,
    member: tuple[int, int, float],
    row: ConceptRow,
    others: Sequence[tuple[str, float]],
    weak: Collection[str],
    intervals: concepts.evidence.Intervals | None,
) -> MemberRow:
    layer, index, mu = member
    low, high = (float(intervals.low[rank - 1]), float(intervals.high[rank - 1])) if intervals else (mu, mu)
    return MemberRow(
        rank=rank,
        neuron=f"text.{layer}.{index}",
        layer=layer,
        membership=mu,
        text=formats.membership(mu),
        others=tuple(
            MembershipView(other, value, formats.membership(value), href(other), other in weak)
            for other, value in itertools.islice((pair for pair in others if pair[0] != row.name), OTHERS)
        ),
        interval=f"{formats.membership(low)} – {formats.membership(high)}" if intervals else "",
        low=low,
        high=high,
        href=sets.neuron_href(row.model_revision, layer, index),
    )


def alike(name: str, beside: Alike | None) -> tuple[tuple[AlikeRow, ...], tuple[AlikeRow, ...], tuple[AlikeRow, ...]]:
    """The most similar concepts, those that this one lies in, and those that lie in it, each most first."""
    if beside is None or name not in beside.names:
        return (), (), ()
    k = beside.names.index(name)

    def rows(values: Floats, words: str) -> tuple[AlikeRow, ...]:
        order = [n for n in np.argsort(-values, kind="stable") if n != k and values[n] > 0][:NEAREST]
        found = ((beside.names[n], float(values[n])) for n in order)
        return tuple(
            AlikeRow(other, href(other), value, words.format(name, formats.membership(value), other),
                     sets.in_algebra(name, other))
            for other, value in found
        )  # fmt: skip

    return (
        rows(beside.similarity[k], "{1}"),
        rows(beside.inclusion[k], "{0} is {1} inside {2}"),
        rows(beside.inclusion[:, k], "{2} is {1} inside {0}"),
    )


def example(found: Example) -> ExampleView:
    run, picture = found.run, found.picture
    largest = float(np.abs(found.heat).max(initial=0))
    place = "the most similar concept" if found.rank == 0 else f"number {found.rank + 1} of the similar concepts"
    return ExampleView(
        href=f"/runs/{run.id}",
        src=picture_src(picture.hash),
        width=picture.width,
        height=picture.height,
        cells=cells(found.heat, found.grid, (picture.width, picture.height), largest),
        question=run.question,
        answer=run.answer["text"] if run.answer else "",
        note=f"{place}, {formats.membership(found.similarity)}",
    )


def probe(row: ProbeRow) -> ProbeView:
    state = "waits to be built"
    if row.refused:
        state = f"refused: {row.refused}"
    elif row.logprob is not None:
        share = formats.percent(float(np.exp(row.logprob)))
        state = f"“{row.says}” has probability {share}" + ("" if row.correct else ", answered otherwise")
    return ProbeView(picture_src(row.picture_hash), row.question, row.answer, state, bool(row.refused))


def _derived(own: OwnConcept | None) -> DerivedView | None:
    if own is None or not own.expression:
        return None
    asked = [("expression", own.expression), ("family", own.family)]
    return DerivedView(own.expression, own.family, address("/algebra", asked), f"/concepts/own/{own.id}/delete")


def _own_recipe(own: OwnConcept) -> tuple[tuple[str, str], ...]:
    if own.expression:
        return (("expression", own.expression), ("family", own.family))
    made = [("map", own.map), ("quantile", f"{own.quantile:g}"), ("mode", own.mode)]
    if own.mode == "specific" and own.contrast:
        made.append(("contrast", ", ".join(own.contrast)))
    return tuple(made)


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def head_as_json(row: ConceptHead | ConceptRow) -> dict[str, Any]:
    """Keys as `sfumato concepts list --json` writes them."""
    passes = row.figures.get("passes")
    return {
        "name": row.name,
        "kind": row.kind,
        "probes": row.probes,
        "cardinality": row.cardinality,
        "members": row.members,
        "passes": None if passes is None else bool(passes),
        "figures": dict(row.figures),
    }


def as_json(
    row: ConceptRow, memberships: Floats, alpha: float, beside: Alike | None, own: OwnConcept | None
) -> dict[str, Any]:
    """A concept's page as data: the α-cut whole, and every neighbour's similarity and inclusions."""
    others = {}
    if beside is not None and row.name in beside.names:
        k = beside.names.index(row.name)
        others = {
            name: {
                "similarity": float(beside.similarity[k, n]),
                "inside": float(beside.inclusion[k, n]),
                "holds": float(beside.inclusion[n, k]),
            }
            for n, name in enumerate(beside.names)
            if n != k
        }
    return head_as_json(row) | {
        "model": row.model_revision,
        "library": row.library_revision,
        "expression": own.expression or None if own else None,
        "family": own.family if own and own.expression else None,
        **set_as_json(memberships, alpha),
        "concepts": others,
    }


def set_as_json(memberships: Floats, alpha: float) -> dict[str, Any]:
    """A fuzzy set of neurons: its numbers, and the α-cut's neurons with their memberships."""
    fuzzy = sets.fuzzy
    members = sets.cut_members(memberships, alpha, memberships.size)
    return {
        "cardinality": fuzzy.cardinality(memberships),
        "support": int(np.count_nonzero(fuzzy.support(memberships))),
        "core": int(np.count_nonzero(fuzzy.core(memberships))),
        "height": fuzzy.height(memberships),
        "fuzziness": fuzzy.fuzziness(memberships),
        "layers": [float(value) for value in memberships.sum(axis=1, dtype=np.float64)],
        "alpha": alpha,
        "alpha_cut": [{"id": f"text.{layer}.{index}", "membership": mu} for layer, index, mu in members],
    }
