"""One layer around all routes: lets requests in (security.py), limits their bodies, adds the headers to every
response, and turns what no route handled into a page."""

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import errors, security
from app.errors import Refusal
from app.settings import Settings

FORM_ROOM = 2**20
"""Bytes that a form's other fields may have beside the picture."""
DRAIN = 8
"""A body over the limit is still read up to this many times the limit: a browser shows our answer only after it has
sent its whole body."""


class Guard:
    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.limit = settings.max_upload + FORM_ROOM

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        head = scope["method"] == "HEAD" and not scope["path"].endswith("/events")
        if head:  # answered like GET, without the body (an event stream would not end)
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in security.HEADERS.items():
                    headers.setdefault(name, value)
            elif head:
                message = {**message, "body": b""}
            await send(message)

        body = _Body(receive, self.limit)
        try:
            headers = Headers(scope=scope)
            security.check_host(headers, self.settings)
            security.check_origin(scope["method"], headers)
            security.check_address(scope["path"], scope["query_string"])
            if int(headers.get("content-length", "0") or 0) > self.limit:
                raise body.too_large()
            await self.app(scope, body.receive, send_with_headers)
        except Exception as error:
            if started:
                raise
            await body.drain(DRAIN * self.limit)
            response = await run_in_threadpool(errors.respond, Request(scope), body.refusal or error)
            await response(scope, receive, send_with_headers)


class _Body:
    """Counts a request's body as it is read."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._read, self._more = receive, limit, 0, True
        self.refusal: Refusal | None = None

    def too_large(self) -> Refusal:
        self.refusal = Refusal(
            413,
            f"The request is larger than {self._limit / 2**20:.0f} MB.",
            "Choose a smaller picture, or send files in parts.",
        )
        return self.refusal

    async def receive(self) -> Message:
        message = await self._next()
        if self._read > self._limit:
            raise self.too_large()
        return message

    async def drain(self, at_most: int) -> None:
        if self.refusal is not None:
            while self._more and self._read < at_most:
                await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._more = message.get("more_body", False)
        else:
            self._more = False
        return message
