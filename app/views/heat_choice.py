"""Which heat map a state shows, what it means in words, and what else can be chosen."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from app import formats, steerings
from app.arrays import Floats, unpack
from app.contexts import Choice
from app.views.load import Loaded
from engine.contract import MAPPED, METHODS, unit

CONCEPTS_AT_HAND = 4
EVIDENCE = "what carried it"
"""What the heat map of the target's own fuzzy set is called on the page."""
SIDES, SIGNS = ("against", "for"), ("negative", "positive")
NO_MAP = {
    method: f"The {method} method scores only positions that predict the answer: it has no heat map of the picture. "
    "Choose gradient to see one."
    for method in METHODS
    if method not in MAPPED
} | {
    "ablation": "Ablation measures a neuron at all image positions together: it has no heat map of the picture. "
    "Choose gradient to see one."
}
CANCELS = "a layer's scores cancel"
"""The check that a result carries where the model normalises what an MLP wrote."""
EMPTY = "Every patch’s value is zero: there is nothing to draw."
CANCELLED = (
    "This model normalises what each MLP wrote, so the scores of a layer’s neurons cancel at every position: their map "
    "together is empty by construction. Single neurons, concepts and what carried it are meaningful."
)
SIGN = " Teal raises it, rust lowers it."


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The heat map (rows, cols) of a state and its grid, None where there is none: then `caption` says why. `shown`
    names it; `after` goes behind its strongest patch, whose value has `unit`. `failed`: its
    measurement can be tried again."""

    heat: Floats | None
    shown: str
    caption: str
    grid: Any = None
    unit: str = ""
    after: str = ""
    ends: tuple[str, str] = SIDES
    waiting: bool = False
    failed: bool = False


def found(loaded: Loaded) -> Found:
    heat, row = loaded.heat, loaded.attribution
    if heat == "off":
        return Found(None, "off", "The heat map is off.")
    if heat == "input":
        return _input(loaded)
    if row is not None and row.state == "failed":
        return Found(None, heat, row.error)
    if row is None or row.summary is None:
        caption = "" if loaded.waiting else "There is no heat map for this answer."
        return Found(None, heat, caption, waiting=loaded.waiting)
    if "heat" not in loaded.arrays:
        return Found(None, heat, NO_MAP.get(row.method, "This method draws no heat map."))
    return _of_attribution(loaded, row.summary)


def _of_attribution(loaded: Loaded, summary: Mapping[str, Any]) -> Found:
    kind, _, name = loaded.heat.partition(":")
    if kind == "activation":
        values, shown, caption = _of_neuron(loaded, "activation_heats", name)
    elif kind == "neuron":
        values, shown, caption = _of_neuron(loaded, "neuron_heats", name)
    elif kind == "concept":
        values, shown, caption = _of_concept(loaded, summary, name)
    elif kind == "layer":
        values, shown, caption = _of_layer(loaded, int(name))
    elif kind == "all":
        count = formats.thousands(loaded.model["n_layers"] * loaded.model["d_mlp"])
        caption = f"Net contribution of all {count} neurons together {_target(loaded)}."
        values, shown = loaded.arrays["heat"], "all neurons"
    else:
        values, shown = loaded.arrays.get("evidence_heat"), EVIDENCE
        caption = f"The neurons that carried “{loaded.target_text}”, each by its degree."
    if values is not None and not values.any():
        together = kind in ("all", "layer") and cancels(summary)
        return Found(None, shown, CANCELLED if together else f"{caption} {EMPTY}")
    if kind == "activation":
        after = " Teal is above zero, rust below."
        return Found(values, shown, caption, summary["grid"], after=after, ends=SIGNS)
    unit = unit_of(loaded, loaded.state.method)
    return Found(values, shown, caption, summary["grid"], unit, SIGN + left_out(loaded))


def cancels(summary: Mapping[str, Any]) -> bool:
    """A layer's scores sum to zero at every position, whatever they are."""
    return any(check == CANCELS for check, *_ in summary.get("checks", ()))


def _target(loaded: Loaded) -> str:
    return f"to “{loaded.target_text}”"


def unit_of(loaded: Loaded, method: str) -> str:
    """The unit of scores, to stand behind a number."""
    word = unit(method, loaded.choice.target.quantity if loaded.choice is not None else "logprob")
    return " nats" if word == "log-probability" else f" of the {word}"


def left_out(loaded: Loaded) -> str:
    kinds = loaded.choice.target.leave_out if loaded.choice is not None else ()
    return f" Positions left out: {' and '.join(kinds)}." if kinds else ""


def _of_neuron(loaded: Loaded, arrays: str, name: str) -> tuple[Floats | None, str, str]:
    layer, index = steerings.neuron(name)
    rank = next((n.rank for n in loaded.neurons if (n.layer, n.index) == (layer, index)), None)
    if rank is None:
        return None, name, f"{name} is not among the {len(loaded.neurons)} neurons that carried this answer most."
    if arrays not in loaded.arrays:
        return None, name, f"No activations on patches are kept with this attribution, so none is shown of {name}."
    if arrays == "activation_heats":
        words = f"Activation of {name} on each patch, in the model’s own units, whatever the target."
    else:
        words = f"Contribution of {name} {_target(loaded)}."
    return loaded.arrays[arrays][rank - 1], name, words


def _of_concept(loaded: Loaded, summary: Mapping[str, Any], name: str) -> tuple[Floats | None, str, str]:
    order = [concept for concept, *_ in summary["concepts"]]
    fact = loaded.concepts.get(name)
    if fact is None or name not in order:
        return None, name, f"This attribution was made with an earlier concept library, which has no {name}."
    # A heat map sums over every member; a steering turns MAX_SET of them at most.
    words = f"Contribution of {name} ({formats.thousands(fact.members)} neurons) {_target(loaded)}."
    return loaded.arrays["concept_heats"][order.index(name)], name, words


def _of_layer(loaded: Loaded, layer: int) -> tuple[Floats | None, str, str]:
    shown = f"layer {layer}"
    if "layer_heats" not in loaded.arrays:
        return None, shown, "No maps of single layers are kept with this attribution."
    count = formats.thousands(loaded.model["d_mlp"])
    words = f"Net contribution of all {count} neurons of layer {layer} together {_target(loaded)}."
    return loaded.arrays["layer_heats"][layer], shown, words


def _input(loaded: Loaded) -> Found:
    """Gradient × input of the image embeddings, a measurement of its own."""
    row = loaded.measured.get("input")
    if row is None or row.live:
        waiting = loaded.waiting or row is not None
        words = "The gradient at the patches’ embeddings is being computed." if waiting else ""
        return Found(None, "input", words or "There is no answer to explain.", waiting=waiting)
    if row.state != "done" or row.result is None:
        return Found(None, "input", row.error or "This map was cancelled.", failed=True)
    heats = unpack(row.arrays) if row.arrays else {}
    caption = f"How much each patch’s own embedding raises “{loaded.target_text}”, to first order."
    if "heat" not in heats:
        return Found(None, "input", row.result["note"])
    if not heats["heat"].any():
        return Found(None, "input", f"{caption} {EMPTY}")
    after = f"{SIGN}{left_out(loaded)} {row.result['note']}"
    return Found(heats["heat"], "input", caption, row.result["grid"], unit_of(loaded, "gradient"), after)


def choices(loaded: Loaded) -> tuple[Choice, ...]:
    """What carried it, the concepts at hand (weak ones last), whatever else is shown, all neurons, input, off."""
    state, shown = loaded.state, loaded.state.heat
    offered = [(EVIDENCE, "")]
    nearest = [name for name, *_ in loaded.summary.get("concepts", ()) if name in loaded.concepts]
    leading = sorted(nearest[: 2 * CONCEPTS_AT_HAND], key=lambda name: loaded.concepts[name].weak)
    offered += [(name, f"concept:{name}") for name in leading[:CONCEPTS_AT_HAND]]
    offered += [("all neurons", "all"), ("input", "input"), ("off", "off")]
    kind, _, name = shown.partition(":")
    if kind != "layer" and shown not in (value for _, value in offered):
        offered.insert(1, (name, shown))
    return tuple(Choice(label, state.url(loaded.run.id, heat=value), shown == value, value) for label, value in offered)


def layers(loaded: Loaded) -> tuple[Choice, ...]:
    """Options of a select; none while the model is unknown."""
    state = loaded.state
    values = [f"layer:{layer}" for layer in range(loaded.model.get("n_layers", 0))]
    return tuple(
        Choice(value.replace(":", " "), state.url(loaded.run.id, heat=value), state.heat == value, value)
        for value in values
    )


def switch(loaded: Loaded) -> tuple[Choice, ...]:
    """Of a neuron: its contribution or its activation."""
    kind, _, name = loaded.state.heat.partition(":")
    if kind not in ("neuron", "activation"):
        return ()
    return tuple(
        Choice(label, loaded.state.url(loaded.run.id, heat=f"{value}:{name}"), kind == value, value)
        for label, value in (("contribution", "neuron"), ("activation", "activation"))
    )
