"""Which requests are let in, and the headers that tell a browser what a page of ours may do."""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from app.errors import Refusal
from app.settings import Settings

LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def check_host(headers: Headers, settings: Settings) -> None:
    """Refuse a name that is not ours: a foreign page can have its own name point here (DNS rebinding). An address
    cannot be rebound, so any is let in."""
    host = _host(headers.get("host", ""))
    if host in LOCAL or host in (settings.host, *settings.allowed_hosts) or _is_address(host):
        return
    raise Refusal(
        421, f"This server does not answer to the name “{host[:80]}”.",
        "Open it as localhost, or allow the name with SFUMATO_ALLOWED_HOSTS='[\"NAME\"]'.",
    )  # fmt: skip


def check_address(path: str, query: bytes) -> None:
    """Refuse addresses with a NUL in them: no page of ours has one, and Postgres cannot look for it."""
    if "\0" in path or b"%00" in query:
        raise Refusal(400, "The address cannot be read.", "Check it, or start anew.")


def check_origin(method: str, headers: Headers) -> None:
    """Refuse a request that changes something and was sent by a page of another site. Programs send neither header."""
    if method in SAFE_METHODS:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    else:
        ours = origin is None or urlsplit(origin).netloc == headers.get("host")
    if not ours:
        raise Refusal(403, "The request comes from a page of another site.", "Open Sfumato itself and try again there.")


def _host(header: str) -> str:
    """The host of a Host header, without port and brackets, in lower case."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
