"""Errors in the shape that clients of OpenAI's API read: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse

from vitrail.errors import VitrailError, one_line

__all__ = ["BusyError", "RequestError", "failure", "refusal"]


class RequestError(VitrailError):
    """Raised for a request that is not understood or cannot be answered, with its status."""

    def __init__(self, line: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(line)
        self.status, self.param, self.code = status, param, code


class BusyError(RequestError):
    """Raised when too much is waiting already."""

    def __init__(self, line: str, *, seconds: float) -> None:
        super().__init__(line, status=429, code="queue_full")
        self.retry_after = max(1, round(seconds))


def failure(error: RequestError) -> JSONResponse:
    """Return an error response; one that is worth repeating says when."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = "server_error" if error.status >= 500 else kinds.get(error.status, "invalid_request_error")
    code = error.code or HTTPStatus(error.status).phrase.lower().replace(" ", "_")
    body = {"error": {"message": one_line(str(error)), "type": kind, "param": error.param, "code": code}}
    answer = JSONResponse(body, status_code=error.status)
    if isinstance(error, BusyError):
        answer.headers["Retry-After"] = str(error.retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def refusal(status: int, line: str) -> JSONResponse:
    """Return the response of the guard, which knows of statuses and lines only."""
    code = {401: "invalid_api_key", 413: "body_too_large"}.get(status)
    return failure(RequestError(line, status=status, code=code))
