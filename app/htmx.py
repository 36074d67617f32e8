"""What of htmx the server sees: its request headers, and the responses that depend on them."""

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response


def is_htmx(request: Request) -> bool:
    """Asked by htmx for a part of a page (a boosted link asks for a whole page)."""
    return request.headers.get("HX-Request") == "true" and request.headers.get("HX-Boosted") != "true"


def html(content: str, status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
    """A page or fragment: not to be shown from a cache without asking, and different for htmx."""
    common = {"Vary": "HX-Request, HX-Target", "Cache-Control": "no-cache"}
    return HTMLResponse(content, status, {**common, **(headers or {})})


def see_other(url: str) -> RedirectResponse:
    return RedirectResponse(url, 303)


def go(request: Request, url: str) -> Response:
    """Send the browser to another page after a POST."""
    return Response(headers={"HX-Redirect": url}) if is_htmx(request) else see_other(url)


def wanted_fragments(request: Request, known: tuple[str, ...]) -> tuple[str, ...]:
    """The fragments that this request replaces: `?fragment=a,b`, or htmx's target if it is one; () = the page."""
    named = request.query_params.get("fragment", "")
    if not named and is_htmx(request):
        named = request.headers.get("HX-Target", "")
    return tuple(name for name in known if name in named.split(","))
