"""The studio as an application: the guard, the rooms, and the built page from memory."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI
from starlette.responses import Response

from vitrail._version import __version__
from vitrail.errors import require
from vitrail.studio.errors import RESPONSES, install
from vitrail.studio.guard import Guard
from vitrail.studio.rooms import ROOMS, shared
from vitrail.studio.session import Session

__all__ = ["create_api", "create_app", "read_page"]


def create_api() -> FastAPI:
    """The rooms' questions and answers, without the page and the session that answers them."""
    app = FastAPI(title="vitrail studio", version=__version__, docs_url=None, redoc_url=None, responses=RESPONSES)
    install(app)
    for room in (shared, *ROOMS.values()):
        app.include_router(room.router, prefix="/api")
    return app


def create_app(session: Session, *, hosts: frozenset[str], token: str | None = None) -> FastAPI:
    """The application for one session, answering to `hosts` (name:port) only."""
    app = create_api()
    app.state.session = session
    app.add_middleware(Guard, hosts=hosts, token=token)  # type: ignore[arg-type]
    _serve(app, read_page())
    return app


def _serve(app: FastAPI, page: dict[str, bytes]) -> None:
    """Every file of the page at its own fixed address: nothing that a client names is opened."""
    for name, data in page.items():
        path = "/" if name == "index.html" else f"/{name}"
        app.add_api_route(path, _sender(name, data), methods=["GET"], include_in_schema=False)


def _sender(name: str, data: bytes) -> Callable[[], Response]:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    # names under assets/ carry a hash of their content
    cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-store"
    return lambda: Response(data, media_type=kind, headers={"Cache-Control": cache})


def read_page() -> dict[str, bytes]:
    """The built page, by path."""
    root = files("vitrail.studio") / "static"
    found = dict(_files(root, "")) if root.is_dir() else {}
    require("index.html" in found, "the studio's page is not built; run make setup, or install a released vitrail")
    return found


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        found += _files(entry, f"{name}/") if entry.is_dir() else [(name, entry.read_bytes())]
    return found
