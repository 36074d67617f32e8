"""The page of concept algebra: an expression over concepts, and the fuzzy set that it gives.

What an expression means is engine.concepts.algebra; here are its numbers in words, and which laws do not hold in the
chosen family, shown on this very case.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app import formats
from app.contexts import (
    AlgebraPage,
    Choice,
    MistakeView,
    OperandView,
    ResultMember,
    ResultView,
    Shell,
    VennPart,
)
from app.state import address
from app.views import sets
from app.views.concepts import href, set_as_json
from engine.contract import Floats, RequestError, concepts

fuzzy, algebra = concepts.fuzzy, concepts.algebra
TOLERANCE = 1e-4
"""Differences of two cardinalities below this part are rounding."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What an address of the page asks for."""

    text: str = ""
    family: str = "min-max"
    alpha: float = sets.ALPHA

    def url(self, **changes: Any) -> str:
        chosen = dataclasses.replace(self, **changes)
        pairs = [("expression", chosen.text)]
        pairs += [("family", chosen.family)] if chosen.family != "min-max" else []
        pairs += [("alpha", f"{chosen.alpha:g}")] if chosen.alpha != sets.ALPHA else []
        return address("/algebra", pairs)


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluated:
    """An expression with the memberships of its operands by name, in their order, and of its result."""

    expression: concepts.algebra.Expression
    operands: Mapping[str, Floats]
    memberships: Floats


def page(
    shell: Shell,
    asked: Asked,
    names: Sequence[str],
    model_revision: str,
    found: Evaluated | None,
    error: RequestError | None = None,
    save: tuple[str, str] = ("", ""),
) -> AlgebraPage:
    """`found`: None where nothing is asked, or `error` says why not. `save` = (name, why it was refused)."""
    return AlgebraPage(
        shell=shell,
        expression=asked.text,
        family=asked.family,
        alpha=f"{asked.alpha:.2f}",
        families=tuple(Choice(name, asked.url(family=name), name == asked.family, name) for name in fuzzy.FAMILIES),
        family_words=fuzzy.FAMILIES[asked.family].words,
        names=tuple(names),
        suggestions=_suggestions(names),
        mistake=_mistake(asked.text, error) if error is not None else None,
        result=_result(found, asked, model_revision) if found is not None else None,
        save_name=save[0],
        save_error=save[1],
    )


def _suggestions(names: Sequence[str]) -> tuple[Choice, ...]:
    if len(names) < 2:
        return ()
    first, second = (sets.spelled(name) for name in (names[0], names[-1]))
    offered = (f"{first} AND {second}", f"{first} OR {second}", f"{first} AND NOT {second}")
    return tuple(Choice(text, Asked(text).url(), selected=False) for text in offered)


def _mistake(text: str, error: RequestError) -> MistakeView:
    """Where the error has a place, what stands there is marked: a word, or the end."""
    at = getattr(error, "at", None)
    if at is None:
        return MistakeView(text, "", "", str(error))
    rest = text[at:]
    length = len(rest.split()[0]) if rest.strip() and not rest[0].isspace() else 1
    return MistakeView(text[:at], rest[:length] or " ", rest[length:], str(error))


def _result(found: Evaluated, asked: Asked, model_revision: str) -> ResultView:
    memberships, operands = found.memberships, found.operands
    return ResultView(
        spelled=str(found.expression),
        facts=sets.facts(memberships),
        words=sets.cut_words(memberships, asked.alpha),
        layers=sets.layer_bars(memberships, asked.alpha),
        operands=tuple(
            OperandView(name, href(name), f"Σμ {sets.amount(fuzzy.cardinality(mu))}") for name, mu in operands.items()
        ),
        members=tuple(
            ResultMember(
                rank, f"text.{layer}.{index}", mu, formats.membership(mu),
                tuple((float(of[layer, index]), formats.membership(of[layer, index])) for of in operands.values()),
                sets.neuron_href(model_revision, layer, index),
            )
            for rank, (layer, index, mu) in enumerate(sets.cut_members(memberships, asked.alpha), start=1)
        ),
        venn=_venn(list(operands.items())),
        laws=_laws(found, asked.family),
    )  # fmt: skip


def _venn(operands: Sequence[tuple[str, Floats]]) -> tuple[VennPart, ...]:
    """Of two operands: what only the first has, both, only the second (Σ min, whatever the family)."""
    if len(operands) != 2:
        return ()
    (one, mu), (other, nu) = operands
    parts = list(venn(mu, nu))
    whole = sum(parts) or 1.0
    starts = [0.0, parts[0] / whole, (parts[0] + parts[1]) / whole]
    labels = ((f"only {one}", "one"), ("both", "both"), (f"only {other}", "other"))
    return tuple(
        VennPart(label, sets.amount(part), start, part / whole, kind)
        for (label, kind), part, start in zip(labels, parts, starts, strict=True)
    )


def venn(mu: Floats, nu: Floats) -> tuple[float, float, float]:
    """Σμ that only the first has, that both have (Σ min), and that only the second has."""
    both = float(np.minimum(mu, nu).sum(dtype=np.float64))
    return fuzzy.cardinality(mu) - both, both, fuzzy.cardinality(nu) - both


def _laws(found: Evaluated, family: str) -> tuple[str, ...]:
    """Laws of crisp sets that the family breaks on this expression's own result A, or its first operand."""
    operations, (name, one) = fuzzy.FAMILIES[family], next(iter(found.operands.items()))
    spelled, size, notes = sets.spelled(name), fuzzy.cardinality(one), []

    def differs(value: float, expected: float) -> bool:
        return abs(value - expected) > TOLERANCE * max(1.0, expected)

    for word, combine in (("AND", operations.intersection), ("OR", operations.union)):
        again = fuzzy.cardinality(combine(one, one))
        if differs(again, size):
            notes.append(
                f"Not idempotent: {spelled} {word} {spelled} has Σμ {sets.amount(again)}, {spelled} alone "
                f"{sets.amount(size)}."
            )
    rest = fuzzy.cardinality(operations.intersection(one, operations.complement(one)))
    if differs(rest, 0.0):
        notes.append(
            f"{spelled} AND NOT {spelled} is not empty: Σμ {sets.amount(rest)}. A neuron may belong to a concept and "
            "to its complement by degree."
        )
    return tuple(notes)


def as_json(found: Evaluated, asked: Asked) -> dict[str, Any]:
    """The result as data. `venn` only of two operands."""
    pair = list(found.operands.values())
    return {
        "expression": str(found.expression),
        "family": asked.family,
        "operands": {name: fuzzy.cardinality(mu) for name, mu in found.operands.items()},
        "venn": dict(zip(("only_first", "both", "only_second"), venn(*pair), strict=True)) if len(pair) == 2 else None,
        **set_as_json(found.memberships, asked.alpha),
    }
