"""A run as JSON and as Python."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from app import exports, state
from app.routes.runs import loaded_state
from app.services import Serving
from engine.contract import RequestError

router = APIRouter()


@router.get("/runs/{run_id}.json")
def as_json(request: Request, services: Serving, run_id: str) -> Response:
    loaded = loaded_state(services, run_id, state.parse(request.query_params.multi_items()))
    # Not there yet: what is known is sent as *accepted*, so that nobody takes its empty lists for a result.
    status = 202 if loaded.waiting else 200
    return JSONResponse(exports.run_as_json(loaded), status, headers={"Cache-Control": "no-cache"})


@router.get("/runs/{run_id}.py")
def as_python(request: Request, services: Serving, run_id: str) -> Response:
    loaded = loaded_state(services, run_id, state.parse(request.query_params.multi_items()))
    if loaded.attribution is None:
        raise RequestError("This run has no attribution to reproduce yet. Wait until it is finished.")
    return PlainTextResponse(exports.python(loaded), media_type="text/x-python", headers={"Cache-Control": "no-cache"})
