"""Which neurons are turned for a question, and how far, without an oracle: the rules of RULES. Torch-free.

1. A rule gives weights to concepts (negative: down). It may read the question, the kinds of concepts that its kind of
   question is about, and the model's own first answer with the alternatives of its first token; never the right answer.
2. Weights and memberships make one number a neuron, v(n): for unions the largest membership, else Σ_c w_c μ_c(n). The
   at most MAX_SET neurons of largest |v| in the chosen layers are scaled by max(0, 1 + λ v) (METHODS.md §3).
3. A candidate is a concept whose name begins with the token's text: names of several tokens share what their first
   token has. The first answer's own concept is found by its whole name.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.concepts.fuzzy import Memberships
from engine.concepts.probes import find_form
from engine.evaluation.contract import Item, Setting
from engine.turns import MAX_SET, PLAIN, NeuronTurn, Steering

Flat = npt.NDArray[np.float32]
Source = tuple[tuple[int, float], ...] | tuple[str, ...]
"""What a rule's vector depends on: concepts with weights, or the kinds of concepts."""
Weights = dict[int, float]
"""Concept (its row in Known) → weight."""
CANDIDATES = 5


@dataclasses.dataclass(frozen=True)
class First:
    """What the model says by itself: its answer, and (text, probability) of the first token's alternatives."""

    text: str
    alternatives: tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """The concepts that may be turned: row k of `values` (concepts, n_layers · d_mlp) is `names[k]` of `kinds[k]`."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: Flat
    shape: tuple[int, int]

    def rows(self, groups: Sequence[str]) -> list[int]:
        """The concepts of these kinds."""
        return [k for k, kind in enumerate(self.kinds) if kind in groups]


def named(text: str, names: dict[int, str]) -> list[int]:
    """Those whose name (or plain plural) stands in the text as whole words, but not inside a longer one that does."""
    folded = text.casefold()
    found = {
        k: place
        for k, name in names.items()
        if name.casefold() in folded  # all that most names need
        for form in (name, f"{name}s", f"{name}es")
        if (place := find_form(text, form)) is not None
    }
    return [
        k
        for k, (start, end) in found.items()
        if not any(a <= start and end <= b and b - a > end - start for a, b in found.values())
    ]


def candidates(first: First, names: dict[int, str]) -> Weights:
    """Concepts that the model's first pass considers, by falling probability; those its answer names come first."""
    weights: Weights = {}
    own = named(first.text, names)
    for text, probability in first.alternatives:
        piece = text.strip().casefold()
        mine = [k for k in own if piece and names[k].casefold().startswith(piece)]
        if mine:
            for k in mine:
                weights[k] = max(weights.get(k, 0.0), probability)
            continue
        begins = [k for k, name in names.items() if piece and name.casefold().startswith(piece)]
        whole = [k for k in begins if names[k].casefold().split(" ")[0] == piece]
        for k in whole or begins:
            weights[k] = weights.get(k, 0.0) + probability / len(whole or begins)
    for k in own:
        weights.setdefault(k, first.alternatives[0][1] if first.alternatives else 1.0)
    order = sorted(weights, key=lambda k: (k not in own, -weights[k], k))
    return {k: weights[k] for k in order[:CANDIDATES]}


def _scaled(weights: Weights) -> Weights:
    top = max(weights.values(), default=1.0)
    return {k: weight / top for k, weight in weights.items()}


def _pair(found: Weights, up: int, down: int) -> Weights:
    ranked = list(found)
    return {ranked[up]: 1.0, ranked[down]: -1.0} if len(ranked) > 1 else {}


def balance(items: Sequence[Item], answers: Sequence[str], names: dict[int, str]) -> Weights:
    """Concepts that answers to these questions name more or less often than the right ones do: (right − said), the
    largest scaled to 1. Concepts that differ by one question only are left out."""
    gaps: Weights = {}
    for item, answer in zip(items, answers, strict=True):
        for text, sign in ((item.answers[0], 1.0), (answer, -1.0)):
            for k in named(text, names):
                gaps[k] = gaps.get(k, 0.0) + sign
    gaps = {k: gap for k, gap in sorted(gaps.items()) if abs(gap) > 1}
    top = max(map(abs, gaps.values()), default=1.0)
    return {k: gap / top for k, gap in gaps.items()}


BY_CANDIDATES: dict[str, Callable[[Weights], Weights]] = {
    "candidates": _scaled,
    "equal": lambda found: dict.fromkeys(found, 1.0),
    "contrast": lambda found: _pair(found, 0, 1),
    "doubt": lambda found: _pair(found, 1, 0),
}


class Chooser:
    """Neurons and factors for questions, from one set of concepts."""

    def __init__(self, known: Known, balances: dict[tuple[str, str], Weights] | None = None) -> None:
        self.known = known
        self.balances = balances if balances is not None else {}
        self._union = functools.cache(self._union_of)
        self._turned = functools.lru_cache(maxsize=4096)(self._turns)
        self.names_in = functools.cache(self._names_of)

    def _names_of(self, groups: tuple[str, ...]) -> dict[int, str]:
        """Concept → name, of the concepts of these kinds (of all, without any)."""
        rows = self.known.rows(groups) if groups else range(len(self.known.names))
        return {k: self.known.names[k] for k in rows}

    def weights(self, rule: str, item: Item, first: First) -> Weights:
        """The rule's concepts for this question; empty where it finds none."""
        names = self.names_in(item.groups or ("",))
        if rule in ("kind", "shared"):
            return dict.fromkeys(names, 1.0)
        if rule == "inhibit":
            return {k: -1.0 for k in range(len(self.known.names)) if k not in names}
        if rule == "balance":
            return self.balances.get(item.cell, {})
        if rule == "mentioned":
            return dict.fromkeys(named(item.question, self.names_in(())), 1.0)
        if rule == "answer":
            return dict.fromkeys(named(first.text, names), 1.0)
        return BY_CANDIDATES[rule](candidates(first, names))

    def steering(self, setting: Setting, item: Item, first: First, control: int | None = None) -> Steering:
        """The question's steering under a setting; PLAIN where the rule finds no concept. `control`: a seed for the
        same edits on random neurons of the same layers."""
        if item.bare and setting.positions == "image":
            return PLAIN
        if setting.rule in ("kind", "shared", "inhibit"):
            source: Source = item.groups
        else:
            source = tuple(self.weights(setting.rule, item, first).items())
        turns = self._turned(setting.rule, source, setting.lam, setting.layers, setting.map)
        return Steering((), turns, setting.positions, control) if turns else PLAIN

    def _union_of(self, rule: str, groups: tuple[str, ...]) -> tuple[Flat, Flat]:
        """v and what breaks its ties (Σ μ), of a rule that looks at the kind of question alone."""
        own = self.known.values[self.known.rows(groups)]
        if not len(own):
            return np.zeros(self.known.values.shape[1], np.float32), np.zeros(self.known.values.shape[1], np.float32)
        sums = own.sum(0)
        if rule == "shared":
            return np.asarray(sums / max(float(sums.max()), 1e-12), np.float32), sums
        if rule == "kind":
            return own.max(0), sums
        others = self.known.values[[k for k, kind in enumerate(self.known.kinds) if kind not in groups]]
        if not len(others):
            return np.zeros_like(sums), sums
        return -np.maximum(others.max(0) - own.max(0), 0), others.sum(0)

    def vector(self, rule: str, source: Source) -> tuple[Flat, Flat]:
        """(v, ties) over all neurons, flat."""
        if rule in ("kind", "shared", "inhibit"):
            return self._union(rule, source)
        total = np.zeros(self.known.values.shape[1], np.float32)
        for entry in source:
            assert not isinstance(entry, str)
            total += np.float32(entry[1]) * self.known.values[entry[0]]
        return total, total

    def _turns(self, rule: str, source: Source, lam: float, layers: str, kind: str) -> tuple[NeuronTurn, ...]:
        vector, ties = self.vector(rule, source)
        chosen = strongest(in_half(vector, layers, self.known.shape), ties)
        factor = np.sign(vector[chosen]) if kind == "crisp" else vector[chosen]
        d_mlp = self.known.shape[1]
        return tuple(
            NeuronTurn(int(n) // d_mlp, int(n) % d_mlp, "scale", max(0.0, 1 + lam * float(value)))
            for n, value in zip(chosen, factor, strict=True)
        )


def in_half(vector: Flat, layers: str, shape: tuple[int, int]) -> Flat:
    """The vector with the other half of the layers at zero."""
    if layers == "all":
        return vector
    kept = vector.reshape(shape).copy()
    half = shape[0] // 2
    kept[half:] = 0 if layers == "lower" else kept[half:]
    kept[:half] = 0 if layers == "upper" else kept[:half]
    return kept.ravel()


def strongest(vector: Flat, ties: Flat, limit: int = MAX_SET) -> npt.NDArray[np.int64]:
    """Flat indices of the at most `limit` neurons of largest |v| > 0; ties by larger |ties|, then by place."""
    order = np.lexsort((np.arange(len(vector)), -np.abs(ties), -np.abs(vector)))[:limit]
    return np.asarray(order[vector[order] != 0], np.int64)


def known_of(names: Sequence[str], kinds: Sequence[str], memberships: Sequence[Memberships]) -> Known:
    """Concepts as one matrix. Raises ValueError for none."""
    stacked = np.stack([entry.ravel() for entry in memberships]).astype(np.float32)
    shape = (memberships[0].shape[0], memberships[0].shape[1])
    return Known(tuple(names), tuple(kinds), stacked, shape)
