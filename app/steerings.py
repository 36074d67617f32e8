"""Steerings as values: JSON rows, form fields and words. λ and factors are rounded to 4 digits, so that one steering
has one spelling and one identity."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine.contract import LAMBDA_RANGE, POSITIONS, ConceptTurn, NeuronTurn, RequestError, Steering, UnknownName

FACTOR_RANGE = (-4.0, 8.0)
NEURON = re.compile(r"text\.(\d{1,4})\.(\d{1,6})")
CONCEPT_FIELD, NEURON_FIELD = "concept:", "neuron:"


def to_json(steering: Steering) -> dict[str, Any]:
    """The canonical form: turns sorted, those that leave everything alone dropped."""
    concepts = sorted((turn.concept, round(turn.lam, 4)) for turn in steering.concepts)
    neurons = sorted((turn.layer, turn.index, turn.operation, round(turn.value, 4)) for turn in steering.neurons)
    return {
        "concepts": [[name, lam] for name, lam in concepts if lam],
        "neurons": [list(turn) for turn in neurons if not (turn[2] == "scale" and turn[3] == 1)],
        "positions": steering.positions,
    }


def from_json(value: Mapping[str, Any]) -> Steering:
    return Steering(
        tuple(ConceptTurn(name, lam) for name, lam in value["concepts"]),
        tuple(NeuronTurn(*turn) for turn in value["neurons"]),
        value["positions"],
    )


def empty(value: Mapping[str, Any]) -> bool:
    return not value["concepts"] and not value["neurons"]


def from_form(fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The steering that a form asks for, in canonical form. Raises RequestError (names are checked later)."""
    concepts: dict[str, float] = {}
    neurons: dict[tuple[int, int], float] = {}
    positions = "all"
    for field, value in fields:
        if field.startswith(CONCEPT_FIELD):
            name = field.removeprefix(CONCEPT_FIELD)
            concepts[name] = _number(value, LAMBDA_RANGE, f"λ of {name}")
        elif field.startswith(NEURON_FIELD):
            name = field.removeprefix(NEURON_FIELD)
            neurons[neuron(name)] = _number(value, FACTOR_RANGE, f"The factor of {name}")
        elif field == "positions":
            positions = value or "all"
    if positions not in POSITIONS:
        raise UnknownName(f"There is no choice of positions “{positions}”. Choose one of {', '.join(POSITIONS)}.")
    return to_json(
        Steering(
            tuple(ConceptTurn(name, lam) for name, lam in concepts.items()),
            tuple(NeuronTurn(layer, index, "scale", factor) for (layer, index), factor in neurons.items()),
            positions,
        )
    )


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
    symbols = {"scale": "×", "add": "+", "set": "="}
    parts += [f"text.{layer}.{index} {symbols[op]} {number(amount)}" for layer, index, op, amount in value["neurons"]]
    if value["positions"] != "all":
        parts.append(f"{value['positions']} positions")
    if neurons is not None:
        parts.append(f"{neurons} neuron{'' if neurons == 1 else 's'}")
    return " · ".join(parts)


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
