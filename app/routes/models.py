"""GET /models (the loaded model and its self-check) and GET /healthz."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from app import htmx, queries
from app.database import Reader
from app.services import Serving
from app.views.shell import model_page, shell

router = APIRouter()


@router.get("/models")
def show(services: Serving, session: Reader) -> Response:
    info = services.worker.info
    concepts = sum(count for _, count in queries.concept_kinds(session, info.revision)) if info else 0
    around = shell(services.worker, queries.queue_length(session), "Model", "model")
    return htmx.html(services.renderer.page(model_page(around, services.worker, concepts)))


@router.get("/model")
def moved() -> Response:
    return htmx.see_other("/models")


@router.get("/healthz")
def healthz(services: Serving, session: Reader) -> Response:
    """200 when questions are answered, 503 while the model loads or when it was refused."""
    worker = services.worker
    told = {
        "model": worker.state,
        "message": worker.message,
        "name": worker.info.name if worker.info else None,
        "queue": queries.queue_length(session),
    }
    return JSONResponse(told, 200 if worker.state == "ready" else 503, {"Cache-Control": "no-store"})
