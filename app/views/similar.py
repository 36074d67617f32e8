"""The page that shows all concepts beside one another: how similar they are, or how far each lies in another."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app import figures, formats
from app.conceptqueries import Alike
from app.contexts import Choice, PairRow, Shell, SimilarPage
from app.state import address
from app.views import sets
from app.views.concepts import href, kind_choices

PAIRS = 30
OF = ("similarity", "inclusion")
READ = {
    "similarity": "Σ min / Σ max of memberships, 0 to 1; similar concepts are neighbours.",
    "inclusion": "How far the concept of the row lies in that of the column: Σ min / Σ of the row’s memberships.",
}


def view(shell: Shell, beside: Alike | None, kinds: Sequence[Any], kept: set[str], kind: str, of: str) -> SimilarPage:
    """`kept`: names of the concepts to show."""

    def to(**changes: str) -> str:
        chosen = {"of": of if of != OF[0] else "", "kind": kind} | changes
        return address("/concepts/similar", [(name, value) for name, value in chosen.items() if value])

    places = [] if beside is None else [n for n in beside.order if beside.names[n] in kept]
    figure: dict[str, Any] = {}
    pairs: tuple[PairRow, ...] = ()
    if beside is not None and len(places) > 1:
        names = [beside.names[n] for n in places]
        values = (beside.inclusion if of == "inclusion" else beside.similarity)[np.ix_(places, places)]
        figure = figures.likeness(values, names, [sets.spelled(name) for name in names], of)
        pairs = tuple(_pairs(beside, places))
    return SimilarPage(
        shell=shell,
        of=of,
        measures=tuple(Choice(name, to(of=name if name != OF[0] else ""), of == name) for name in OF),
        kinds=kind_choices(kinds, kind, lambda name: to(kind=name)),
        figure=figure,
        caption=READ[of] + _fullest(figure),
        pairs=pairs,
        empty="" if figure else "There are no two concepts to compare. Choose another kind, or all.",
    )


def _fullest(figure: dict[str, Any]) -> str:
    return f" Full gold: {figure['data'][0]['zmax']} % and more." if figure else ""


def _pairs(beside: Alike, places: Sequence[int]) -> list[PairRow]:
    """The most similar pairs of these concepts, ties by their order."""
    upper = np.triu(beside.similarity[np.ix_(places, places)], 1).ravel()
    among = np.partition(upper, -PAIRS)[-PAIRS] if upper.size > PAIRS else 0.0
    able = np.flatnonzero((upper >= among) & (upper > 0))  # few are left to sort: a large library has many pairs
    made = []
    for n in able[np.argsort(-upper[able], kind="stable")[:PAIRS]]:
        i, j = (places[k] for k in divmod(int(n), len(places)))
        one, other = beside.names[i], beside.names[j]
        made.append(
            PairRow(
                one, href(one), other, href(other), float(beside.similarity[i, j]),
                formats.membership(float(beside.similarity[i, j])),
                formats.membership(float(beside.inclusion[i, j])),
                formats.membership(float(beside.inclusion[j, i])), sets.in_algebra(one, other),
            )
        )  # fmt: skip
    return made
