"""POST /runs/{id}/latents: rank a run's latents; the ranking as JSON; the page of a latent."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from app import errors, htmx, latentjobs, latentlooks, latentqueries, latents, notes, queries, state
from app.routes.runs import loaded_state, rendered
from app.routes.steering import fields, panel_of
from app.services import Services, Serving
from app.views import latent, latentconcepts, page
from app.views.shell import shell
from engine.contract import UnknownName, saes

router = APIRouter()
PATIENCE = 0.4
"""Seconds to wait for what is quick: most of it is there by then, and the page need not ask again."""
Form = Annotated[list[tuple[str, str]], Depends(fields)]


@router.post("/runs/{run_id}/latents")
def rank(request: Request, services: Serving, run_id: str, form: Form) -> Response:
    """The fields are those of a run's address, `sae`, and the variant's (see latentjobs.FIELDS)."""
    given = dict(form)
    shown = state.parse((name, value) for name, value in form if name in state.KNOWN)
    job_id = latents.rank(services, run_id, given.get("sae", ""), latentjobs.settings_of(given))
    target = shown.but(latents=job_id, latent="")
    if not htmx.is_htmx(request):
        return htmx.see_other(target.url(run_id))
    panel = panel_of(form) or page.new_panel()
    fragment = rendered(services, loaded_state(services, run_id, target), panel, ("latents",))["latents"]
    return htmx.html(fragment, headers={"HX-Replace-Url": target.url(run_id)})


@router.get("/runs/{run_id}/latents.json")
def as_json(services: Serving, run_id: str, job: str = "") -> Response:
    """The ranking `job`, or the newest. 202 while it is not there."""
    data, whole = latents.exported(services, run_id, job)
    return JSONResponse(data, 200 if whole else 202, headers={"Cache-Control": "no-cache"})


@router.get("/latents/{name}")
def of_the_loaded_model(services: Serving, name: str) -> Response:
    info = services.worker.info
    if info is None:
        raise errors.Missing("No model is loaded yet, so this name says nothing. Try again in a moment.")
    _find(services, info.revision, name)
    return htmx.see_other(f"/latents/{info.revision}/{name}")


@router.get("/latents/{revision}/{name}")
def show(services: Serving, revision: str, name: str) -> Response:
    """What is quick to know of a latent of the loaded model is looked up when it is first looked at."""
    sae, index, mine = _find(services, revision, name)
    if name != f"sae.{sae['name']}.{index}":
        return htmx.see_other(f"/latents/{revision}/sae.{sae['name']}.{index}")  # one spelling for one latent
    waiting = latentlooks.look(services, revision, sae, index, PATIENCE) if mine else ""
    with services.database.read() as session:
        found = latentlooks.gather(session, services, revision, sae, index, waiting)
        around = shell(services.worker, queries.queue_length(session), name, "model")
        made = latent.page(around, revision, sae, index, found, (notes.LABEL, notes.NOTE), mine=mine)
        belongs = latentconcepts.latentconcepts_view(session, sae["id"], index)
        return htmx.html(services.renderer.page(dataclasses.replace(made, concepts=belongs)))


@router.post("/latents/{revision}/{name}/look")
def look(services: Serving, revision: str, name: str) -> Response:
    """Look up again what failed."""
    sae, index, _ = _find(services, revision, name)
    latentlooks.again(services, revision, sae, index)
    return htmx.see_other(_path(revision, sae, index))


@router.post("/latents/{revision}/{name}/note")
def write(services: Serving, revision: str, name: str, form: Form) -> Response:
    """The fields are `label` and `note`; both empty: they are forgotten."""
    sae, index, _ = _find(services, revision, name)
    given = dict(form)
    latentlooks.write(services, sae, index, given.get("label", ""), given.get("note", ""))
    return htmx.see_other(_path(revision, sae, index))


@router.post("/latents/{revision}/survey")
def survey(services: Serving, revision: str, form: Form) -> Response:
    """Survey all latents of an SAE; `name` is the latent whose page to go back to."""
    sae, index, _ = _find(services, revision, dict(form).get("name", ""))
    latentlooks.survey(services, revision, sae)
    return htmx.see_other(f"{_path(revision, sae, index)}#seen")


@router.post("/runs/{run_id}/latents/exact")
def ablate(services: Serving, run_id: str, form: Form) -> Response:
    """Ablate the first latents of the ranking that `latents` names. The other fields are those of a run's address."""
    shown = state.parse((name, value) for name, value in form if name in state.KNOWN)
    return htmx.see_other(shown.but(latents=latentlooks.ablate(services, run_id, shown.latents)).url(run_id))


def _path(revision: str, sae: Mapping[str, Any], index: int) -> str:
    return f"/latents/{revision}/sae.{sae['name']}.{index}"


def _find(services: Services, revision: str, name: str) -> tuple[dict[str, Any], int, bool]:
    """(the SAE, the latent's index, whether its model is loaded). Raises Missing."""
    try:
        wanted, index = saes.parse_latent(name)
    except UnknownName as error:
        raise errors.Missing(str(error)) from None
    info, found = services.worker.info, None
    mine = info is not None and info.revision == revision
    if mine:
        sae = next((one for one in latents.usable(services) if one.name == wanted), None)
        found = dataclasses.asdict(sae) if sae is not None else None
    if found is None:
        mine = False
        with services.database.read() as session:
            found = latentqueries.known(session, revision, wanted)
    if found is None:
        raise errors.Missing(f"No SAE “{wanted[:40]}” of this model is known here. The attached ones are under /saes.")
    if index >= found["n_latents"]:
        raise errors.Missing(f"There is no latent {name[:60]}: indices go from 0 to {found['n_latents'] - 1}.")
    return found, index, mine
