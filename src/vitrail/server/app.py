"""The studio as a FastAPI application: the guard, the rooms' endpoints, and the built page, served from memory."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI
from starlette.responses import Response

from vitrail._version import __version__
from vitrail.errors import require
from vitrail.server import commands
from vitrail.server.errors import RESPONSES, install
from vitrail.server.guard import Guard
from vitrail.server.jobs import HangUps
from vitrail.server.rooms import ROOMS, shared
from vitrail.server.session import Session

__all__ = ["create_api", "create_app", "read_page"]


def create_api() -> FastAPI:
    """Return the API of all rooms, without the page and without a session: enough for the schema."""
    app = FastAPI(title="vitrail studio", version=__version__, docs_url=None, redoc_url=None, responses=RESPONSES)
    install(app)
    for room in (shared, *ROOMS.values(), commands):
        app.include_router(room.router, prefix="/api")
    return app


def create_app(session: Session, *, hosts: frozenset[str], token: str | None = None, framed: bool = False) -> FastAPI:
    """Return the application for one session. It answers requests for `hosts` (name:port) only, behind a token if
    one is given; a notebook may show it in a frame if it is `framed`."""
    app = create_api()
    app.state.session = session
    app.add_middleware(HangUps)
    app.add_middleware(Guard, hosts=hosts, token=token, framed=framed)  # type: ignore[arg-type]
    _serve(app, read_page())
    return app


def _serve(app: FastAPI, page: dict[str, bytes]) -> None:
    """Give every file of the page a fixed route, so that no path from a client is ever opened."""
    for name, data in page.items():
        path = "/" if name == "index.html" else f"/{name}"
        app.add_api_route(path, _sender(name, data), methods=["GET"], include_in_schema=False)


def _sender(name: str, data: bytes) -> Callable[[], Response]:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    # file names under assets/ contain a hash of their content
    cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-store"
    return lambda: Response(data, media_type=kind, headers={"Cache-Control": cache})


def read_page(folder: str = "studio") -> dict[str, bytes]:
    """Return the files of the built page, by path: of the studio, or of the "site" that it exports."""
    root = files("vitrail.server") / "static" / folder
    page = dict(_files(root, "")) if root.is_dir() else {}
    require(bool(page), "the studio's page is not built; run make setup, or install a released vitrail")
    return page


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    contents: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        contents += _files(entry, f"{name}/") if entry.is_dir() else [(name, entry.read_bytes())]
    return contents
