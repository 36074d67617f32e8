"""The page of one latent, and the page of the attached sparse autoencoders (SAEs)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app import formats, latentjobs, latentqueries
from app.arrays import unpack
from app.contexts import AlikeNeuron, HeatCell, LatentPage, LatentRun, SaeCard, SaesPage, Shell, TokenBar
from app.latentqueries import Ranked
from app.state import PageState
from app.tables import JobRow
from app.views import heat, latents
from app.views.strip import visible
from engine.contract import saes

OTHER = "This latent belongs to a model that is not loaded now; what is stored of it is shown."
MEASURED = {
    "explained_variance": "explained variance",
    "l0": "L0 (active at a position)",
    "dead_share": "dead latents",
    "positions": "positions these were measured at",
    "pictures": "pictures these were measured on",
    "trained_positions": "positions it was trained on",
}
"""Figures of a card, by what they are called on the page."""


def page(
    around: Shell,
    revision: str,
    sae: Mapping[str, Any],
    index: int,
    looked: JobRow | None,
    ranked: Sequence[tuple[Ranked, bytes | None]],
    waiting: str,
    *,
    mine: bool,
) -> LatentPage:
    """`sae` as dataclasses.asdict(SaeInfo); `looked` = the job that looks it up; `waiting` = why there is none; `mine`:
    its model is loaded. `ranked` with each ranking's arrays."""
    name = f"sae.{sae['name']}.{index}"
    here = f"/latents/{revision}/{name}"
    found = looked.result if looked is not None and looked.state == "done" else None
    message, again = "", ""
    if found is None:
        message = "It is computed when the model that the latent belongs to is loaded."
        if mine:
            live = looked is None or looked.live
            message = "Reading the weights …" if live else f"It was not computed. {looked.error if looked else ''}"
            again = "" if live else f"{here}/look"
    largest = max((abs(value) for side in _sides(found) for *_, value in side), default=0.0) or 1.0
    promoted, suppressed = (
        tuple(TokenBar(visible(text), formats.signed(value), abs(value) / largest) for text, _, value in side)
        for side in _sides(found)
    )
    return LatentPage(
        shell=around,
        latent=name,
        about=f"latent {index} of {formats.thousands(sae['n_latents'])} at {latents.place_of(sae)}",
        here=here,
        other="" if mine else OTHER,
        live=mine and not waiting and found is None and (looked is None or looked.live),
        message=waiting or message,
        again=again,
        promoted=promoted,
        suppressed=suppressed,
        written_by=tuple(
            _near(neuron, f"/neurons/{revision}/{neuron}", cosine) for neuron, cosine in found["written_by"]
        ) if found else (),
        alike=tuple(
            _near(f"latent {other}", f"/latents/{revision}/sae.{sae['name']}.{other}", cosine)
            for other, cosine in found["alike"]
        ) if found else (),
        runs=tuple(_run(one, blob, index) for one, blob in ranked),
        searched=(
            f"Looked for in the newest {latentqueries.SEARCHED} rankings by this SAE. A ranking lists the first "
            f"{latentjobs.TOP} latents by influence, and by mean activation."
        ),
    )  # fmt: skip


def _sides(found: Mapping[str, Any] | None) -> tuple[Any, Any]:
    return (found["promoted"], found["suppressed"]) if found else ((), ())


def _near(name: str, href: str, cosine: float) -> AlikeNeuron:
    return AlikeNeuron(name, href, f"{cosine:.2f}".replace("-", "−"), min(1.0, max(0.0, cosine)), "")


def _run(one: Ranked, blob: bytes | None, index: int) -> LatentRun:
    result, scores = one.job.result or {}, one.scores
    arrays = unpack(blob) if blob is not None else {}
    cells: tuple[HeatCell, ...] = ()
    size = (one.picture.width, one.picture.height) if one.picture is not None else (0, 0)
    if one.picture is not None and result["grid"] and "heats" in arrays:
        drawn = arrays["heats"][one.place]
        cells = heat.cells(drawn, result["grid"], size, float(np.abs(drawn).max(initial=0.0)))
    rank = one.place + 1
    if "points" in arrays:  # what is listed for its activation stands behind others that are not
        rank = int((arrays["points"][1] > np.float32(scores["influence"])).sum()) + 1
    return LatentRun(
        href=PageState(latents=one.job.id, latent=f"influence:{index}").url(one.run.id),
        src=heat.picture_src(one.picture.hash if one.picture is not None else None),
        width=size[0],
        height=size[1],
        cells=cells,
        question=one.run.question,
        answer=one.run.answer["text"] if one.run.answer else "",
        rank=f"{rank} of {formats.thousands(result['active'])}",
        influence=formats.plain(scores["influence"]),
        activation=formats.plain(scores["mean_activation"]),
        image=formats.percent(latentjobs.image_share(scores["by_modality"])),
        variant=latents.in_words(result["settings"]),
    )


def saes_page(around: Shell, attached: Sequence[saes.SaeInfo]) -> SaesPage:
    empty = "" if attached else "No SAE is attached to the loaded model." if around.model_state == "ready" else (
        around.model_message or "No model is loaded."
    )  # fmt: skip
    return SaesPage(around, tuple(_card(sae) for sae in attached), empty)


def _card(sae: saes.SaeInfo) -> SaeCard:
    kind = f"TopK, k = {sae.k}" if sae.k else {"jumprelu": "JumpReLU"}.get(sae.architecture, sae.architecture)
    facts = [
        ("latents", f"{formats.thousands(sae.n_latents)} over {formats.thousands(sae.d_model)} dimensions"),
        ("trained for", sae.model_revision or "it does not say"),
    ]
    facts += [(MEASURED[key], _said(key, sae.card[key])) for key in MEASURED if sae.card.get(key) is not None]
    facts += [("source", sae.source), ("id", sae.id)]
    place = latents.place_of(dataclasses.asdict(sae))
    return SaeCard(sae.name, f"{kind}, at {place}", tuple(facts), sae.fits, str(sae.card.get("command") or ""))


def _said(key: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    if key == "dead_share":
        return formats.percent(float(value))
    return formats.thousands(value) if isinstance(value, int) else f"{value:.3g}"
