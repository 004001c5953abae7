"""The studio's API inside a web page: what Pyodide runs in an exported site, without a server, threads or torch.

The page's worker calls `start` once, with the facts that the export wrote, then `answer` for every address that the
studio's page would ask a server. Everything that needs weights or pixels is refused with the command that has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import anyio.to_thread
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.codec import from_plain
from vitrail.config import config_from_json
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.server.app import create_api
from vitrail.server.errors import failure
from vitrail.server.plans import Pair
from vitrail.server.rooms import tokens
from vitrail.server.rooms.match.match_facts import facts_of_numbers
from vitrail.server.rooms.walk.walk_facts import facts_of
from vitrail.server.session import Session
from vitrail.server.site.stored import Stored
from vitrail.server.site.tables import OTHERS

__all__ = ["CROP", "CUT", "ELSEWHERE", "Backend", "Crop", "SiteSession", "start"]

T = TypeVar("T")

ELSEWHERE = "an exported page does not have this view; run vitrail studio to see it"
CROP = "/api/site/crop"
"""The address of what only an exported page asks: the preprocessing, whose pixels it has."""
CUT = "/api/site/cut"
"""How the tokens room cuts an image into the smallest patches of a kind."""
TREE = "/api/site/tree"
"""The facts of a quadtree from its counts, which the page has from a graph."""
WALK = "/api/site/walk"
"""The facts of a walk from its numbers, which the page has picked from the outputs of a model's graph."""
MATCH = "/api/site/match"
"""The facts of two matched images, from numbers that the page has from graphs."""
ABSENT = ("numpy", "PIL", "torch")
"""What the rooms import when they compute on pixels and weights, and a page does not have."""


class SiteSession(Session):
    """What an exported site knows: the configs of its models, and the sizes of its images."""

    most_patches = 400
    """A pass gives the attention maps of all heads, whose size grows with the square of the patches."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        models = facts["models"]
        self._paths = {name: model["source"] for name, model in models.items()}
        self._configs = {name: config_from_json(model["config"]) for name, model in models.items()}
        self._sizes = {name: Size(*size) for name, size in facts["images"].items()}
        self._stored: list[Stored] = []

    def add_size(self, name: str, size: Size) -> None:
        self._sizes[name] = size

    def has_image(self, name: str) -> bool:
        return name in self._sizes

    def image_size(self, name: str) -> Size:
        if name not in self._sizes:
            raise VitrailError(f"image {name!r} is no longer stored; drop it on the page again")
        return self._sizes[name]

    def image(self, name: str) -> Any:
        raise VitrailError(ELSEWHERE)

    def checkpoint(self, name: str = "default") -> Any:
        raise VitrailError(ELSEWHERE)

    def add_stored(self, stored: Stored) -> None:
        self._stored.append(stored)

    def once(self, key: Hashable, compute: Callable[[], T], seconds: float | None = None) -> T:
        """Return what the export has computed, or compute here and now: a page's worker has one thread."""
        result = next((found for stored in self._stored if (found := stored.get(key))), self._results.get(key))
        if result is None and isinstance(key, tuple) and key[0] in OTHERS:
            raise VitrailError(OTHERS[key[0]])
        if result is None:
            result = compute()
            self._results.put(key, result)
        return result


class Crop(BaseModel):
    """The size that the whole image is resized to, and the top left corner of the part that the model gets."""

    resized: Pair
    corner: Pair


class CutPixels(Crop):
    """The part of an image that is cut, and its smallest patch."""

    image: Pair
    patch: Pair


class Backend:
    """The API of an exported site."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._models = facts["models"]
        self._session = SiteSession(facts)
        self._app = create_api()
        self._app.state.session = self._session
        self._app.get(CROP)(self.crop)
        self._app.get(f"{CUT}/{{kind}}")(self.cut)
        self._app.post(TREE)(self.tree)
        self._app.post(WALK)(facts_of)
        self._app.post(MATCH)(facts_of_numbers)
        _refuse_absent(self._app)

    async def answer(self, address: str, sent: str | None = None) -> tuple[int, str, bytes]:
        """Return status, content type and body for an address such as "/api/patch?height=224".

        It is a GET; with JSON that is `sent`, a POST.
        """
        path, _, query = address.partition("?")
        scope = {
            "type": "http",
            "method": "GET" if sent is None else "POST",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [] if sent is None else [(b"content-type", b"application/json")],
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "server": None,
            "client": None,
            "root_path": "",
        }
        status, kind, body = 500, "", b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": (sent or "").encode(), "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, kind, body
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message["headers"]).get(b"content-type", b"").decode()
            else:
                body += message.get("body", b"")

        await self._app(scope, receive, send)
        return status, kind, body

    def add_image(self, name: str, height: int, width: int) -> None:
        """Note the size of an image that was dropped on the page; its pixels stay there."""
        self._session.add_size(name, Size(height, width))

    def add_stored(self, path: str) -> None:
        """Read a file of results that the page has loaded."""
        self._session.add_stored(Stored(Path(path).read_bytes()))

    def crop(self, image: str, weights: str, height: int, width: int) -> Crop:
        """Return how a model's preprocessing resizes an image for an input of this height and width."""
        steps = from_plain(self._models[weights]["preprocessing"], Preprocessing, "preprocessing")
        return self._crop(image, steps.but(image=Size(height, width)))

    def cut(self, kind: tokens.CutKind, asked: tokens.Asked) -> CutPixels:
        """Return how an image is cut into the smallest patches of a kind, for the planned model."""
        cut = tokens.cut_of(kind, asked, self._session)
        crop = self._crop(asked.image, Preprocessing(image=cut.image))
        return CutPixels(**crop.model_dump(), image=cut.image, patch=cut.patch)

    def tree(self, asked: tokens.Asked, counts: list[int]) -> tokens.TreeFacts:
        """Return the facts of a quadtree with these patches of each size, finest first."""
        return tokens.tree_facts(asked, self._session, counts)

    def _crop(self, image: str, steps: Preprocessing) -> Crop:
        resized = steps.resized_size(self._session.image_size(image))
        return Crop(resized=resized, corner=steps.corner(resized))


def start(facts: str) -> Backend:
    """Return the API for the facts of a site, in JSON."""
    anyio.to_thread.run_sync = _run_here  # a page has no threads, and nothing to wait for
    return Backend(json.loads(facts))


async def _run_here(function: Callable[..., T], *args: Any, **_: Any) -> T:
    return function(*args)


def _refuse_absent(app: FastAPI) -> None:
    @app.exception_handler(ModuleNotFoundError)
    def absent(_: Request, error: ModuleNotFoundError) -> JSONResponse:
        if (error.name or "").partition(".")[0] not in ABSENT:
            raise error
        return failure(400, ELSEWHERE)
