"""The page of one latent of a sparse autoencoder (SAE)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app import figures_latents, formats, latentjobs, latentqueries
from app.arrays import unpack
from app.contexts import (
    Choice,
    FigureView,
    HeatCell,
    HistoryView,
    LatentPage,
    LatentRun,
    Shell,
    TokenBar,
)
from app.latentqueries import GatheredLatent, Ranked
from app.state import PageState
from app.tables import JobRow
from app.views import exact, heat, latents, seen
from app.views.neuron import near
from app.views.strip import visible

OTHER = "This latent belongs to a model that is not loaded now; what is stored of it is shown."


def page(
    around: Shell,
    revision: str,
    sae: Mapping[str, Any],
    index: int,
    gathered: GatheredLatent,
    limits: tuple[int, int],
    *,
    mine: bool,
) -> LatentPage:
    """`sae` as dataclasses.asdict(SaeInfo); `mine`: its model is loaded; `limits` = characters of label and note."""
    name, looked, note = f"sae.{sae['name']}.{index}", gathered.seen.job, gathered.note
    here = f"/latents/{revision}/{name}"
    found = gathered.seen.looked
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
    active = seen.view(gathered.seen, f"/latents/{revision}/survey", "latent", mine=mine)
    waits = mine and not gathered.waiting and found is None and (looked is None or looked.live)
    return LatentPage(
        shell=around,
        latent=name,
        about=f"latent {index} of {formats.thousands(sae['n_latents'])} at {latents.place_of(sae)}",
        here=here,
        other="" if mine else OTHER,
        live=waits or (mine and active.work.live),
        message=gathered.waiting if found is None and gathered.waiting else message,
        again=again,
        promoted=promoted,
        suppressed=suppressed,
        written_by=tuple(
            near(neuron, f"/neurons/{revision}/{neuron}", cosine, "") for neuron, cosine in found["written_by"]
        ) if found else (),
        alike=tuple(
            near(
                f"latent {other}", f"/latents/{revision}/sae.{sae['name']}.{other}", cosine,
                gathered.labels.get(other, ""),
            )
            for other, cosine in found["alike"]
        ) if found else (),
        runs=tuple(_run(*entry, index, here.removesuffix(str(index)), gathered.labels) for entry in gathered.ranked),
        searched=(
            f"Looked for in the newest {latentqueries.SEARCHED} rankings by this SAE. A ranking lists the first "
            f"{latentjobs.TOP} latents by influence, and by mean activation."
        ),
        seen=active,
        moves=tuple(
            Choice(label, f"/latents/{revision}/sae.{sae['name']}.{other}" if 0 <= other < sae["n_latents"] else "",
                   selected=False, value=f"sae.{sae['name']}.{other}")
            for label, other in (("← latent", index - 1), ("latent →", index + 1))
        ),
        label=note.label if note is not None else "",
        note=note.note if note is not None else "",
        limits=limits,
        history=_history([one for one, _, _ in gathered.ranked]),
    )  # fmt: skip


def _sides(found: Mapping[str, Any] | None) -> tuple[Any, Any]:
    return (found["promoted"], found["suppressed"]) if found else ((), ())


def _history(ranked: Sequence[Ranked]) -> HistoryView | None:
    """Newest last. Influences compare where the variant is the same, so that only the newest one's are drawn."""
    if not ranked:
        return None
    same = [one for one in reversed(ranked) if one.job.params["settings"] == ranked[0].job.params["settings"]]
    if len(same) < 2:
        return None
    names = [f"{k + 1}. {one.run.question[:60]}" for k, one in enumerate(same)]
    influence = [float(one.scores["influence"]) for one in same]
    activation = [float(one.scores["mean_activation"]) for one in same]
    variant = latents.in_words(same[-1].job.params["settings"])
    power, unit = formats.unit(max(influence))
    figure = FigureView(
        "history-figure", "Influence and mean activation of the latent in each run",
        figures_latents.history(names, [value / 10.0**power for value in influence], activation, unit),
        f"The {len(same)} newest runs that list it, newest last, each by the {variant}. Both axes begin at "
        "zero.",
    )  # fmt: skip
    rows = zip(names, map(formats.plain, influence), map(formats.plain, activation), strict=True)
    return HistoryView(figure, tuple(rows))


def _run(
    one: Ranked, blob: bytes | None, ablated: JobRow | None, index: int, path: str, labels: Mapping[int, str]
) -> LatentRun:
    """`path`: that of a latent's page, but for its index."""
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
        exact=exact.said(latentqueries.lost(ablated), index),
        beside=tuple(
            Choice(said, f"{path}{other}", selected=False, value=labels.get(other, ""))
            for said, other in zip(("more influential", "less influential"), one.beside, strict=True)
            if other is not None
        ),
    )
