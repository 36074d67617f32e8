"""Two states side by side, as figures: which neurons carried both, how much the rankings agree, and the same as JSON.

Neurons are compared by name within one model revision only: in another model the same name is another unit. Ranks,
overlap and evidence shares have no unit, so they are compared across methods too; scores and heat maps share a scale
where method and unit are the same.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from app import exports, steerings
from app.arrays import Floats
from app.views import heat_choice
from app.views.heat_choice import Found
from app.views.load import Loaded
from engine.contract import UnknownName, evidence_share, similarities, spearman, unit

LEADING = 10
"""Concepts that are listed."""
Name = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A neuron's `score` on one side, and its `rank` among all neurons there; 0 where the method left it out."""

    score: float
    rank: int


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """A neuron (layer, index) with its place on both sides."""

    name: Name
    a: Place
    b: Place

    @property
    def neuron(self) -> str:
        return f"text.{self.name[0]}.{self.name[1]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Overlap:
    """Of the `top` strongest neurons of each side, those of `both`, strongest on the weaker side first, and of one
    alone. `jaccard`: shared / all of them; `spearman`: of their scores, over the union; `similarity`: Σ min / Σ max of
    both sides' evidence shares, over all neurons."""

    top: int
    both: tuple[Carried, ...]
    only_a: tuple[Carried, ...]
    only_b: tuple[Carried, ...]
    jaccard: float
    spearman: float
    similarity: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two loaded states; `heat`, `top` and `own` as in `sides.Pair`."""

    a: Loaded
    b: Loaded
    heat: str
    top: int
    own: bool

    @property
    def waiting(self) -> bool:
        return self.a.waiting or self.b.waiting

    @property
    def same(self) -> bool:
        """Both sides explain the same target of the same run by the same method."""
        keys = [side.choice.key if side.choice is not None else "" for side in (self.a, self.b)]
        alike = self.a.run.id == self.b.run.id and self.a.state.method == self.b.state.method
        return alike and keys[0] == keys[1]

    @property
    def one_model(self) -> bool:
        return bool(self.a.run.model_revision) and self.a.run.model_revision == self.b.run.model_revision

    @property
    def comparable(self) -> bool:
        """Scores of both sides mean the same: the same method, in the same unit."""
        return self.a.state.method == self.b.state.method and unit_of(self.a) == unit_of(self.b)

    @property
    def one_scale(self) -> bool:
        """The scores of both sides are drawn on one scale."""
        return self.comparable and not self.own

    @property
    def ready(self) -> bool:
        """Both sides have an attribution."""
        return bool(self.a.summary and self.b.summary)

    @functools.cached_property
    def overlap(self) -> Overlap | None:
        """None where neurons cannot be compared, or are not there."""
        return _overlap(self) if self.one_model and self.ready else None

    @functools.cached_property
    def similarities(self) -> tuple[tuple[str, float | None, float | None], ...]:
        """(concept, its similarity to side a, to side b), those that lead on one side first; None = unknown there."""
        a, b = ({name: alike for name, _, alike in side.summary.get("concepts", ())} for side in (self.a, self.b))
        ordered = sorted({**a, **b}, key=lambda name: (-max(a.get(name, 0.0), b.get(name, 0.0)), name))
        return tuple((name, a.get(name), b.get(name)) for name in ordered)

    @property
    def concepts(self) -> tuple[tuple[str, float | None, float | None], ...]:
        """The first of `similarities`."""
        return self.similarities[:LEADING]

    @functools.cached_property
    def maps(self) -> tuple[Found, Found]:
        """Each side's heat map."""
        return _map(self.a, self.heat), _map(self.b, self.heat)

    @property
    def maps_comparable(self) -> bool:
        """Values of both heat maps mean the same: activations of one model do, whatever explains them."""
        return self.comparable or (self.one_model and self.heat.startswith("activation:"))

    @property
    def maps_share(self) -> bool:
        """The heat maps are drawn on one scale."""
        return self.maps_comparable and not self.own

    @functools.cached_property
    def largest(self) -> tuple[float, float]:
        """The largest |value| that each side's heat map is scaled by: of both together where they share a scale."""
        own = [float(np.abs(found.heat).max()) if found.heat is not None else 0.0 for found in self.maps]
        return (max(own), max(own)) if self.maps_share else (own[0], own[1])


def unit_of(side: Loaded) -> str:
    return unit(side.state.method, side.state.quantity)


def compare(a: Loaded, b: Loaded, heat: str, top: int, *, own: bool = False) -> Comparison:
    """Raises UnknownName for a heat map of what neither side's model has."""
    kind, _, name = heat.partition(":")
    models = [side.model for side in (a, b) if side.run.model]
    if kind == "concept" and models and name not in a.concepts and name not in b.concepts:
        raise steerings.unknown_concept(name, {*a.concepts, *b.concepts})
    if kind == "layer" and models and int(name) >= max(model["n_layers"] for model in models):
        raise UnknownName(f"There is no layer {name} on either side. Choose one of the list.")
    if kind in ("neuron", "activation") and models:
        steerings.verify_neuron(*steerings.neuron(name), max(models, key=lambda model: model["n_layers"]))
    return Comparison(a, b, heat, top, own)


def _map(side: Loaded, heat: str) -> Found:
    kind, _, name = heat.partition(":")
    if kind == "concept" and side.summary and name not in side.concepts:
        return Found(None, name, f"This side’s model knows no concept “{name}”.")
    if kind == "layer" and side.model and int(name) >= side.model["n_layers"]:
        last = side.model["n_layers"] - 1
        return Found(None, f"layer {name}", f"This side’s model has the layers 0 to {last} only.")
    return heat_choice.found(dataclasses.replace(side, state=side.state.but(heat=heat)))


def _overlap(pair: Comparison) -> Overlap:
    sides = (pair.a, pair.b)
    scores = [side.arrays["scores"] for side in sides]
    ranks = [_ranks(side, array) for side, array in zip(sides, scores, strict=True)]

    def place(side: int, name: Name) -> Place:
        score = float(scores[side][name])
        return Place(score, int(ranks[side][name]) if score else 0)

    listed = [[(row.layer, row.index) for row in side.neurons[: pair.top]] for side in sides]
    every = {name: Carried(name, place(0, name), place(1, name)) for name in dict.fromkeys([*listed[0], *listed[1]])}
    shared = [name for name in listed[0] if name in set(listed[1])]
    own = [float(np.abs(array).max(initial=0)) or 1.0 for array in scores]
    by = (max(own), max(own)) if pair.comparable else (own[0], own[1])
    both = sorted(
        (every[name] for name in shared),
        key=lambda one: (-min(abs(one.a.score) / by[0], abs(one.b.score) / by[1]), one.name),
    )
    shares = [evidence_share(array.ravel()) for array in scores]
    return Overlap(
        top=pair.top,
        both=tuple(both),
        only_a=tuple(every[name] for name in listed[0] if name not in shared),
        only_b=tuple(every[name] for name in listed[1] if name not in shared),
        jaccard=len(shared) / len(every) if every else 0.0,
        spearman=spearman([one.a.score for one in every.values()], [one.b.score for one in every.values()]),
        similarity=float(similarities(shares[0][None], shares[1])[0]),
    )


def _ranks(side: Loaded, scores: Floats) -> np.typing.NDArray[np.int64]:
    """(n_layers, d_mlp) rank from 1 by falling |score|, ties by (layer, index); those that are listed keep theirs."""
    order = np.argsort(-np.abs(scores.ravel()), kind="stable")
    ranks = np.argsort(order, kind="stable").reshape(scores.shape) + 1
    for row in side.neurons:
        ranks[row.layer, row.index] = row.rank
    return ranks


def as_json(pair: Comparison) -> dict[str, Any]:
    """The figures of the page; what is not there, or cannot be compared, is null."""
    overlap = pair.overlap
    return {
        "a": _side_as_json(pair.a),
        "b": _side_as_json(pair.b),
        "one_model": pair.one_model,
        "comparable": pair.comparable,
        "overlap": overlap
        and {
            "top": overlap.top,
            "shared": len(overlap.both),
            "jaccard": overlap.jaccard,
            "spearman": overlap.spearman,
            "similarity": exports.finite(overlap.similarity),
        },
        "neurons": overlap
        and {name: [_carried_as_json(one) for one in getattr(overlap, name)] for name in ("both", "only_a", "only_b")},
        "concepts": [{"name": name, "similarity_a": a, "similarity_b": b} for name, a, b in pair.concepts],
        "heatmap": {"of": pair.heat or "evidence", "largest": list(pair.largest)}
        | {
            letter: found.heat.tolist() if found.heat is not None else None
            for letter, found in zip("ab", pair.maps, strict=True)
        },
    }


def _carried_as_json(one: Carried) -> dict[str, Any]:
    sides = {"a": one.a, "b": one.b}
    return {"id": one.neuron} | {
        letter: {"score": exports.finite(place.score), "rank": place.rank or None} for letter, place in sides.items()
    }


def _side_as_json(side: Loaded) -> dict[str, Any]:
    run, grid = side.run, side.summary.get("grid")
    value = side.attribution.value if side.attribution is not None else None
    return {
        "run": run.id,
        "url": side.url,
        "state": run.state,
        "question": run.question,
        "picture": run.picture_hash,
        "answer": run.answer["text"] if run.answer else None,
        "steering": run.steering,
        "model": dict(side.model),
        "method": side.state.method,
        "unit": unit_of(side),
        "target": side.target_text or None,
        "target_tokens": list(side.span) if side.span else None,
        "value": exports.finite(value) if value is not None else None,
        "grid": {"rows": grid[0], "cols": grid[1], "box": grid[2]} if grid else None,
    }
