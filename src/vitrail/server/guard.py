"""Access control: only a server's own page, or a program on this machine or with the token, may use it.

Every request is checked before anything else reads it:

    Host             must be one of the names that the server printed, which defeats DNS rebinding
    Origin           must be the server's own if the browser sends one
    Sec-Fetch-Site   must be same-origin or none; another site may link to the page, but not to the API
    token            required beyond loopback and in notebooks. The studio's is the first part of every path. (A cookie
                     would not reach a frame in the page of another site, such as a notebook's.) `vitrail serve` takes
                     it as programs send it, as "Authorization: Bearer …".
    body             at most 16 MiB unless told otherwise, counted while it arrives, within a time limit; weights go to
                     a file as they arrive, under limits of their own (uploads.py)

There are no CORS headers, so no other origin can read a response.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.server.errors import failure

__all__ = ["HEADERS", "MAX_BODY", "Guard"]

MAX_BODY = 16 * 2**20
BODY_SECONDS = 30
STREAMED = "/api/weights"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors"
)
NOTEBOOKS = "http://localhost:* http://127.0.0.1:* vscode-webview:"
"""Pages that may show a framed studio: notebooks on this machine."""
HEADERS = {
    "Content-Security-Policy": f"{POLICY} 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware that refuses foreign requests and adds security headers to every response."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        token: str | None = None,
        framed: bool = False,
        bearer: bool = False,
        unguarded: frozenset[str] = frozenset(),
        max_body: int = MAX_BODY,
        name: str = "the studio",
        refuse: Callable[[int, str], Response] = failure,
    ) -> None:
        """`hosts` None: any name, for a server whose token is a header, which no other site can make a browser send.
        `unguarded`: paths that need no token."""
        self.app, self.hosts, self.token, self.framed = app, hosts, token, framed
        self.bearer, self.unguarded, self.max_body, self.name, self.refuse = bearer, unguarded, max_body, name, refuse
        self.headers = {**HEADERS, "Content-Security-Policy": f"{POLICY} {NOTEBOOKS}"} if framed else HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        within, refusal = self._admit(scope)
        if refusal is None and within["path"] == STREAMED:
            await self.app(within, receive, send_with_headers)
            return
        body = b"" if refusal else await self._body(scope, receive)
        answer = refusal or (body if isinstance(body, Response) else None)
        if answer is not None:
            await answer(scope, receive, send_with_headers)
            return
        assert isinstance(body, bytes)
        await self.app(within, _replay(body, receive), send_with_headers)

    def _admit(self, scope: Scope) -> tuple[Scope, Response | None]:
        """Return the request with the path behind the token, or why it is refused."""
        headers, path = Headers(scope=scope), scope["path"]
        host, origin, site = headers.get("host"), headers.get("origin"), headers.get("sec-fetch-site")
        if len(headers.getlist("host")) != 1 or (self.hosts is not None and host not in self.hosts):
            return scope, self.refuse(403, f"this host name is not {self.name}'s; use the address that it printed")
        if origin is not None and origin != f"http://{host}":
            return scope, self.refuse(403, f"requests from another origin than {self.name}'s own are refused")
        if self.token is not None and self.bearer:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if path not in self.unguarded and not hmac.compare_digest(given.encode(), self.token.encode()):
                return scope, self.refuse(401, "a token is needed; send it as Authorization: Bearer TOKEN")
        elif self.token is not None:
            given, slash, rest = path.removeprefix("/").partition("/")
            if not slash or not hmac.compare_digest(given.encode(), self.token.encode()):
                return scope, self.refuse(403, f"a token is needed; use the link that {self.name} printed")
            path = f"/{rest}"
        is_link = (
            scope["method"] == "GET"
            and not path.startswith("/api/")
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") in ("document", "iframe" if self.framed else None)
        )
        if site not in (None, "same-origin", "none") and not is_link:
            return scope, self.refuse(403, f"requests from another site than {self.name}'s own are refused")
        return {**scope, "path": path, "raw_path": path.encode()}, None

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Response:
        too_large = self.refuse(413, f"the body is above {self.max_body // 2**20} MiB; shrink the image first")
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal():
            return self.refuse(400, "content-length is not a number; leave it out")
        if int(length) > self.max_body:
            return too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return self.refuse(400, "the body ended early; send it again")
                    body += message.get("body", b"")
                    if len(body) > self.max_body:
                        return too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            return self.refuse(408, f"the body took more than {BODY_SECONDS} seconds; send it again")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body as one message, then forwards to the original."""
    first = True

    async def replay() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
