"""One request to a store, through fsspec: bounded in time, repeated while its error may pass, explained otherwise.

Requests are repeated here and nowhere else: the libraries' own repetitions are switched off where they can be. What was
repeated is counted by reason (`take_retries`), so that a run can say it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from vitrail.errors import VitrailError, one_line

__all__ = ["RemoteError", "ask", "http_status", "take_retries"]

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN",
}
TRIES = 7
FIRST_PAUSE = 0.25
"""Seconds before the first repetition; each further pause is twice as long, 16 s in all."""
PATIENCE = 30.0
"""Seconds in which a request must be answered, besides those that its bytes take at `SLOWEST`."""
SLOWEST = 2**17
"""Bytes per second: a read that is slower is given up and repeated."""
LOST = {
    *("ConnectionError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError"),
    *("TransportError", "IncompleteRead", "ResponseParserError"),
}
"""Names of the libraries' exceptions for a connection that ended early."""

_retried: Counter[str] = Counter()
_counting = threading.Lock()


class RemoteError(VitrailError):
    """Raised when a store refuses a request, or has not answered it after `TRIES` attempts."""


Call = Callable[..., Any]


def ask(
    url: str, function: str, *, length: int, use: Callable[[Call, str], Any] | None = None, **arguments: Any
) -> Any:
    """Call a function of the URL's file system; repeat it while the reason may pass, and explain any other error.

    `length` is the number of bytes that the request moves, which it is given time for. With `use`, that is called with
    the function and the path in place of the function itself.
    """
    for attempt in range(TRIES):
        try:
            system, path = _open_system(url)
            call = _bounded(system, function, PATIENCE + length / SLOWEST)
            found = use(call, path) if use else call(path, **arguments)
            if function == "cat_file" and "end" in arguments and len(found) != length:
                raise ConnectionError(f"{len(found):,} of {length:,} bytes came")
            return found
        except Exception as error:
            if isinstance(error, VitrailError) or (
                isinstance(error, FileNotFoundError) and "bucket does not exist" not in str(error)
            ):
                raise
            reason = _passing(error)
            if reason is None:
                raise _explained(url, error, function) from None
            with _counting:
                _retried[reason] += 1
            if attempt == TRIES - 1:
                raise RemoteError(
                    f"{url} was asked {TRIES} times in vain ({reason}); what is done stays: run the same command "
                    "again when the store answers"
                ) from None
            time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25))
    raise AssertionError


def take_retries() -> dict[str, int]:
    """Return how often requests were repeated since the last call, by reason."""
    with _counting:
        taken = dict(_retried)
        _retried.clear()
    return taken


def _open_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, which it keeps for the next call, and the path in it."""
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {"use_listings_cache": False}
        if scheme == "s3":
            attempts = {"total_max_attempts": 1}
            options["config_kwargs"] = {"retries": attempts, "connect_timeout": 10, "read_timeout": PATIENCE}
        system, path = url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        if isinstance(error, ValueError) and "install" not in str(error).lower():
            raise
        raise VitrailError(
            f"{scheme}:// is read with fsspec ({one_line(str(error))[:60]}); pip install 'vitrail[cloud]'"
        ) from None
    if scheme == "s3":
        system.retries = 1
    return system, path


def _bounded(system: Any, function: str, seconds: float) -> Call:
    """Return a function of the file system that ends within a time, where the system is asynchronous."""
    coroutine = getattr(system, f"_{function}", None)
    if not getattr(system, "async_impl", False) or coroutine is None:
        return getattr(system, function)
    from fsspec.asyn import sync

    return lambda *args, **options: sync(system.loop, coroutine, *args, timeout=seconds, **options)


# ── errors of the libraries ─────────────────────────────────────────────────────────────────────────────────────


def _explained(url: str, error: Exception, function: str) -> RemoteError:
    """Say in one line what a store refused, and what to do."""
    scheme = url.partition("://")[0]
    status, words = http_status(error), one_line(str(error))[:120]
    if scheme.startswith("http"):
        return RemoteError(f"{url} cannot be read ({status or words}); check the URL")
    if function == "info" and status in (400, 403):  # HEAD has no body that could say why
        try:
            system, path = _open_system(url)
            system.cat_file(path, start=0, end=1)
        except Exception as other:
            words = one_line(str(other))[:120]
    if "expired" in words.lower() or "ExpiredToken" in words:
        return RemoteError(
            f"{url}: the store says that the token has expired; renew your credentials and run the same command "
            "again: what is done stays"
        )
    denied = {"PermissionError", "NoCredentialsError", "PartialCredentialsError"}
    if status in (401, 403) or _class_names(error) & denied or words.startswith("Forbidden"):  # gcsfs gives no status
        return RemoteError(
            f"{url}: access was denied ({words}); set the store's credentials, e.g. "
            f"{CREDENTIALS.get(scheme, 'its token')}, and run the same command again"
        )
    return RemoteError(f"{url} cannot be used ({words}); check the URL and the store's settings")


def _passing(error: BaseException) -> str | None:
    """Return the reason of an error that another attempt may not meet; None if it would."""
    names = _class_names(error)
    if names & {"TimeoutError", "ReadTimeoutError", "ConnectTimeoutError"}:
        return "no answer in time"
    if names & LOST:
        return "connection lost"
    status = http_status(error)
    return f"HTTP {status}" if status is not None and (status >= 500 or status in (408, 409, 429)) else None


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of any of the libraries."""
    for each in (error, error.__cause__, error.__context__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        for value in (
            getattr(each, "status", None),
            getattr(response, "status_code", None),
            getattr(each, "code", None),
        ):
            if isinstance(value, int) and 100 <= value < 600:
                return value
    return None


def _class_names(error: BaseException) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}
