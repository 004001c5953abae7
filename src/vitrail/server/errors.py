"""One JSON shape for every error response: {"error": "one line", "status": 400}."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from vitrail.errors import VitrailError, one_line

__all__ = ["RESPONSES", "BusyError", "Failure", "failure", "install"]


class Failure(BaseModel):
    """A one-line message and the HTTP status."""

    error: str
    status: int


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"content": {"application/json": {"schema": Failure.model_json_schema()}}, "description": words}
    for status, words in (
        (400, "The request asks for something that does not exist or is impossible"),
        (403, "The request comes from another site"),
        (413, "The body is too large"),
        (422, "A parameter is missing, unknown or out of range"),
        (503, "The computation takes too long"),
    )
}


class BusyError(VitrailError):
    """Raised when a computation exceeds its time limit."""


def failure(status: int, line: str) -> JSONResponse:
    """Return an error response."""
    return JSONResponse(Failure(error=one_line(line), status=status).model_dump(), status_code=status)


def install(app: FastAPI) -> None:
    """Register handlers that turn every exception into an error response."""

    @app.exception_handler(BusyError)
    def busy(_: Request, error: BusyError) -> JSONResponse:
        return failure(503, str(error))

    @app.exception_handler(VitrailError)
    def mistake(_: Request, error: VitrailError) -> JSONResponse:
        return failure(400, str(error))

    @app.exception_handler(RequestValidationError)
    def parameter(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return failure(422, f"{name}: {first['msg'].lower()}; /api/controls lists what is allowed")

    @app.exception_handler(HTTPException)
    def status(_: Request, error: HTTPException) -> JSONResponse:
        answer = failure(error.status_code, f"{error.detail}; /openapi.json lists all addresses")
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    def bug(_: Request, error: Exception) -> JSONResponse:
        return failure(500, f"a bug in the studio ({type(error).__name__}); see the terminal that runs it")
