"""Run the studio: open a socket, print the link, open a browser, and serve until Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import threading
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

from vitrail.errors import VitrailError, require
from vitrail.server.app import create_app
from vitrail.server.listening import address_of, listen, names_of, server_of, url_of
from vitrail.server.rooms.attention import warm
from vitrail.server.session import DEFAULT, Session

__all__ = ["serve"]

WARM_SECONDS = 1.5


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    weights: Sequence[str | Path] = (),
    folder: str | Path | None = None,
    expose: bool = False,
    open_browser: bool = True,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C. A host beyond loopback requires `expose`, and its link contains a token."""
    address = address_of(host, expose=expose, what="the studio")
    require(
        not address.is_unspecified,
        f"--host {host} means every address; give the one that people will use",
    )
    session = Session(weights, folder)
    session.maps.check()
    session.image(DEFAULT)  # decoded before the first request
    session.open_weights()
    with listen(address, port) as listening:
        port = listening.getsockname()[1]
        token = None if address.is_loopback else secrets.token_urlsafe(24)
        app = create_app(session, hosts=names_of(address, port), token=token)
        link = f"{url_of(address, port)}/{f'{token}/' if token else ''}"
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


def _warm(session: Session) -> None:
    """Compute what the attention room opens with; an error is ignored here, since the room will report it."""
    with contextlib.suppress(VitrailError, CancelledError, RuntimeError):  # the last two: the studio was stopped
        warm(session)
