"""Rows of the steering panel for single neurons and latents."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from app import steerings
from app.contexts import Choice, NeuronTurnRow
from app.views.load import Loaded
from engine.contract import RequestError

SLIDER = (0.0, 4.0)
"""Factors that a slider reaches; all of steerings.FACTOR_RANGE once the present one lies outside."""
Latent = tuple[str, int]
"""SAE's id and index."""
Edit = tuple[str, float]
"""Operation and value."""


def neuron(loaded: Loaded, key: tuple[int, int], edit: Edit | None) -> NeuronTurnRow:
    peak = next((row.peak for row in loaded.neurons if (row.layer, row.index) == key), None)
    return _row(f"text.{key[0]}.{key[1]}", steerings.NEURON_FIELD, edit, peak)


def latent(
    loaded: Loaded, key: Latent, sae: str, edit: Edit | None, attached: steerings.Attached
) -> NeuronTurnRow:  # fmt: skip
    """`sae`: the name of its SAE."""
    name = f"sae.{sae}.{key[1]}"
    peak = next((one["peak"] for one in _listed(loaded, key[0]) if one["index"] == key[1]), None)
    lost = ""
    try:
        steerings.verify_latent(key[0], sae, key[1], attached)
    except RequestError as error:
        lost = str(error)
    return dataclasses.replace(
        _row(name, steerings.LATENT_FIELD, edit, peak),
        href=f"/latents/{loaded.run.model_revision}/{name}",
        label=loaded.latent_labels.get(key, ""),
        hidden=((f"{steerings.SAE_FIELD}{name}", key[0]),),
        lost=lost,
    )


def latents_of(value: dict[str, Any] | None) -> dict[Latent, tuple[str, Edit]]:
    """(SAE's name, edit) of the latents that a steering turns."""
    return {(sae, index): (name, (how, amount)) for sae, name, index, how, amount in (value or {}).get("latents", ())}


def ranked(loaded: Loaded, attached: steerings.Attached) -> tuple[str, ...]:
    """The names of the latents that this run's ranking lists, if its SAE is attached."""
    sae = next((one for one in attached or () if loaded.latents and one.id == loaded.latents.params["sae"]), None)
    return tuple(f"sae.{sae.name}.{one['index']}" for one in _listed(loaded, sae.id)) if sae is not None else ()


def _listed(loaded: Loaded, sae: str) -> Iterator[dict[str, Any]]:
    """What the ranking that the page shows has stored of the latents of this SAE."""
    job = loaded.latents
    if job is not None and job.result and job.params["sae"] == sae:
        yield from job.result["latents"]


def step(value: float) -> str:
    """Tenths, unless the value lies between them: a slider would round it, and post what nobody asked for."""
    return "0.1" if math.isclose(10 * value, round(10 * value), abs_tol=1e-6) else "any"


def _row(name: str, kind: str, edit: Edit | None, peak: float | None) -> NeuronTurnRow:
    how, amount = edit or ("scale", 1.0)
    factor = amount if how == "scale" else 1.0
    low, high = SLIDER if SLIDER[0] <= factor <= SLIDER[1] else steerings.FACTOR_RANGE
    return NeuronTurnRow(
        neuron=name,
        field=f"{kind}{name}",
        factor=f"{factor:g}",
        on=edit is not None,
        operations=tuple(Choice(known, "", known == how, known) for known in steerings.SYMBOLS),
        operation_field=f"{steerings.OPERATION_FIELD}{name}",
        value="" if how == "scale" else f"{amount:.8g}",
        value_field=f"{steerings.VALUE_FIELD}{name}",
        low=f"{low:g}",
        high=f"{high:g}",
        step=step(factor),
        says=steerings.edit(how, amount).replace(" ", "") if edit is not None else "",
        peak=steerings.number(peak) if peak is not None else "",
        usual=f"{peak or 1:.3g}",
    )
