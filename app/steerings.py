"""Steerings as values: JSON rows, form fields and words. λ and factors are rounded to 4 digits, so that one steering
has one spelling and one identity."""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app import formats
from engine.contract import (
    LAMBDA_RANGE,
    NEURON_VALUE_LIMIT,
    POSITIONS,
    ConceptTurn,
    LatentTurn,
    NeuronTurn,
    RequestError,
    Steering,
    UnknownName,
    in_layers,
    saes,
)

NAMED = 200
"""Characters of the longest name that is looked for."""
FACTOR_RANGE = (-4.0, 8.0)
VALUE_RANGE = (-NEURON_VALUE_LIMIT, NEURON_VALUE_LIMIT)
SYMBOLS = {"scale": "×", "add": "+", "set": "="}
"""How a neuron or a latent is edited, and the sign that stands for it."""
ALONE = (("scale", 1), ("add", 0))
"""Edits that leave it as it is."""
NEURON = re.compile(r"text\.(\d{1,4})\.(\d{1,6})")
LATENT = re.compile(r"sae\..+\.[0-9]{1,7}")
LAYERS = re.compile(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?")
CONCEPT_FIELD, NEURON_FIELD, LATENT_FIELD = "concept:", "neuron:", "latent:"
OPERATION_FIELD, VALUE_FIELD, SAE_FIELD = "operation:", "value:", "sae:"
Attached = Sequence[saes.SaeInfo] | None
"""The SAEs of the loaded model; None while it is loading."""


def to_json(steering: Steering, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The canonical form: turns sorted, those that leave everything alone dropped; `layers` only where they limit, and
    `latents` only where there are any, each as [SAE's id, its name, index, operation, value]. `names`: of SAEs, by
    id."""
    concepts = sorted((turn.concept, round(turn.lam, 4)) for turn in steering.concepts)
    neurons = sorted((turn.layer, turn.index, turn.operation, round(turn.value, 4)) for turn in steering.neurons)
    value: dict[str, Any] = {
        "concepts": [[name, lam] for name, lam in concepts if lam],
        "neurons": [list(turn) for turn in neurons if turn[2:] not in ALONE],
        "positions": steering.positions,
    }
    if steering.layers is not None and value["concepts"]:
        value["layers"] = list(steering.layers)
    called = names or {}
    latents = sorted(
        (turn.sae, called.get(turn.sae, turn.sae), turn.index, turn.operation, round(turn.value, 4))
        for turn in steering.latents
    )
    if kept := [list(turn) for turn in latents if turn[3:] not in ALONE]:
        value["latents"] = kept
    return value


def from_json(value: Mapping[str, Any]) -> Steering:
    return Steering(
        tuple(ConceptTurn(name, lam) for name, lam in value["concepts"]),
        tuple(NeuronTurn(*turn) for turn in value["neurons"]),
        value["positions"],
        layers=tuple(value["layers"]) if value.get("layers") else None,
        latents=tuple(LatentTurn(sae, *edit) for sae, _, *edit in value.get("latents", ())),
    )


def empty(value: Mapping[str, Any]) -> bool:
    return not value["concepts"] and not value["neurons"] and not value.get("latents")


def sae_names(value: Mapping[str, Any]) -> dict[str, str]:
    """What a canonical steering calls its SAEs, by id."""
    return {sae: name for sae, name, *_ in value.get("latents", ())}


def ids_of(attached: Attached) -> dict[str, str]:
    """Ids of SAEs by name."""
    return {sae.name: sae.id for sae in attached or ()}


def from_form(fields: Iterable[tuple[str, str]], ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The steering that a form asks for, in canonical form. Raises RequestError (names are checked later). A neuron's
    field `neuron:NAME` is its factor; where `operation:NAME` says `add` or `set`, it is what is added or set, unless a
    field `value:NAME` is there for that, whose emptiness leaves the neuron alone. So it is with a latent's, `latent:
    sae.SAE.INDEX`; its SAE's id is that of a field `sae:NAME`, or what `ids` say of the SAE's name, or else that name.
    `layers` is empty or FIRST-LAST, or comes as two fields, FIRST (empty: all layers) and LAST."""
    concepts: dict[str, float] = {}
    neurons: dict[tuple[int, int], tuple[str, float]] = {}
    latents: dict[tuple[str, int], tuple[str, float]] = {}
    names: dict[str, str] = {}
    positions = "all"
    fields = list(fields)
    edits = _Edits(_of(OPERATION_FIELD, fields), _of(VALUE_FIELD, fields))
    known = _of(SAE_FIELD, fields)
    for field, value in fields:
        kind, colon, name = field.partition(":")
        if kind + colon == CONCEPT_FIELD:
            concepts[name] = _number(value, LAMBDA_RANGE, f"λ of {formats.quoted(name)}")
        elif kind + colon == NEURON_FIELD and (edited := edits.of(name, value)) is not None:
            neurons[neuron(name)] = edited
        elif kind + colon == LATENT_FIELD and (edited := edits.of(name, value)) is not None:
            sae, index = latent(name)
            id_ = known.get(name) or (ids or {}).get(sae, sae)
            latents[id_, index], names[id_] = edited, sae
        elif field == "positions":
            positions = value or "all"
    if positions not in POSITIONS:
        raise UnknownName(f"There is no choice of positions “{positions[:40]}”. Choose one of {', '.join(POSITIONS)}.")
    ends = [value.strip() for field, value in fields if field == "layers"]
    layers = layers_of("-".join(ends[:2]) if ends and ends[0] else "")
    return to_json(
        Steering(
            tuple(ConceptTurn(name, lam) for name, lam in concepts.items()),
            tuple(NeuronTurn(*place, operation, amount) for place, (operation, amount) in neurons.items()),
            positions,
            layers=layers,
            latents=tuple(LatentTurn(*place, operation, amount) for place, (operation, amount) in latents.items()),
        ),
        names,
    )


@dataclasses.dataclass(frozen=True)
class _Edits:
    """What a form says of neurons and latents beside their own fields: operation and value, by name."""

    operations: Mapping[str, str]
    values: Mapping[str, str]

    def of(self, name: str, factor: str) -> tuple[str, float] | None:
        """(operation, value); None where an empty value leaves it alone."""
        operation = self.operations.get(name) or "scale"
        amount = factor if operation == "scale" else self.values.get(name, factor)
        return _edit(name, operation, amount) if amount.strip() or name not in self.values else None


def _of(prefix: str, fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The fields whose names begin so, by the rest of their names."""
    return {field.removeprefix(prefix): value for field, value in fields if field.startswith(prefix)}


def _edit(name: str, operation: str, value: str) -> tuple[str, float]:
    if operation not in SYMBOLS:
        raise UnknownName(f"A neuron or a latent can be turned by {', '.join(SYMBOLS)}, not by “{operation[:40]}”.")
    limits = FACTOR_RANGE if operation == "scale" else VALUE_RANGE
    what = "factor" if operation == "scale" else "value"
    return operation, _number(value, limits, f"The {what} of {formats.quoted(name)}")


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
        raise UnknownName(f"“{name[:40]}” is not a neuron. Neurons are written text.LAYER.INDEX, like text.3.17.")
    return int(found[1]), int(found[2])


def kind_of(name: str) -> str:
    """The form field of what is called so: a latent, a neuron, or else a concept."""
    if LATENT.fullmatch(name):
        return LATENT_FIELD
    return NEURON_FIELD if NEURON.fullmatch(name) else CONCEPT_FIELD


def latent(name: str) -> tuple[str, int]:
    """(SAE, index) of `sae.SAE.INDEX`. Raises UnknownName."""
    return saes.parse_latent(name)


def verify(value: Mapping[str, Any], concepts: Iterable[str], model: Mapping[str, Any], attached: Attached) -> None:
    """Refuse concepts, neurons and latents that this model does not have, naming near misses. Raises RequestError."""
    known = set(concepts)
    for name, _ in value["concepts"]:
        if name not in known:
            raise unknown_concept(name, known)
    for layer, index, *_ in value["neurons"]:
        verify_neuron(layer, index, model)
    for sae, name, index, *_ in value.get("latents", ()):
        verify_latent(sae, name, index, attached)
    if value.get("layers"):
        first, last = value["layers"]
        in_layers((first, last), model["n_layers"])


def verify_latent(sae: str, name: str, index: int, attached: Attached) -> None:
    """Refuse a latent of an SAE (its id and name) that does not stand on the loaded model. Raises RequestError."""
    if attached is None:
        raise RequestError("The model is still loading, so its SAEs are not known yet. Try again in a moment.")
    found = next((one for one in attached if one.id == sae), None)
    if found is None:
        raise unknown_sae(name, attached)
    if found.fits:
        raise RequestError(f"The SAE “{name}” cannot stand on the loaded model: {found.fits}")
    if index >= found.n_latents:
        raise UnknownName(
            f"There is no latent sae.{name}.{index}: the indices of this SAE go from 0 to {found.n_latents - 1}."
        )


def unknown_sae(name: str, attached: Sequence[saes.SaeInfo]) -> UnknownName:
    """Of an SAE that is not attached, or whose name another one has now."""
    names = sorted(one.name for one in attached if not one.fits)
    told = f"The SAE “{name[:80]}” is not attached to the loaded model."
    if name in names:
        return UnknownName(
            f"{told} Another one has its name now: attach that of the steering again, or remove its latents."
        )
    if near := difflib.get_close_matches(name, names, 3, 0.5):
        return UnknownName(f"{told} Did you mean {' or '.join(near)}?")
    return UnknownName(f"{told} " + (f"Attached: {', '.join(names)}." if names else "None is: attach one first."))


def in_model(value: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """In the canonical form of this model: layers that are all its layers limit nothing."""
    whole = value.get("layers") == [0, model["n_layers"] - 1]
    return {name: part for name, part in value.items() if not (whole and name == "layers")}


def lacking(
    value: Mapping[str, Any], concepts: Iterable[str], model: Mapping[str, Any], attached: Attached
) -> list[str]:
    """All that a steering names and this model does not have, a sentence each; what `verify` refuses one by one."""
    known, alone = set(concepts), {"concepts": (), "neurons": ()}
    parts = [{**alone, "concepts": (turn,)} for turn in value["concepts"]]
    parts += [{**alone, "neurons": (turn,)} for turn in value["neurons"]]
    parts += [{**alone, "latents": (turn,)} for turn in value.get("latents", ())]
    parts += [{**alone, "layers": value["layers"]}] if value.get("layers") else []
    told = []
    for part in parts:
        try:
            verify(part, known, model, attached)
        except RequestError as error:
            told.append(str(error))
    return list(dict.fromkeys(told))


def verify_neuron(layer: int, index: int, model: Mapping[str, Any]) -> None:
    if layer >= model["n_layers"] or index >= model["d_mlp"]:
        raise UnknownName(
            f"There is no neuron text.{layer}.{index} in this model: its layers go from 0 to {model['n_layers'] - 1}, "
            f"its indices from 0 to {model['d_mlp'] - 1}."
        )


def unknown_concept(name: str, known: Iterable[str]) -> UnknownName:
    listed = sorted(known)
    near, name = difflib.get_close_matches(name[:NAMED], listed, 3, 0.5), formats.quoted(name)
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
    parts += [f"sae.{name}.{index} {edit(op, amount)}" for _, name, index, op, amount in value.get("latents", ())]
    if value.get("layers"):
        first, last = value["layers"]
        parts.append(f"layer {first}" if first == last else f"layers {first}–{last}")
    if value["positions"] != "all":
        parts.append(f"{value['positions']} positions")
    if neurons is not None and not (value.get("latents") and neurons == 0):
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
