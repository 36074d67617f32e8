"""Every template's pages from the factories, under the app's content security policy: a browser without an engine.

`python -m tests.e2e.gallery` serves it on port 8099, to look at the pages while working on them.
"""

import dataclasses
from typing import Any

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tests.e2e import catalogue, factories
from tests.support import ROOT

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(ROOT / "templates")
    env = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    env.globals["static"] = lambda name: f"/static/{name}"
    return env


def fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def html(text: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(text, status, {"Content-Security-Policy": POLICY})


def page(request: Request) -> Response:
    """`/TEMPLATE?n=1` shows the second variant of a page."""
    name = request.path_params["name"]
    variant = catalogue.PAGES[name][int(request.query_params.get("n", 0))]
    return html(environment().get_template(name).render(**fields(variant)))


def picture(request: Request) -> Response:
    """A run with a picture of the given size."""
    width, height = request.path_params["width"], request.path_params["height"]
    view = factories.picture(
        src=factories.picture_uri(width, height), width=width, height=height, cells=factories.heat_cells(width, height)
    )
    return html(environment().get_template("runs/show.html").render(**fields(factories.run_page(picture=view))))


def run(request: Request) -> Response:
    return html(environment().get_template("runs/show.html").render(**fields(factories.run_page())))


def steer(request: Request) -> Response:
    view = factories.steered(summary="steered by the form")
    return html(environment().get_template("runs/_steered.html").render(steered=view))


def events(request: Request) -> Response:
    return PlainTextResponse("event: end\ndata: \n\n", headers={"Content-Type": "text/event-stream"})


def create() -> Starlette:
    return Starlette(
        routes=[
            Route(f"{factories.STATE}/steer", steer, methods=["POST"]),
            Route(f"{factories.STATE}/events", events),
            Route(f"{factories.STATE}/steered/events", events),
            Route(factories.STATE, run),
            Mount("/static", StaticFiles(directory=ROOT / "static")),
            Route("/picture/{width:int}/{height:int}", picture),
            Route("/{name:path}", page),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(create(), port=8099)
