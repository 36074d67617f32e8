"""POST /saes/{sae}/concepts: have memberships of an SAE's latents in concepts made; and stop that."""

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import Response

from app import htmx, latentmaking
from app.services import Serving
from app.views.concepts import href

router = APIRouter()
Typed = Annotated[str, Form()]


@router.post("/saes/{sae}/concepts")
def make(services: Serving, sae: str, concept: Typed = "", probes: Typed = "") -> Response:
    """`concept` = one concept's name; without it, all that lack memberships. `probes` = of each concept of the built-in
    world."""
    latentmaking.make(services, sae, concept, probes)
    return htmx.see_other(_page(concept))


@router.post("/saes/{sae}/concepts/{job_id}/cancel")
def cancel(services: Serving, sae: str, job_id: str) -> Response:
    row = latentmaking.cancel(services, job_id)
    return htmx.see_other(_page(row.params["concept"]))


def _page(concept: str) -> str:
    return f"{href(concept)}#concept-latents" if concept else "/saes#memberships"
