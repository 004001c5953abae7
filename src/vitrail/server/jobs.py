"""Computations on one worker thread: a question is computed once, and stops when nobody waits for its answer.

A request that the page gives up (a newer question replaced it) closes its connection. `HangUps` notices, and a job
whose last asker has left ends at its next `proceed()`, which the session's models call between blocks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import ContextVar
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.errors import VitrailError
from vitrail.server.errors import BusyError

__all__ = ["Asker", "HangUps", "StoppedError", "Worker", "asking", "each", "proceed"]

T = TypeVar("T")


class StoppedError(VitrailError):
    """Raised inside a computation that nobody waits for any more."""


class Job:
    """One computation, and who waits for it."""

    def __init__(self) -> None:
        self.future: Future[Any]
        self.askers: set[Asker] = set()
        self.stopped = False


class Asker:
    """Someone who waits for a job: a request, or the studio's own warm-up."""

    def __init__(self) -> None:
        self.gone = False
        self._give_up: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """Want no answer any more."""
        self.gone = True
        self._give_up()

    def waits(self, give_up: Callable[[], None]) -> None:
        """Wait for a job, which `give_up` leaves."""
        self._give_up = give_up
        if self.gone:
            give_up()


asking: ContextVar[Asker | None] = ContextVar("asking", default=None)
"""The asker of the request that this thread answers."""
_running: ContextVar[Job | None] = ContextVar("running", default=None)


def proceed() -> None:
    """Raise `StoppedError` if this thread's job has been given up; anywhere else, do nothing."""
    job = _running.get()
    if job is not None and job.stopped:
        raise StoppedError("the question was replaced by a newer one; ask again")


def each(items: Iterable[T]) -> Iterator[T]:
    """Yield the items as long as somebody waits for the job."""
    for item in items:
        proceed()
        yield item


class Worker:
    """One thread. Equal keys that are asked for at the same time are one job."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="studio-model")
        self._jobs: dict[Hashable, Job] = {}
        self._lock = threading.Lock()

    def run(self, key: Hashable, compute: Callable[[], T], seconds: float) -> T:
        """Return the result of `compute`; raise `BusyError` after a time limit."""
        asker = asking.get() or Asker()
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job.stopped:
                job = self._jobs[key] = Job()
                job.future = self._pool.submit(self._compute, key, job, compute)
            job.askers.add(asker)
        asker.waits(lambda: self._leave(key, job, asker))
        try:
            return job.future.result(timeout=seconds)
        except FutureTimeoutError:
            raise BusyError(
                f"this takes more than {seconds:.0f} seconds on this machine; use a smaller image or model"
            ) from None
        except CancelledError:
            raise StoppedError("the question was replaced by a newer one; ask again") from None
        finally:
            self._leave(key, job, asker)

    def _compute(self, key: Hashable, job: Job, compute: Callable[[], T]) -> T:
        _running.set(job)
        try:
            proceed()
            return compute()
        finally:
            _running.set(None)
            self._forget(key, job)

    def _leave(self, key: Hashable, job: Job, asker: Asker) -> None:
        with self._lock:
            job.askers.discard(asker)
            if job.askers:
                return
            job.stopped = True
        if job.future.cancel():
            self._forget(key, job)

    def _forget(self, key: Hashable, job: Job) -> None:
        with self._lock:
            if self._jobs.get(key) is job:
                del self._jobs[key]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class HangUps:
    """ASGI middleware that lets a request leave its job when the client closes the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":  # a body is read as fast as it is used, not ahead
            await self.app(scope, receive, send)
            return
        asker = Asker()
        asking.set(asker)
        messages: asyncio.Queue[Message] = asyncio.Queue()

        async def listen() -> None:
            while True:
                message = await receive()
                messages.put_nowait(message)
                if message["type"] == "http.disconnect":
                    return asker.leave()

        listening = asyncio.create_task(listen())
        try:
            await self.app(scope, messages.get, send)
        finally:
            listening.cancel()
