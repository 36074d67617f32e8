"""GET /algebra (also as JSON) evaluates an expression over concepts; POST saves what it gives as a concept."""

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm import Session

from app import conceptqueries, derived, htmx
from app.database import Reader
from app.routes.concepts import around, revision
from app.services import Services, Serving
from app.views import algebra, sets
from app.views.algebra import Asked, Evaluated
from app.views.concepts import href
from engine.contract import RequestError, concepts

router = APIRouter()
PATIENCE = 2.0
"""Seconds to wait for a saved concept to be in the library. Is the model at work, its own page tells how far it is."""


@router.get("/algebra")
def show(
    services: Serving, session: Reader, expression: str = "", family: str = "min-max", alpha: str = ""
) -> Response:
    asked = _asked(expression, family, alpha)
    names = conceptqueries.names(session, revision(services))
    found, error = None, None
    if asked.text.strip():
        try:
            found = _evaluated(services, session, asked, names)
        except RequestError as refused:
            error = refused
    page = algebra.page(around(services, session, "Algebra"), asked, names, revision(services), found, error)
    return htmx.html(services.renderer.page(page), 422 if error else 200)


@router.get("/algebra.json")
def show_as_json(
    services: Serving, session: Reader, expression: str = "", family: str = "min-max", alpha: str = ""
) -> Response:
    asked = _asked(expression, family, alpha)
    found = _evaluated(services, session, asked, conceptqueries.names(session, revision(services)))
    return JSONResponse(algebra.as_json(found, asked), headers={"Cache-Control": "no-cache"})


@router.post("/algebra")
def save(
    services: Serving,
    name: Annotated[str, Form()] = "",
    expression: Annotated[str, Form()] = "",
    family: Annotated[str, Form()] = "min-max",
) -> Response:
    """Save the result as a derived concept. What is refused is said beside the name."""
    asked = _asked(expression, family, "")
    try:
        row, job_id = derived.save(services, name, expression, family)
    except RequestError as refused:
        with services.database.read() as session:
            names = conceptqueries.names(session, revision(services))
            try:
                found = _evaluated(services, session, asked, names)
            except RequestError:
                raise refused from None
            around_it = around(services, session, "Algebra")
        page = algebra.page(
            around_it, asked, names, revision(services), found, save=(name[: derived.NAME_LENGTH], str(refused))
        )
        return htmx.html(services.renderer.page(page), 422)
    here = derived.wait(services, job_id, PATIENCE)
    return htmx.see_other(href(row.name) if here else f"/concepts/own/{row.id}")


def _asked(expression: str, family: str, alpha: str) -> Asked:
    concepts.algebra.family_of(family)
    return Asked(expression[: 2 * concepts.algebra.MAX_LENGTH], family, sets.alpha_of(alpha))


def _evaluated(services: Services, session: Session, asked: Asked, names: list[str]) -> Evaluated:
    """Reads only what the expression mentions. Raises BadExpression, UnknownName."""
    expression = concepts.algebra.parse(asked.text)
    concepts.algebra.check_names(expression, names)
    mentioned = concepts.algebra.names_in(expression)
    stored = conceptqueries.memberships(session, revision(services), mentioned)
    operands = {name: stored[name] for name in mentioned}
    return Evaluated(expression, operands, concepts.algebra.evaluate(expression, operands, asked.family))
