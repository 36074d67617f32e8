"""The card that ranks a run's latents: which of them the answer depends on, beside which fire.

Both orders are compared by their first tenths: a latent `fires` when its mean activation is among the highest tenth of
all that are active, and `matters` when its influence is.
"""

import dataclasses
import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from app import figures_latents, formats, latentjobs, latentqueries
from app.arrays import Floats, unpack
from app.contexts import (
    Choice,
    FigureView,
    LatentField,
    LatentHeat,
    LatentLine,
    LatentRow,
    LatentsView,
    MembershipView,
)
from app.state import address
from app.tables import JobRow, now
from app.views import exact, heat, progress, swap
from app.views.concepts import href as concept_href
from app.views.load import Loaded
from app.worker import Worker
from engine.contract import UnknownName, saes

SHOWN, SHORT = 10, 5
"""Rows before the folded ones, and lines of a short list."""
SITES = {"residual": "the stream after", "mlp": "the MLP of", "attention": "the attention of"}
LABELS = {
    "of": ("answer", {"answer": "the whole answer", "next": "its first token"}),
    "quantity": ("quantity", {"logprob": "log-probability", "probability": "probability"}),
    "keep_error": ("error term", {"kept": "kept", "dropped": "dropped"}),
    "bos": ("special positions", {"out": "left out", "in": "counted"}),
    "positive": ("positive part", {"entry": "of each entry", "mean": "of the mean"}),
}
TEACH = (
    "A sparse autoencoder (SAE) rewrites what is in one layer as a few active latents out of many, each more likely to "
    "mean one thing than a neuron is. Ranking asks of every latent how much the answer would lose without it: one run "
    "forwards and one back, for all of them."
)
WHY = (
    "The default: the log-probability of the whole answer, the unit of all other scores here; the error term kept, so "
    "that the answer stays the model’s own; special positions left out, because much fires there whatever was asked; "
    "the positive part of each entry, as it was published."
)
CERTAIN = 0.99
NEARLY = (
    "The answer is nearly certain, so that all influences are small: compare them with one another, and not with those "
    "of another run."
)
FIT = {
    "explained variance": "1 − Σ‖Z − Ẑ‖² / Σ‖Z − mean Z‖² over this input’s positions: how well the SAE reads it",
    "L0": "Latents that are active at a position, on average",
    "dead here": "Latents that are active at no position of this input",
    "with the SAE": "The answer’s quantity with the SAE in place",
    "active": "Latents that are active at a counted position",
}


def view(loaded: Loaded, worker: Worker, panel: str, at: dt.datetime | None = None) -> LatentsView:
    """`at`: the time that it is, for what is left of a running ranking."""
    job, run = loaded.latents, loaded.run
    usable = tuple(sae for sae in worker.saes if not sae.fits)
    mine = worker.info is not None and worker.info.revision == run.model_revision
    answered = bool(loaded.tokens)
    if job is None and not (usable and (mine or not run.model_revision) and (answered or run.live)):
        return LatentsView(present=False)
    live = job is not None and job.live
    state = loaded.state.but(latents=job.id) if job is not None and loaded.state.latents else loaded.state
    stream = (*state.pairs(), ("only", "latents"), ("panel", panel))
    params = job.params if job is not None else {}
    done = job is not None and job.state == "done" and bool(job.result)
    blank = LatentsView(
        present=True,
        waiting=not answered,
        live=live,
        events=address(f"/runs/{run.id}/events", stream) if not settled(loaded) else "",
        sub=_sub(params),
        teach=TEACH,
        why=WHY,
        action=f"/runs/{run.id}/latents",
        hidden=state.but(latents="", latent="").pairs(),
        fields=fields(usable, params),
        button="" if live or not usable or not mine else "Rank again" if job is not None else "Rank latents",
        message=progress.message(job, loaded.latents_place, at or now()) if job is not None else "",
        share=None if job is None or job.state == "running" else 0.0,
        cancel=f"/measurements/{job.id}/cancel" if job is not None and live and not job.stop_requested else "",
        error=job.error if job is not None and job.state == "failed" else "",
        fit=tuple((term, "…", about) for term, about in FIT.items()),
    )
    if not done or job is None:
        return blank
    made, lost = _ranked(loaded, job, blank), latentqueries.lost(loaded.exact)
    there = mine and params["sae"] in [sae.id for sae in usable]
    if mine and not there:
        made = _gone(made, params["name"], params["name"] in [sae.name for sae in worker.saes])
    return dataclasses.replace(
        made,
        exact=exact.view(state, run.id, job, loaded.exact, at, usable=there),
        swap=swap.view(loaded, job, panel) if there and made.rows else None,
        rows=exact.with_losses(made.rows, lost),
        folded=exact.with_losses(made.folded, lost),
    )


def _gone(made: LatentsView, name: str, another: bool) -> LatentsView:
    """A ranking by an SAE that is not attached; `another` has its name, and pages and turns by that name are its."""
    told = f"The SAE “{name}” of this ranking is not attached now" + (
        ", and another one has its name: these latents have no pages, and none can be turned." if another
        else ": none of its latents can be turned until it is attached again."
    )  # fmt: skip

    def rows(given: tuple[LatentRow, ...]) -> tuple[LatentRow, ...]:
        return tuple(dataclasses.replace(row, steer="", href="" if another else row.href) for row in given)

    def lines(given: tuple[LatentLine, ...]) -> tuple[LatentLine, ...]:
        return tuple(dataclasses.replace(line, href="" if another else line.href) for line in given)

    return dataclasses.replace(
        made,
        warnings=(told, *made.warnings),
        rows=rows(made.rows),
        folded=rows(made.folded),
        quiet=lines(made.quiet),
        loud=lines(made.loud),
    )


def settled(loaded: Loaded) -> bool:
    return not any(row is not None and row.live for row in (loaded.latents, loaded.exact))


def place_of(sae: Mapping[str, Any]) -> str:
    return f"{SITES.get(sae['site'], sae['site'])} layer {sae['layer']}"


def in_words(settings: Mapping[str, Any]) -> str:
    """A variant, beginning with what it is of."""
    said = {part: LABELS[part][1][_option(part, settings[part])] for part in LABELS}
    parts = [f"{said['quantity']} of {said['of']}"]
    parts += [f"{LABELS[part][0]} {said[part]}" for part in ("keep_error", "bos", "positive")]
    return ", ".join(parts)


def _option(part: str, value: Any) -> str:
    """The form's word for a part's value."""
    return next(said for said, means in latentjobs.FIELDS[part].items() if means == value)


def _sub(params: Mapping[str, Any]) -> str:
    return f"{params['name']} · {in_words(params['settings'])}" if params else ""


def fields(usable: tuple[saes.SaeInfo, ...], params: Mapping[str, Any]) -> tuple[LatentField, ...]:
    """The selects of an SAE and a variant, with those of `params` chosen."""
    chosen = dataclasses.asdict(saes.Settings()) | dict(params.get("settings", {}))
    named = params.get("sae", usable[0].id if usable else "")
    options = tuple(
        Choice(f"{sae.name} ({place_of(dataclasses.asdict(sae))})", "", selected=sae.id == named, value=sae.name)
        for sae in usable
    )
    made = [LatentField("sae", "SAE", options)] if options else []
    for part, (label, words) in LABELS.items():
        now_chosen = _option(part, chosen[part])
        listed = tuple(Choice(words[said], "", selected=said == now_chosen, value=said) for said in words)
        made.append(LatentField(latentjobs.field_of(part), label, listed))
    return tuple(made)


def _ranked(loaded: Loaded, job: JobRow, blank: LatentsView) -> LatentsView:
    result, arrays = job.result or {}, unpack(job.arrays) if job.arrays else {}
    points = arrays["points"] if "points" in arrays else np.zeros((3, 0), np.float32)
    index, influence, activation = points[0].astype(np.int64), points[1], points[2]
    listed, name = result["latents"], result["sae"]["name"]
    kind, place = _chosen(loaded, listed)
    latent = listed[place]["index"] if listed else None
    largest = max((one["influence"] for one in listed), default=0.0)
    power, unit = formats.unit(largest)
    bounds = tuple(_tenth(values) for values in (influence, activation))
    verdict, quiet, loud = _compared(influence, activation, (bounds[0], bounds[1]))
    path = f"/latents/{loaded.run.model_revision}/sae.{name}."

    def line(k: int) -> LatentLine:
        scores = (formats.plain(float(influence[k])), formats.plain(float(activation[k])))
        return LatentLine(f"sae.{name}.{index[k]}", f"{path}{index[k]}", *scores)

    def url(what: str) -> str:
        return loaded.state.url(loaded.run.id, latents=job.id, latent=what)

    rows = tuple(
        _row(loaded, result["sae"], one, k + 1, power, largest,
             url(f"influence:{one['index']}") if result["grid"] else "", selected=bool(result["grid"]) and k == place)
        for k, one in enumerate(listed)
    )  # fmt: skip
    return dataclasses.replace(
        blank,
        ranked=True,
        fit=_fit(result),
        warnings=(*result["fit"]["warnings"], *_certain(result)),
        figure=_figure(name, (index, influence, activation), (bounds[0], bounds[1]), latent, result["settings"]),
        verdict=verdict,
        unit=unit,
        rows=rows[:SHOWN],
        folded=rows[SHOWN:],
        quiet=tuple(line(k) for k in quiet),
        loud=tuple(line(k) for k in loud),
        drawn=_drawn(loaded, result, arrays, place, kind, url) if listed and result["grid"] else None,
        export=address(f"/runs/{loaded.run.id}/latents.json", (("job", job.id),)),
    )


def _row(
    loaded: Loaded, sae: Mapping[str, Any], one: Mapping[str, Any], rank: int, power: int, largest: float, href: str, *,
    selected: bool,
) -> LatentRow:  # fmt: skip
    latent = f"sae.{sae['name']}.{one['index']}"
    share = latentjobs.image_share(one["by_modality"])
    found = loaded.latent_concepts.get(one["index"])
    return LatentRow(
        rank=rank,
        latent=latent,
        index=one["index"],
        href=f"/latents/{loaded.run.model_revision}/{latent}",
        influence=formats.in_unit(one["influence"], power).lstrip("+"),
        bar=max(0.0, one["influence"]) / largest if largest > 0 else 0.0,
        activation=formats.three(one["mean_activation"]),
        image_share=share,
        image_percent=formats.percent(share),
        peak=formats.three(one["peak"]),
        heat=href,
        selected=selected,
        steer=loaded.state.url(loaded.run.id, add=(*(other for other in loaded.state.add if other != latent), latent)),
        label=loaded.latent_labels.get((sae["id"], one["index"]), ""),
        concept=_most(found),
        others=found[2] if found is not None else 0,
    )


def _most(found: tuple[str, float, int] | None) -> MembershipView | None:
    if found is None:
        return None
    concept, mu, _ = found
    return MembershipView(concept, mu, formats.membership(mu), concept_href(concept))


def _chosen(loaded: Loaded, listed: list[dict[str, Any]]) -> tuple[str, int]:
    """(what is drawn, which of the listed). Raises UnknownName for one that is not listed."""
    kind, _, wanted = loaded.state.latent.partition(":")
    if not wanted:
        return "influence", 0
    place = next((k for k, one in enumerate(listed) if one["index"] == int(wanted)), None)
    if place is None:
        raise UnknownName(f"Latent {wanted} is not among the {len(listed)} that are listed here. Choose one of these.")
    return kind, place


def _fit(result: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    fit, value = result["fit"], result["value"]
    unit = " nats" if result["settings"]["quantity"] == "logprob" else ""
    dead = "not finite" if fit["dead_share"] is None else formats.percent(fit["dead_share"])
    values = (
        "not defined" if fit["explained_variance"] is None else f"{fit['explained_variance']:.3f}".replace("-", "−"),
        "not finite" if fit["l0"] is None else f"{fit['l0']:.1f}",
        dead,
        "not finite" if value is None else f"{formats.plain(value)}{unit}",
        f"{formats.thousands(result['active'])} of {formats.thousands(result['sae']['n_latents'])}",
    )
    return tuple((term, said, about) for (term, about), said in zip(FIT.items(), values, strict=True))


def _certain(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What is said of an answer that nothing can make more probable."""
    value = result["value"]
    if value is None or value < (CERTAIN if result["settings"]["quantity"] == "probability" else math.log(CERTAIN)):
        return ()
    return (NEARLY,)


def _tenth(values: Floats) -> float:
    """The least value among the highest tenth (at least one)."""
    if not len(values):
        return 0.0
    return float(np.sort(values)[-max(1, len(values) // 10)])


def _compared(influence: Floats, activation: Floats, bounds: tuple[float, float]) -> tuple[str, list[int], list[int]]:
    """(how far the first tenths agree; the places of those that fire and do not matter, and of the reverse)."""
    if not len(influence):
        return "No latent is active at a counted position.", [], []
    matters = (influence >= bounds[0]) & (influence > 0)
    fires = activation >= bounds[1]
    both, count = int((matters & fires).sum()), int(fires.sum())
    share = formats.percent(both / max(1, count))
    many = f"Of the {count} latents that fire most" if count > 1 else "Of the one latent that fires most"
    said = f"{many}, {both} {'is' if both == 1 else 'are'} among those that matter most ({share})."
    quiet = np.flatnonzero(fires & (influence <= np.median(influence)))
    loud = np.flatnonzero(matters & (activation <= np.median(activation)))
    return (
        said,
        quiet[np.argsort(-activation[quiet], kind="stable")][:SHORT].tolist(),
        loud[np.argsort(-influence[loud], kind="stable")][:SHORT].tolist(),
    )


def _figure(
    name: str,
    points: tuple[Any, Floats, Floats],
    bounds: tuple[float, float],
    latent: int | None,
    settings: Mapping[str, Any],
) -> FigureView | None:
    index, influence, activation = points
    label = "Influence of each active latent against its mean activation"
    if not len(index):
        return FigureView("latents-figure", label, {}, "Nothing is active, so there is nothing to draw.")
    drawn = figures_latents.shown(influence, latentjobs.TOP)
    places = np.flatnonzero(index[drawn] == latent)
    figure = figures_latents.cloud(
        influence[drawn], activation[drawn], [f"sae.{name}.{k}" for k in index[drawn].tolist()], bounds,
        int(places[0]) if len(places) else None, " (nats)" if settings["quantity"] == "logprob" else "",
    )  # fmt: skip
    part = ""
    if len(drawn) < len(index):
        part = f" {formats.thousands(len(drawn))} of {formats.thousands(len(index))} active latents are drawn."
    low, largest = "", float(influence.max())
    if (below := int((influence < largest / 10**figures_latents.DECADES).sum())) or largest <= 0:
        low = f" On the lowest line: {formats.thousands(below or len(influence))} with next to no influence, or none."
    caption = (
        "Each point is an active latent; both axes are logarithmic. Dotted lines: the first tenth of each. Upper right "
        "fires and matters; lower right fires but does not matter; upper left matters though it fires little."
        f"{low}{part}"
    )
    return FigureView("latents-figure", label, figure, caption)


def _drawn(
    loaded: Loaded, result: Mapping[str, Any], arrays: Mapping[str, Floats], place: int, kind: str, url: Any
) -> LatentHeat | None:
    picture, stack = loaded.picture, "heats" if kind == "influence" else "activations"
    if picture is None or stack not in arrays or place >= len(arrays[stack]):
        return None
    one = result["latents"][place]
    latent, values = f"sae.{result['sae']['name']}.{one['index']}", arrays[stack][place]
    largest = float(np.abs(values).max(initial=0.0))
    what = "Signed influence" if kind == "influence" else "Activation"
    row, column = np.unravel_index(int(np.abs(values).argmax()), values.shape)
    strongest = f" Strongest patch: row {row + 1}, column {column + 1} ({formats.signed(float(values[row, column]))})."
    nothing = " It is zero at every patch." if not largest else ""
    return LatentHeat(
        latent=latent,
        src=heat.picture_src(picture.hash),
        width=picture.width,
        height=picture.height,
        alt=f"The picture asked about, under {latent}",
        cells=heat.cells(values, result["grid"], (picture.width, picture.height), largest),
        choices=tuple(
            Choice(name, url(f"{name}:{one['index']}"), selected=name == kind) for name in ("influence", "activation")
        ),
        scale=formats.plain(largest) if largest else "",
        caption=f"{what} of {latent} on the patches.{nothing or strongest}",
    )
