"""What a sweep is, as values: the row of a steering panel that varies, what it takes, and its points as JSON.

A row is named as its form field is (`concept:NAME`, `neuron:text.L.I`, `latent:sae.SAE.I`). Only its own value differs
from one point to the next: λ of a concept, the factor of a neuron or a latent, or what a latent is set to.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app import steerings
from engine.contract import ConceptTurn, LatentTurn, NeuronTurn, RequestError, sweeps

CONCEPT_VALUES = tuple(step / 2 for step in range(-4, 9))
"""The slider's whole range, −2 … 4."""
NEURON_VALUES = tuple(step / 2 for step in range(9))
ASIDE = "2"
"""A λ and a factor that leaves nothing alone."""


def turn_of(row: str, sae: str = "", operation: str = "scale") -> ConceptTurn | NeuronTurn | LatentTurn:
    """A row's turn at the value that leaves alone. `sae`: the id of a latent's SAE, `operation` what is done to the
    latent. Raises RequestError."""
    name = name_of(row)
    if row.startswith(steerings.CONCEPT_FIELD) and name:
        return ConceptTurn(name, 0)
    if row.startswith(steerings.NEURON_FIELD):
        return NeuronTurn(*steerings.neuron(name), "scale", 1)
    if row.startswith(steerings.LATENT_FIELD):
        called, index = steerings.latent(name)
        return LatentTurn(sae or called, index, operation, 1)
    raise RequestError(
        f"There is no row “{row[:40]}” to sweep. Rows are named concept:NAME, neuron:text.LAYER.INDEX or "
        "latent:sae.SAE.INDEX."
    )


def turn_in(params: Mapping[str, Any]) -> ConceptTurn | NeuronTurn | LatentTurn:
    """The turn that a sweep of these parameters varies."""
    return turn_of(params["row"], params.get("sae", ""), params.get("operation", "scale"))


def spelled(row: str) -> str:
    """A row's one name: without the zeros that a neuron's numbers may begin with."""
    turn = turn_of(row)
    if isinstance(turn, LatentTurn):
        return f"{steerings.LATENT_FIELD}sae.{turn.sae}.{turn.index}"
    return row if isinstance(turn, ConceptTurn) else f"{steerings.NEURON_FIELD}text.{turn.layer}.{turn.index}"


def values_of(whole: Mapping[str, Any], row: str) -> tuple[float, ...]:
    """The values that the row takes, in the steering `whole` of a panel: a latent that is set goes from 0 to twice what
    it is set to. Raises RequestError where it is set to nothing, or too much for that."""
    turn, (_, operation, value) = turn_of(row), latent_in(whole, row)
    if not isinstance(turn, LatentTurn) or operation == "scale":
        return CONCEPT_VALUES if isinstance(turn, ConceptTurn) else NEURON_VALUES
    limit = steerings.VALUE_RANGE[1] / 2
    if not 0 < abs(value) <= limit:
        raise RequestError(
            f"A sweep of {name_of(row)} goes from 0 to twice its value, and that is {value:g}. Give it a value that is "
            f"not 0, of magnitude at most {limit:g}."
        )
    return tuple(sorted(float(f"{value * step / 4:.4g}") for step in range(9)))


def name_of(row: str) -> str:
    return row.partition(":")[2]


def whole(fields: Iterable[tuple[str, str]], row: str, ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The steering that a panel's fields ask for, with this row turned aside whatever it stands at (unless it is a
    latent that is set), in canonical form. `ids` of SAEs by name. Raises RequestError."""
    fields = list(fields)
    name, turn = name_of(row), turn_of(row)
    operation = dict(fields).get(f"{steerings.OPERATION_FIELD}{name}") or "scale"
    if isinstance(turn, LatentTurn) and operation == "set":
        return steerings.from_form(fields, ids)
    if not isinstance(turn, ConceptTurn) and operation != "scale":
        others = "scale or set" if isinstance(turn, LatentTurn) else "scale"
        raise RequestError(f"A sweep varies the factor, and {name} is turned by {operation}. Choose {others} for it.")
    return steerings.from_form([*fields, (row, ASIDE)], ids)


def around(steering: Mapping[str, Any], row: str) -> dict[str, Any]:
    """What is left of `whole` without the row; the layers that it keeps to stay."""
    turn = turn_of(row)
    if isinstance(turn, ConceptTurn):
        return {**steering, "concepts": [other for other in steering["concepts"] if other[0] != turn.concept]}
    if isinstance(turn, LatentTurn):
        others = [other for other in steering.get("latents", ()) if tuple(other[1:3]) != (turn.sae, turn.index)]
        return _with_latents(steering, others)
    others = [other for other in steering["neurons"] if tuple(other[:2]) != (turn.layer, turn.index)]
    return {**steering, "neurons": others}


def _with_latents(steering: Mapping[str, Any], latents: list[Any]) -> dict[str, Any]:
    rest = {name: part for name, part in steering.items() if name != "latents"}
    return {**rest, "latents": latents} if latents else rest


def latent_in(steering: Mapping[str, Any] | None, row: str) -> tuple[str, str, float]:
    """(its SAE's id, operation, value) of a latent's row in a steering; ('', 'set', 0) where it is not turned, and for
    rows of another kind."""
    turn = turn_of(row)
    if isinstance(turn, LatentTurn):
        for sae, name, index, operation, value in (steering or {}).get("latents", ()):
            if (name, index) == (turn.sae, turn.index):
                return sae, operation, value
    return "", "set", 0.0


def at(params: Mapping[str, Any], value: float) -> dict[str, Any]:
    """The whole steering of one point of a sweep, in canonical form."""
    turn, names = turn_in(params), steerings.sae_names(params["steering"])
    if isinstance(turn, LatentTurn):
        names[turn.sae] = steerings.latent(name_of(params["row"]))[0]
    return steerings.to_json(sweeps.varied(steerings.from_json(params["steering"]), turn, value), names)


def value_in(steering: Mapping[str, Any] | None, params: Mapping[str, Any]) -> float | None:
    """What a sweep's row stands at in a steering; None where a latent is not set."""
    turn, row = turn_in(params), params["row"]
    whole = steering or {"concepts": (), "neurons": ()}
    if isinstance(turn, ConceptTurn):
        return float(dict(whole["concepts"]).get(turn.concept, 0))
    if isinstance(turn, LatentTurn):
        sae, operation, value = latent_in(steering, row)
        if sae and operation == turn.operation:
            return value
        return None if sae or turn.operation == "set" else 1.0
    found = [value for *where, value in whole["neurons"] if tuple(where) == (turn.layer, turn.index, "scale")]
    return float(found[0]) if found else 1.0


def fields_of(steering: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A canonical steering as the form fields that ask for it."""
    fields = [(f"{steerings.CONCEPT_FIELD}{name}", repr(lam)) for name, lam in steering["concepts"]]
    for layer, index, operation, value in steering["neurons"]:
        name = f"text.{layer}.{index}"
        if operation != "scale":
            fields.append((f"{steerings.OPERATION_FIELD}{name}", operation))
        fields.append((f"{steerings.NEURON_FIELD}{name}", repr(value)))
    for sae, called, index, operation, value in steering.get("latents", ()):
        name = f"sae.{called}.{index}"
        fields.append((f"{steerings.SAE_FIELD}{name}", sae))
        if operation != "scale":
            fields.append((f"{steerings.OPERATION_FIELD}{name}", operation))
        fields.append((f"{steerings.LATENT_FIELD}{name}", repr(value)))
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
