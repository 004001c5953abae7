"""The endpoint as an application: images in a request → vectors in its answer.

POST /v1/embeddings    JSON, in the forms of forms.py → OpenAI's answer
POST /embed            an image file as the body → JSON, or raw float32 if the request accepts only octets
GET  /v1/models        the one model
GET  /health/live      whether the process answers
GET  /health/ready     whether the model does
GET  /metrics          counters for Prometheus
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrail.checkpoint.pixels import Prepared
from vitrail.errors import VitrailError
from vitrail.server.guard import Guard
from vitrail.serving.batches import Batcher, Limits
from vitrail.serving.errors import BusyError, RequestError, failure, refusal
from vitrail.serving.forms import Question, read_question
from vitrail.serving.metrics import CONTENT_TYPE, Metrics

__all__ = ["MAX_BODY", "Model", "Service", "create_app"]

T = TypeVar("T")
Vector = NDArray[np.float32]
MAX_BODY = 32 * 2**20
HELD_BYTES = 16 * MAX_BODY
"""Bytes of bodies that are held at a time."""
OCTETS = "application/octet-stream"
HEALTH = frozenset({"/health/live", "/health/ready"})


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is served: a name, and the two steps from a file to a vector."""

    name: str
    engine: str
    """What computes it, and why."""
    width: int
    tokens: int
    """Tokens of the model's sequence, which answers report as their usage."""
    prepare: Callable[[bytes], Prepared]
    compute: Callable[[Sequence[Prepared]], Vector]


class Service:
    """Answers requests with one model."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.metrics = model, Metrics()
        self.batcher = Batcher(model.compute, limits, self.metrics)
        self.ready = False

    def close(self) -> None:
        self.ready = False
        self.batcher.close()

    async def embeddings(self, request: Request) -> Response:
        body = await request.body()
        question = await self.batcher.in_thread(partial(read_question, body))
        self._check(question)
        vectors = await self._while_connected(request, self._vectors(question.images))
        return JSONResponse(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": _written(vector, question)}
                    for index, vector in enumerate(vectors)
                ],
                "model": self.model.name,
                "usage": dict.fromkeys(("prompt_tokens", "total_tokens"), len(vectors) * self.model.tokens),
            }
        )

    async def embed(self, request: Request) -> Response:
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise RequestError("a form is not an image; send the file itself: curl --data-binary @cat.jpg", status=415)
        accepted = request.headers.get("accept", "*/*")
        body = await request.body()
        (vector,) = await self._while_connected(request, self._vectors([body]))
        if OCTETS in accepted and "application/json" not in accepted:
            return Response(vector.astype("<f4").tobytes(), media_type=OCTETS)
        return JSONResponse({"model": self.model.name, "vector": vector.tolist()})

    async def models(self, request: Request) -> Response:
        model = {"id": self.model.name, "object": "model", "created": 0, "owned_by": "vitrail"}
        return JSONResponse({"object": "list", "data": [model]})

    async def live(self, request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def is_ready(self, request: Request) -> Response:
        return JSONResponse({"status": "ready" if self.ready else "starting"}, 200 if self.ready else 503)

    async def counters(self, request: Request) -> Response:
        text = self.metrics.text(waiting=self.batcher.admitted, ready=self.ready)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    def _check(self, question: Question) -> None:
        if question.model not in (None, self.model.name):
            raise RequestError(
                f"model {question.model!r} is not served here; use {self.model.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )
        if question.dimensions not in (None, self.model.width):
            raise RequestError(
                f"dimensions {question.dimensions} is not the model's width; leave it out, or give {self.model.width}",
                param="dimensions",
            )

    async def _vectors(self, images: Sequence[bytes]) -> list[Vector]:
        with self.batcher.admit(len(images)):
            return await self.batcher.vectors(
                [partial(self._decode, image, number) for number, image in enumerate(images)]
            )

    def _decode(self, image: bytes, number: int) -> Prepared:
        try:
            return self.model.prepare(image)
        except VitrailError as error:
            line = f"image {number}: {str(error).removeprefix('image: ')}"
            raise RequestError(line, param=f"input[{number}]", code="invalid_image") from None

    async def _while_connected(self, request: Request, work: Awaitable[T]) -> T:
        """Do the work, unless the client hangs up before it is done."""
        doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise RequestError("the client closed the connection", status=499, code="client_closed_request")
            return doing.result()
        finally:
            for each in (doing, leaving):
                each.cancel()
            await asyncio.gather(doing, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _written(vector: Vector, question: Question) -> Any:
    if question.normalized:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    if question.encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


# ── around the service ──────────────────────────────────────────────────────────────────────────────────────────


def create_app(
    service: Service, *, hosts: frozenset[str] | None, token: str | None = None, max_body: int = MAX_BODY
) -> ASGIApp:
    """Return the guarded application; `hosts` None and a token: any name that clients call it by."""
    routes = [
        Route("/v1/embeddings", service.embeddings, methods=["POST"]),
        Route("/embed", service.embed, methods=["POST"]),
        Route("/v1/models", service.models),
        Route("/health/live", service.live),
        Route("/health/ready", service.is_ready),
        Route("/metrics", service.counters),
    ]
    handlers: dict[Any, Any] = {RequestError: _mistake, HTTPException: _status, Exception: _bug}
    app: ASGIApp = Starlette(routes=routes, exception_handlers=handlers)
    guard = Guard(
        app,
        hosts=hosts,
        token=token,
        bearer=True,
        unguarded=HEALTH,
        max_body=max_body,
        name="vitrail serve",
        refuse=refusal,
    )
    return _Counted(guard, service, max_body, {route.path for route in routes})


def _mistake(_: Request, error: RequestError) -> Response:
    return failure(error)


def _status(_: Request, error: HTTPException) -> Response:
    answer = failure(RequestError(f"{error.detail}; POST images to /v1/embeddings or /embed", status=error.status_code))
    answer.headers.update(error.headers or {})
    return answer


def _bug(_: Request, error: Exception) -> Response:
    line = f"a bug in vitrail ({type(error).__name__}); see the terminal that runs it"
    return failure(RequestError(line, status=500))


class _Counted:
    """Counts requests and bounds the bytes of bodies that are held, before any of them is read."""

    def __init__(self, app: ASGIApp, service: Service, max_body: int, paths: set[str]) -> None:
        self.app, self.service, self.max_body, self.paths = app, service, max_body, paths
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        start, status = time.perf_counter(), 500
        room = self._room(scope)

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.held += room
        try:
            if self.held > max(HELD_BYTES, self.max_body):
                error = BusyError("too many bodies are being received; try again later", seconds=1)
                await failure(error)(scope, receive, noted)
            else:
                await self.app(scope, receive, noted)
        finally:
            self.held -= room
            endpoint = scope["path"] if scope["path"] in self.paths else "other"
            self.service.metrics.request(endpoint, status, time.perf_counter() - start)

    def _room(self, scope: Scope) -> int:
        """Return the bytes that a request's body may take: what it says, or the limit if it does not say."""
        if scope["method"] in ("GET", "HEAD"):
            return 0
        said = dict(scope["headers"]).get(b"content-length", b"")
        return min(int(said), self.max_body) if said.isdigit() else self.max_body
