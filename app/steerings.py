"""Steerings as values: JSON rows, form fields and words. λ and factors are rounded to 4 digits, so that one steering
has one spelling and one identity."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine.contract import (
    LAMBDA_RANGE,
    NEURON_VALUE_LIMIT,
    POSITIONS,
    ConceptTurn,
    NeuronTurn,
    RequestError,
    Steering,
    UnknownName,
    in_layers,
)

FACTOR_RANGE = (-4.0, 8.0)
VALUE_RANGE = (-NEURON_VALUE_LIMIT, NEURON_VALUE_LIMIT)
SYMBOLS = {"scale": "×", "add": "+", "set": "="}
"""How a neuron is edited, and the sign that stands for it."""
NEURON = re.compile(r"text\.(\d{1,4})\.(\d{1,6})")
LAYERS = re.compile(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?")
CONCEPT_FIELD, NEURON_FIELD, OPERATION_FIELD, VALUE_FIELD = "concept:", "neuron:", "operation:", "value:"


def to_json(steering: Steering) -> dict[str, Any]:
    """The canonical form: turns sorted, those that leave everything alone dropped; `layers` only where they limit."""
    concepts = sorted((turn.concept, round(turn.lam, 4)) for turn in steering.concepts)
    neurons = sorted((turn.layer, turn.index, turn.operation, round(turn.value, 4)) for turn in steering.neurons)
    value: dict[str, Any] = {
        "concepts": [[name, lam] for name, lam in concepts if lam],
        "neurons": [list(turn) for turn in neurons if (turn[2], turn[3]) not in (("scale", 1), ("add", 0))],
        "positions": steering.positions,
    }
    if steering.layers is not None and value["concepts"]:
        value["layers"] = list(steering.layers)
    return value


def from_json(value: Mapping[str, Any]) -> Steering:
    return Steering(
        tuple(ConceptTurn(name, lam) for name, lam in value["concepts"]),
        tuple(NeuronTurn(*turn) for turn in value["neurons"]),
        value["positions"],
        layers=tuple(value["layers"]) if value.get("layers") else None,
    )


def empty(value: Mapping[str, Any]) -> bool:
    return not value["concepts"] and not value["neurons"]


def from_form(fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The steering that a form asks for, in canonical form. Raises RequestError (names are checked later). A neuron's
    field `neuron:NAME` is its factor; where `operation:NAME` says `add` or `set`, it is what is added or set, unless a
    field `value:NAME` is there for that, whose emptiness leaves the neuron alone. `layers` is empty or FIRST-LAST, or
    comes as two fields, FIRST (empty: all layers) and LAST."""
    concepts: dict[str, float] = {}
    neurons: dict[tuple[int, int], tuple[str, float]] = {}
    positions = "all"
    fields = list(fields)
    operations = _of(OPERATION_FIELD, fields)
    values = _of(VALUE_FIELD, fields)
    for field, value in fields:
        if field.startswith(CONCEPT_FIELD):
            name = field.removeprefix(CONCEPT_FIELD)
            concepts[name] = _number(value, LAMBDA_RANGE, f"λ of {name}")
        elif field.startswith(NEURON_FIELD):
            name = field.removeprefix(NEURON_FIELD)
            operation = operations.get(name) or "scale"
            amount = value if operation == "scale" else values.get(name, value)
            if amount.strip() or name not in values:
                neurons[neuron(name)] = _edit(name, operation, amount)
        elif field == "positions":
            positions = value or "all"
    if positions not in POSITIONS:
        raise UnknownName(f"There is no choice of positions “{positions}”. Choose one of {', '.join(POSITIONS)}.")
    ends = [value.strip() for field, value in fields if field == "layers"]
    layers = layers_of("-".join(ends[:2]) if ends and ends[0] else "")
    return to_json(
        Steering(
            tuple(ConceptTurn(name, lam) for name, lam in concepts.items()),
            tuple(NeuronTurn(*place, operation, amount) for place, (operation, amount) in neurons.items()),
            positions,
            layers=layers,
        )
    )


def _of(prefix: str, fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The fields whose names begin so, by the rest of their names."""
    return {field.removeprefix(prefix): value for field, value in fields if field.startswith(prefix)}


def _edit(name: str, operation: str, value: str) -> tuple[str, float]:
    if operation not in SYMBOLS:
        raise UnknownName(f"A neuron can be turned by {', '.join(SYMBOLS)}, not by “{operation[:40]}”.")
    limits = FACTOR_RANGE if operation == "scale" else VALUE_RANGE
    return operation, _number(value, limits, f"The {'factor' if operation == 'scale' else 'value'} of {name}")


def layers_of(text: str) -> tuple[int, int] | None:
    """(first, last) of `FIRST-LAST` or one layer's number; None for '', all layers. Raises RequestError."""
    found = LAYERS.fullmatch(text.replace("–", "-"))
    if not text.strip():
        return None
    if found is None or int(found[1]) > int(found[2] or found[1]):
        raise RequestError(f"Layers are written FIRST-LAST, for example 2-4, or left empty for all; not “{text[:40]}”.")
    return int(found[1]), int(found[2] or found[1])


def neuron(name: str) -> tuple[int, int]:
    """(layer, index) of `text.LAYER.INDEX`. Raises UnknownName."""
    found = NEURON.fullmatch(name)
    if found is None:
        raise UnknownName(f"“{name}” is not a neuron. Neurons are written text.LAYER.INDEX, for example text.3.17.")
    return int(found[1]), int(found[2])


def verify(value: Mapping[str, Any], concepts: Iterable[str], model: Mapping[str, Any]) -> None:
    """Refuse concepts and neurons that this model does not have, naming near misses. Raises UnknownName."""
    known = set(concepts)
    for name, _ in value["concepts"]:
        if name not in known:
            raise unknown_concept(name, known)
    for layer, index, *_ in value["neurons"]:
        verify_neuron(layer, index, model)
    if value.get("layers"):
        first, last = value["layers"]
        in_layers((first, last), model["n_layers"])


def in_model(value: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """In the canonical form of this model: layers that are all its layers limit nothing."""
    whole = value.get("layers") == [0, model["n_layers"] - 1]
    return {name: part for name, part in value.items() if not (whole and name == "layers")}


def lacking(value: Mapping[str, Any], concepts: Iterable[str], model: Mapping[str, Any]) -> list[str]:
    """All that a steering names and this model does not have, a sentence each; what `verify` refuses one by one."""
    known, alone = set(concepts), {"concepts": (), "neurons": ()}
    parts = [{**alone, "concepts": (turn,)} for turn in value["concepts"]]
    parts += [{**alone, "neurons": (turn,)} for turn in value["neurons"]]
    parts += [{**alone, "layers": value["layers"]}] if value.get("layers") else []
    told = []
    for part in parts:
        try:
            verify(part, known, model)
        except RequestError as error:
            told.append(str(error))
    return told


def verify_neuron(layer: int, index: int, model: Mapping[str, Any]) -> None:
    if layer >= model["n_layers"] or index >= model["d_mlp"]:
        raise UnknownName(
            f"There is no neuron text.{layer}.{index} in this model: its layers go from 0 to {model['n_layers'] - 1}, "
            f"its indices from 0 to {model['d_mlp'] - 1}."
        )


def unknown_concept(name: str, known: Iterable[str]) -> UnknownName:
    listed = sorted(known)
    near = difflib.get_close_matches(name, listed, 3, 0.5)
    if near:
        return UnknownName(f"There is no concept “{name}”. Did you mean {' or '.join(near)}?")
    hint = f"Known are, for example, {', '.join(listed[:6])}." if listed else "This model has no concepts yet."
    return UnknownName(f"There is no concept “{name}”. {hint}")


def in_words(value: Mapping[str, Any] | None, neurons: int | None = None) -> str:
    """For example “traffic light λ −1 · text.3.17 × 0 · on the picture · 128 neurons”; '' for no steering."""
    if not value:
        return ""
    parts = [f"{name} λ {signed(lam)}" for name, lam in value["concepts"]]
    parts += [f"text.{layer}.{index} {edit(op, amount)}" for layer, index, op, amount in value["neurons"]]
    if value.get("layers"):
        first, last = value["layers"]
        parts.append(f"layer {first}" if first == last else f"layers {first}–{last}")
    if value["positions"] != "all":
        parts.append(f"{value['positions']} positions")
    if neurons is not None:
        parts.append(f"{neurons} neuron{'' if neurons == 1 else 's'}")
    return " · ".join(parts)


def edit(operation: str, value: float) -> str:
    """For example “× 0”, “= 2.5”, “− 3”."""
    sign, size = ("−", -value) if operation == "add" and value < 0 else (SYMBOLS[operation], value)
    return f"{sign} {number(size)}"


def number(value: float) -> str:
    """At most 4 digits, with a true minus sign."""
    return f"{value:.4g}".replace("-", "−")


def signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)


def _number(text: str, limits: tuple[float, float], what: str) -> float:
    low, high = limits
    try:
        value = float(text.replace("−", "-").replace(",", "."))
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise RequestError(f"{what} is “{text[:40]}”; it must be a number from {low:g} to {high:g}.")
    return value
