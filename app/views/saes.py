"""The page of all sparse autoencoders (SAEs): what stands on the model, what could not be attached, and two forms."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from app import formats, saejobs, saeplaces, saeplans
from app.contexts import AttachForm, AttemptView, Choice, EvaluationLine, SaeCard, SaesPage, Shell, TrainForm
from app.saeplans import Draft
from app.services import Services
from app.tables import AttachedSae, JobRow, now
from app.views import latents
from engine.contract import saes

HOME, PLAN = "/saes", "/saes/plan"
MEASURED = {
    "explained_variance": "explained variance",
    "l0": "L0 (active at a position)",
    "dead_share": "dead latents",
    "positions": "positions these were measured at",
    "pictures": "pictures these were measured on",
    "trained_positions": "positions it was trained on",
    "trained_on": "trained on the model",
    "converted_from": "converted from the architecture",
}
"""Figures of a card, by what they are called on the page."""
ARCHITECTURES = {"topk": "TopK", "jumprelu": "JumpReLU", "standard": "standard (ReLU)"}
SITES = {
    "residual": "the stream after the layer",
    "mlp": "what its MLP writes",
    "attention": "what its attention writes",
}
DEFAULT = saes.Recipe(0)
HINTS = {
    "layer": "0 is the first",
    "n_latents": "usually 4 to 32 times the hidden size",
    "k": "active at a position: exactly of TopK, the aim of JumpReLU",
    "steps": "",
    "batch": "positions a step",
    "seed": "the same seed, the same SAE",
}
SOURCES = {
    saeplans.WORLD: "the built-in model’s little world",
    saeplans.FOLDER: "a folder of pictures with questions",
}


def page(
    around: Shell,
    services: Services,
    kept: Mapping[str, AttachedSae],
    tried: Mapping[str, Mapping[str, Any]],
    attempts: Sequence[JobRow],
    trainings: Sequence[JobRow],
    *,
    fresh: str = "",
    form: AttachForm | None = None,
) -> SaesPage:
    """`kept` = what people attached, and `tried` how it reads a sample, by id; `fresh` = the job that attached one just
    now; `form` = what was typed, with its error."""
    attached, info = services.worker.saes, services.worker.info
    empty = "" if attached else "No SAE is attached to the loaded model." if around.model_state == "ready" else (
        around.model_message or "No model is loaded."
    )  # fmt: skip
    shown = tuple(attempt(job) for job in attempts)
    live = any(one.live for one in shown)
    return SaesPage(
        around,
        tuple(
            card(
                dataclasses.replace(sae, source=saeplaces.shown(services.settings, sae.source)),
                tried.get(sae.id),
                detach=sae.id in kept,
                fresh=fresh == sae.id,
            )
            for sae in attached
        ),
        empty,
        attempts=shown,
        live=live,
        attach=form or attach_form(services),
        train=train_form(services, Draft()) if info is not None else None,
        trainings=tuple(line(job) for job in trainings),
    )


def card(sae: saes.SaeInfo, tried: Mapping[str, Any] | None, *, detach: bool = False, fresh: bool = False) -> SaeCard:
    """`tried` = the result of the job that attached or trained it (saejobs), if there was one."""
    kind = ARCHITECTURES.get(sae.architecture, sae.architecture) + (f", k = {sae.k}" if sae.k else "")
    facts = [
        ("latents", f"{formats.thousands(sae.n_latents)} over {formats.thousands(sae.d_model)} dimensions"),
        ("trained for", sae.model_revision or "its files do not say for which weights"),
    ]
    facts += [(MEASURED[key], _said(key, sae.card[key])) for key in MEASURED if sae.card.get(key) is not None]
    facts += [("source", sae.source), ("id", sae.id)]
    fit, sample = (tried or {}).get("fit"), ""
    warnings: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    if tried is not None:
        warnings = tuple(filter(None, (*((fit or {}).get("warnings") or ()), tried.get("note", ""))))
        sample = tried["sample"]
    if fit:
        figures = tuple(
            (MEASURED[key], _said(key, fit[key])) for key in ("explained_variance", "l0", "dead_share", "positions")
        )
    return SaeCard(
        name=sae.name,
        about=f"{kind}, at {latents.place_of(dataclasses.asdict(sae))}",
        facts=tuple(facts),
        refused=sae.fits,
        command=str(sae.card.get("command") or ""),
        id=sae.id,
        tried=figures,
        sample=sample,
        warnings=warnings,
        detach=f"{HOME}/detach" if detach else "",
        fresh=fresh,
    )


def _said(key: str, value: Any) -> str:
    if value is None:
        return "not finite"
    if not isinstance(value, (int, float)):
        return str(value)
    if key == "dead_share":
        return formats.percent(float(value))
    return formats.thousands(value) if isinstance(value, int) else f"{value:.3g}".replace("-", "−")


def attempt(job: JobRow) -> AttemptView:
    what = str(job.params.get("name") or job.params["path"])
    if job.live:
        waits = "It waits in the queue." if job.state == "queued" else "Its files are read, and it is tried."
        return AttemptView(what, waits, True, "", "")
    start = str(job.params["asked"]).startswith(saejobs.START)
    before = "It was attached, and could not be attached again at the start. " if start else ""
    url = f"{HOME}/attempts/{job.id}"
    return AttemptView(what, f"{before}{job.error}", False, f"{url}/again", f"{url}/forget")


def attach_form(services: Services, path: str = "", layer: str = "", site: str = "", error: str = "") -> AttachForm:
    return AttachForm(
        action=f"{HOME}/attach",
        path=path[: saeplaces.LONGEST],
        layer=layer[:10],
        sites=(Choice("as its files say", "", not site, value=""), *_sites(site)),
        where=saeplaces.in_words(services.settings),
        error=error,
    )


def _sites(chosen: str) -> tuple[Choice, ...]:
    return tuple(Choice(SITES[site], "", site == chosen, value=site) for site in saes.SITES)


def train_form(services: Services, draft: Draft) -> TrainForm:
    info = services.worker.info
    layers = info.n_layers if info is not None else 1
    builtin = info is not None and info.builtin
    usual = {name: str(getattr(DEFAULT, name)) for name in saeplans.NUMBERS} | {"layer": str(max(0, layers // 2 - 1))}
    source = draft.source or (saeplans.WORLD if builtin else saeplans.FOLDER)
    numbers = []
    for name, (label, low, high) in saeplans.NUMBERS.items():
        most = layers - 1 if name == "layer" else high
        said = label if len(label) == 1 else label[0].upper() + label[1:]  # k is a symbol
        numbers.append((name, said, getattr(draft, name) or usual[name], low, most, HINTS[name]))
    return TrainForm(
        action=PLAN,
        sites=_sites(draft.site or DEFAULT.site),
        architectures=tuple(
            Choice(ARCHITECTURES[name], "", name == (draft.architecture or DEFAULT.architecture), value=name)
            for name in saeplans.TRAINED
        ),
        numbers=tuple(numbers),
        name=draft.name,
        sources=tuple(
            Choice(words, "", name == source, value=name)
            for name, words in SOURCES.items()
            if builtin or name == saeplans.FOLDER
        ),
        folder=draft.folder,
        where=", ".join(str(root) for root in saeplaces.roots(services.settings)),
    )


def recipe_words(recipe: Mapping[str, Any]) -> str:
    kind = ARCHITECTURES[recipe["architecture"]]
    return (
        f"{kind}, {formats.thousands(recipe['n_latents'])} latents, k = {recipe['k']}, "
        f"{formats.thousands(recipe['steps'])} steps"
    )


def title(recipe: Mapping[str, Any]) -> str:
    return str(recipe["name"]) or latents.place_of(recipe).capitalize()


def line(job: JobRow) -> EvaluationLine:
    recipe, result = job.params["recipe"], ""
    if job.state == "done" and job.result:
        found = job.result["sae"]["card"].get("explained_variance")
        result = f"explains {formats.percent(found)}" if found is not None else ""
    elif job.total:
        result = f"{formats.percent(job.done / job.total)} done"
    return EvaluationLine(
        href=f"{HOME}/train/{job.id}",
        what=title(recipe),
        about=f"{latents.place_of(recipe)} · {recipe_words(recipe)}",
        state=job.state,
        gain=result,
        polarity="",
        when=formats.ago(job.queued, now()),
        when_iso=job.queued.isoformat(timespec="seconds"),
    )
