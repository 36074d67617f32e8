"""GET / (the question form) and POST /runs (ask)."""

from typing import Annotated

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response

from app import errors, htmx, queries, runs
from app.pictures import HASH, samples
from app.services import Services, Serving
from app.uploads import BadPicture, Normalised, normalise
from app.views import shell
from engine.contract import RequestError

router = APIRouter()
RECENT = 8


def form_page(
    services: Services, *, status: int = 200, question: str = "", sample: str = "", kept: str = "", error: str = ""
) -> Response:
    with services.database.read() as session:
        around = shell.shell(services.worker, queries.queue_length(session), "", "ask")
        recent = queries.recent(session, RECENT)
    info = services.worker.info
    builtin = info.builtin if info else services.settings.model == "builtin"
    form = shell.ask_form(
        services.limits, services.settings.max_question,
        question=question, sample=sample, picture_hash=kept, error=error,
    )  # fmt: skip
    page = shell.ask_page(around, form, list(samples().values()), recent, builtin=builtin)
    return htmx.html(services.renderer.page(page), status)


@router.get("/")
def index(services: Serving, sample: str = "", question: str = "") -> Response:
    return form_page(services, question=question, sample=sample if sample in samples() else "")


@router.post("/runs")
def ask(
    request: Request,
    services: Serving,
    question: Annotated[str, Form()] = "",
    sample: Annotated[str, Form()] = "",
    picture_hash: Annotated[str, Form()] = "",
    picture: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """A file wins over a picture kept from an earlier try, and that over a sample: a form without JavaScript cannot
    take back the choice of a sample."""
    kept = ""
    try:
        chosen = _picture(services, picture, picture_hash, sample)
        kept = runs.keep(services, chosen)
        run_id = runs.ask(services, question, kept or None)
    except (BadPicture, RequestError) as error:
        if htmx.is_htmx(request):
            raise
        return form_page(
            services, status=errors.tell(error).status, question=question, sample=sample, kept=kept, error=str(error)
        )
    return htmx.go(request, f"/runs/{run_id}")


def _picture(services: Services, upload: UploadFile | None, kept: str, sample: str) -> Normalised | str | None:
    """The chosen picture: normalised, or the hash of a stored one, or None for a question without a picture."""
    if upload is not None and (upload.filename or upload.size):
        return normalise(upload.file.read(services.settings.max_upload + 1), services.limits)
    if kept:
        with services.database.read() as session:
            stored = queries.picture(session, kept) if HASH.fullmatch(kept) else None
        if stored is None:
            raise BadPicture("The picture chosen before is not stored any more. Choose it again.")
        return kept
    if sample:
        known = samples().get(sample)
        if known is None:
            raise BadPicture(f"There is no sample picture “{sample[:60]}”. Choose one of the pictures shown.")
        return known.normalised(services.limits)
    return None
