"""What a sweep is, as values: the row of a steering panel that varies, what it takes, and its points as JSON.

A row is named as its form field is (`concept:NAME`, `neuron:text.L.I`). Only its own value differs from one point to
the next: λ of a concept, the factor of a neuron.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app import steerings
from engine.contract import ConceptTurn, NeuronTurn, RequestError, sweeps

CONCEPT_VALUES = tuple(step / 2 for step in range(-4, 9))
"""The slider's whole range, −2 … 4."""
NEURON_VALUES = tuple(step / 2 for step in range(9))
ASIDE = "2"
"""A λ and a factor that leaves nothing alone."""


def turn_of(row: str) -> ConceptTurn | NeuronTurn:
    """A row's turn at the value that leaves alone. Raises RequestError."""
    if row.startswith(steerings.CONCEPT_FIELD) and row != steerings.CONCEPT_FIELD:
        return ConceptTurn(row.removeprefix(steerings.CONCEPT_FIELD), 0)
    if row.startswith(steerings.NEURON_FIELD):
        return NeuronTurn(*steerings.neuron(row.removeprefix(steerings.NEURON_FIELD)), "scale", 1)
    raise RequestError(
        f"There is no row “{row[:40]}” to sweep. Rows are named concept:NAME or neuron:text.LAYER.INDEX."
    )


def spelled(row: str) -> str:
    """A row's one name: without the zeros that a neuron's numbers may begin with."""
    turn = turn_of(row)
    return row if isinstance(turn, ConceptTurn) else f"{steerings.NEURON_FIELD}text.{turn.layer}.{turn.index}"


def values_of(row: str) -> tuple[float, ...]:
    return CONCEPT_VALUES if isinstance(turn_of(row), ConceptTurn) else NEURON_VALUES


def name_of(row: str) -> str:
    return row.partition(":")[2]


def whole(fields: Iterable[tuple[str, str]], row: str) -> dict[str, Any]:
    """The steering that a panel's fields ask for, with this row turned aside whatever it stands at, in canonical form.
    Raises RequestError."""
    fields = list(fields)
    name, turn = name_of(row), turn_of(row)
    operation = dict(fields).get(f"{steerings.OPERATION_FIELD}{name}") or "scale"
    if isinstance(turn, NeuronTurn) and operation != "scale":
        raise RequestError(
            f"A sweep varies a neuron’s factor, and {name} is turned by {operation}. Choose scale for it."
        )
    return steerings.from_form([*fields, (row, ASIDE)])


def around(steering: Mapping[str, Any], row: str) -> dict[str, Any]:
    """What is left of `whole` without the row; the layers that it keeps to stay."""
    turn = turn_of(row)
    if isinstance(turn, ConceptTurn):
        return {**steering, "concepts": [other for other in steering["concepts"] if other[0] != turn.concept]}
    others = [other for other in steering["neurons"] if tuple(other[:2]) != (turn.layer, turn.index)]
    return {**steering, "neurons": others}


def at(steering: Mapping[str, Any], row: str, value: float) -> dict[str, Any]:
    """The whole steering of one point, in canonical form."""
    return steerings.to_json(sweeps.varied(steerings.from_json(steering), turn_of(row), value))


def value_in(steering: Mapping[str, Any] | None, row: str) -> float:
    """What a row stands at in a steering."""
    turn = turn_of(row)
    whole = steering or {"concepts": (), "neurons": ()}
    if isinstance(turn, ConceptTurn):
        return float(dict(whole["concepts"]).get(turn.concept, 0))
    found = [value for *place, op, value in whole["neurons"] if (*place, op) == (turn.layer, turn.index, "scale")]
    return float(found[0]) if found else 1.0


def fields_of(steering: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A canonical steering as the form fields that ask for it."""
    fields = [(f"{steerings.CONCEPT_FIELD}{name}", repr(lam)) for name, lam in steering["concepts"]]
    for layer, index, operation, value in steering["neurons"]:
        name = f"text.{layer}.{index}"
        if operation != "scale":
            fields.append((f"{steerings.OPERATION_FIELD}{name}", operation))
        fields.append((f"{steerings.NEURON_FIELD}{name}", repr(value)))
    fields.append(("positions", steering["positions"]))
    if steering.get("layers"):
        fields.append(("layers", "-".join(map(str, steering["layers"]))))
    return tuple(fields)


def as_json(points: Sequence[sweeps.SweepPoint]) -> list[dict[str, Any]]:
    """Log-probabilities in nats: `logprob` of the answer given at `value`, `original` of the default answer there; null
    where one is not finite."""
    return [
        {
            "value": point.value,
            "text": point.text,
            "ids": list(point.ids),
            "logprob": _finite(point.logprob),
            "original": _finite(point.original),
            "live": point.live,
        }
        for point in points
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
