"""Every error becomes a page, a fragment for htmx, or JSON for a path that ends in .json: what happened, what to do."""

import logging
import re
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from app import htmx, owning, presets, queries, runs
from app.contexts import ErrorPage
from app.services import Services
from app.uploads import BadPicture, TooLarge
from app.views.shell import shell
from engine.contract import NonFinite, RequestError

log = logging.getLogger("sfumato")


class Refusal(HTTPException):
    """A request that is refused before any route sees it. (FastAPI lets an HTTPException pass that comes up while it
    reads a body, and calls all others a bad request.)"""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(status, message)
        self.remedy = remedy


class Missing(Exception):
    """There is nothing of this name."""


class Told(NamedTuple):
    """What a person is told about an error."""

    status: int
    headline: str
    message: str
    remedy: str = ""


def install(app: FastAPI) -> None:
    for kind in (HTTPException, RequestValidationError, *(kind for kind, _ in KINDS)):
        app.add_exception_handler(kind, _handle)


KINDS: tuple[tuple[type[Exception], Told], ...] = (
    (TooLarge, Told(413, "That is too large", "")),
    (BadPicture, Told(422, "That picture cannot be used", "")),
    (Missing, Told(404, "There is no such thing", "")),
    (owning.NoSuchConcept, Told(404, "No such concept", "", "All concepts are listed under Concepts.")),
    (presets.NoSuchPreset, Told(404, "No such preset", "", "All presets are listed under Concepts, Presets.")),
    (runs.NoSuchRun, Told(404, "No such run", "", "It may belong to another database. All runs are listed.")),
    (runs.QueueFull, Told(503, "The queue is full", "")),
    (runs.NoModel, Told(503, "No model is loaded", "", "Start the server with another model: --model NAME.")),
    (RequestError, Told(422, "That cannot be asked", "")),
    (NonFinite, Told(500, "The model’s numbers broke down", "")),
)
"""The first kind that fits; the error's own words are the message."""


def tell(error: Exception) -> Told:
    """What to say about an error. An unknown one is a fault of ours: 500, with the details in the log only."""
    if isinstance(error, Refusal):
        return Told(error.status_code, "This request is refused", error.detail, error.remedy)
    if isinstance(error, RequestValidationError):
        fields = ", ".join(str(problem["loc"][-1]) for problem in error.errors()) or "body"
        return Told(422, "That cannot be asked", f"The request’s {fields} cannot be read.")
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return Told(404, "There is no such page", "Nothing is found at this address.", "Check it, or start anew.")
        return Told(error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail))
    for kind, told in KINDS:
        if isinstance(error, kind):
            return told._replace(message=str(error))
    return Told(500, "Something went wrong here", "The server met an error; its log holds the details.")


def respond(request: Request, error: Exception) -> Response:
    """Reads the database: call it in a thread of its own, not on the event loop."""
    told = tell(error)
    if told.status >= 500 and not isinstance(error, runs.QueueFull | runs.NoModel):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    if request.url.path.endswith(".json"):
        return JSONResponse({"error": told.message, "remedy": told.remedy}, told.status)
    services: Services = request.app.state.services
    href, link = _back(request, error, told.status)
    context = ErrorPage(
        shell=shell(services.worker, _queue_length(services, error), told.headline),
        status=told.status, headline=told.headline, message=told.message, remedy=told.remedy,
        href=href, link=link,
    )  # fmt: skip
    headers = {"Allow": error.headers["Allow"]} if isinstance(error, HTTPException) and error.headers else {}
    if htmx.is_htmx(request):
        headers |= {"HX-Retarget": "#errors", "HX-Reswap": "innerHTML"}
        return htmx.html(services.renderer.render("_error.html", context), told.status, headers)
    return htmx.html(services.renderer.page(context), told.status, headers)


def _back(request: Request, error: Exception, status: int) -> tuple[str, str]:
    """(address, words) of the way on: back to the page whose form was sent, or to the run that an address is about."""
    if isinstance(error, runs.NoSuchRun):
        return "/runs", "All runs"
    came = urlsplit(request.headers.get("referer", ""))
    run = re.match(r"/runs/\w{1,40}(?=/|$)", request.url.path)
    if status == 404 or isinstance(error, Refusal):
        return "/", "Ask a picture"
    if request.method == "POST" and came.netloc == request.headers.get("host") and re.match(r"/(?!/)", came.path):
        where = came._replace(scheme="", netloc="", fragment="").geturl()
        return where, "Back to the run" if came.path.startswith("/runs/") else "Back to the form"
    return (run[0], "Back to the run") if run else ("/", "Ask a picture")


def _queue_length(services: Services, error: Exception) -> int:
    """For the frame around the error: the database itself may be what failed, and whoever is refused at the door costs
    no query."""
    if isinstance(error, Refusal):
        return 0
    try:
        with services.database.read() as session:
            return queries.queue_length(session)
    except SQLAlchemyError:
        return 0


def _handle(request: Request, error: Exception) -> Response:
    return respond(request, error)
