"""Run the studio: open a socket, print the link, open a browser, and serve until Ctrl-C."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from vitrail.errors import VitrailError, require
from vitrail.server.app import create_app
from vitrail.server.rooms.attention import warm
from vitrail.server.session import DEFAULT, Session

__all__ = ["listen", "serve", "server_of"]

WARM_SECONDS = 1.5


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    weights: Sequence[str | Path] = (),
    expose: bool = False,
    open_browser: bool = True,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C. A host beyond loopback requires `expose`, and its link contains a token."""
    address = _address(host)
    require(
        address.is_loopback or expose,
        f"--host {host} is reachable from other machines; add --expose if others may use the studio",
    )
    require(
        not address.is_unspecified,
        f"--host {host} means every address; give the one that people will use",
    )
    session = Session(weights)
    session.image(DEFAULT)  # decoded before the first request
    session.open_weights()
    with listen(address, port) as listening:
        port = listening.getsockname()[1]
        names = {"127.0.0.1", "localhost"} if address.is_loopback else {host}
        if address.version == 6:
            names = {f"[{address}]"} | ({"localhost"} if address.is_loopback else set())
        token = None if address.is_loopback else secrets.token_urlsafe(24)
        app = create_app(session, hosts=frozenset(f"{name}:{port}" for name in names), token=token)
        link = f"http://{f'[{address}]' if address.version == 6 else host}:{port}/{f'{token}/' if token else ''}"
        say(f"vitrail studio: {link}  (Ctrl-C ends it)")
        if session.more:
            say(f"more models: {session.more}")
        if open_browser:
            # some browsers block this call until they are closed; the socket already listens
            threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
        # delayed: loading torch would slow down the page's first responses
        warming = threading.Timer(WARM_SECONDS, _warm, (session,))
        warming.daemon = True
        warming.start()
        with contextlib.suppress(KeyboardInterrupt):
            server_of(app).run(sockets=[listening])
        warming.cancel()
    session.close()


def server_of(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
    )


def _warm(session: Session) -> None:
    """Compute what the attention room opens with; an error is ignored here, since the room will report it."""
    with contextlib.suppress(VitrailError, CancelledError, RuntimeError):  # the last two: the studio was stopped
        warm(session)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise VitrailError(f"--host {host!r} is not an address; write 127.0.0.1, or this machine's own") from None


def listen(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise VitrailError(f"--port {port} is not available ({reason}); leave it out for a free one") from None
    return listening
