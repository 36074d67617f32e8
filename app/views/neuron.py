"""The neuron page: what it belongs to, what it says, when it is active, and what people wrote about it."""

from typing import Any

from app import exports, formats
from app.contexts import (
    AlikeNeuron,
    BelongsTo,
    Choice,
    LensView,
    NeuronPage,
    RankedRun,
    ReaderGroup,
    Shell,
    TokenBar,
)
from app.neuronqueries import Gathered, Place
from app.views import heat, seen
from app.views.latents import place_of
from app.views.neurons import image_share
from app.views.strip import visible

SHOWN = 12
"""Memberships that are shown; the others are folded."""


def page(around: Shell, place: Place, found: Gathered, loaded_revision: str, limits: tuple[int, int]) -> NeuronPage:
    mine = place.revision == loaded_revision
    belongs = tuple(
        BelongsTo(name, kind, f"/concepts/{exports.quoted(name)}", mu, formats.membership(mu), weak)
        for name, kind, mu, weak in found.memberships
    )
    active = seen.view(found.seen, f"/neurons/{place.revision}/survey", "neuron", mine=mine)
    waits = any(row is not None and row.live for row in (found.seen.job, found.readers))
    return NeuronPage(
        shell=around,
        neuron=place.neuron,
        about=f"layer {place.layer}, index {place.index}" + (f" · {found.model}" if found.model else ""),
        here=place.path,
        other="" if mine else "This neuron belongs to a model that is not loaded now; what is stored of it is shown.",
        moves=_moves(place, found.shape),
        label=found.note.label if found.note else "",
        note=found.note.note if found.note else "",
        limits=limits,
        memberships=belongs[:SHOWN],
        folded=belongs[SHOWN:],
        concepts=f"{len(belongs)} of {found.n_concepts} concepts",
        lens=_lens(place, found, mine=mine),
        seen=active,
        live=mine and (waits or active.work.live),
        readers=_readers(place, found),
        reading=_reading(found, mine=mine),
        runs=tuple(_run(*entry) for entry in found.runs),
    )


def _moves(place: Place, shape: tuple[int, int] | None) -> tuple[Choice, ...]:
    layers, indices = shape or (10**6, 10**7)
    steps = (
        ("← index", place.layer, place.index - 1), ("index →", place.layer, place.index + 1),
        ("↓ layer", place.layer - 1, place.index), ("layer ↑", place.layer + 1, place.index),
    )  # fmt: skip
    return tuple(
        Choice(
            label,
            f"/neurons/{place.revision}/text.{layer}.{index}" if 0 <= layer < layers and 0 <= index < indices else "",
            selected=False,
            value=f"text.{layer}.{index}",
        )
        for label, layer, index in steps
    )


def _lens(place: Place, found: Gathered, *, mine: bool) -> LensView:
    row, result = found.seen.job, found.seen.looked
    if result is None:
        message = "It is computed when the model that the neuron belongs to is loaded."
        if mine:
            message = "Reading the weights …" if row is None or row.live else f"It was not computed. {row.error}"
        again = f"{place.path}/look" if mine and row is not None and not row.live else ""
        return LensView(found.waiting or message, again, (), (), (), ())
    largest = max((abs(token["value"]) for side in ("promoted", "suppressed") for token in result[side]), default=0.0)
    sides = [
        tuple(
            TokenBar(visible(token["text"]), formats.signed(token["value"]), abs(token["value"]) / (largest or 1.0))
            for token in result[side]
        )
        for side in ("promoted", "suppressed")
    ]
    alike = tuple(
        near(neuron, f"/neurons/{place.revision}/{neuron}", cosine, found.labels.get(neuron, ""))
        for neuron, cosine in result["alike"]
    )
    return LensView("", "", sides[0], sides[1], alike, tuple(result["notes"]))


def _readers(place: Place, found: Gathered) -> tuple[ReaderGroup, ...]:
    result = found.readers.result if found.readers is not None and found.readers.state == "done" else None
    return tuple(
        ReaderGroup(
            sae["name"],
            place_of(sae),
            tuple(
                near(
                    f"latent {index}", f"/latents/{place.revision}/sae.{sae['name']}.{index}", cosine,
                    found.reading.get((sae["id"], index), ""),
                )
                for index, cosine in sae["latents"]
            ),
        )
        for sae in (result["saes"] if result is not None else ())
    )  # fmt: skip


def _reading(found: Gathered, *, mine: bool) -> str:
    """Why no SAE is listed, or ''."""
    row = found.readers
    if row is None:
        return "No SAE is attached to its model." if mine else "It is computed when its model is loaded."
    if row.state == "done":
        return ""
    return "Reading the encoders …" if row.live else f"It was not computed. {row.error}"


def near(name: str, href: str, cosine: float, label: str) -> AlikeNeuron:
    """A neuron or latent at some cosine."""
    return AlikeNeuron(name, href, f"{cosine:.2f}".replace("-", "−"), min(1.0, max(0.0, cosine)), label)


def _run(run: Any, picture: Any, row: Any, attribution: Any) -> RankedRun:
    return RankedRun(
        href=f"/runs/{run.id}",
        picture=heat.picture_src(picture.hash if picture else None),
        question=run.question,
        answer=run.answer["text"] if run.answer else "",
        rank=row.rank,
        score=formats.signed(row.score),
        polarity=formats.polarity(row.score),
        method=attribution.method,
        image=formats.percent(image_share(row)),
    )
