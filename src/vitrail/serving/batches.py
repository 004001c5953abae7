"""Images of many requests in common batches: decoded in threads, computed by an engine in one thread or several.

    admitted (or refused: the queue is full) → decoded → waits for a batch → computed → answered

A batch starts as soon as the engine is free. It waits for more images, a few milliseconds at most, only while others
are being decoded; a single client is not kept waiting. What a client no longer waits for is not computed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.pixels import Prepared
from vitrail.rules import NonNegativeFloat, PositiveInt
from vitrail.serving.errors import BusyError, RequestError
from vitrail.serving.metrics import Metrics
from vitrail.value import Value

__all__ = ["Batcher", "Limits"]

T = TypeVar("T")
Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Limits(Value):
    """How much is computed together, and how much may wait."""

    batch: PositiveInt = 16
    """Most images of a batch."""
    wait_ms: NonNegativeFloat = 5.0
    """Milliseconds that a batch may wait for images that are being decoded."""
    queue: PositiveInt = 256
    """Most images that are admitted and not yet answered."""
    workers: PositiveInt = 1
    """Batches that are computed at a time, each in a thread."""


@dataclass(frozen=True)
class _Waiting:
    image: Prepared
    vector: asyncio.Future[Vector]


class Batcher:
    """Gives images to an engine in batches. All methods belong to one event loop."""

    def __init__(
        self, compute: Callable[[Sequence[Prepared]], NDArray[np.float32]], limits: Limits, metrics: Metrics
    ) -> None:
        self.compute, self.limits, self.metrics = compute, limits, metrics
        self.admitted = 0
        self._decoding = 0
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="serve-decode")
        self._engines = ThreadPoolExecutor(limits.workers, thread_name_prefix="serve-engine")
        self._seconds_per_image = 0.05
        self._running: list[asyncio.Task[None]] = []

    @contextmanager
    def admit(self, images: int) -> Iterator[None]:
        """Hold places in the queue while a request is answered; raise BusyError if there are too few."""
        if self.admitted + images > self.limits.queue:
            raise BusyError(
                f"{self.admitted} images are waiting, and {images} more are above the limit of {self.limits.queue}; "
                "try again later",
                seconds=self.admitted * self._seconds_per_image,
            )
        self.admitted += images
        try:
            yield
        finally:
            self.admitted -= images

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that decodes or parses, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, work)

    async def vectors(self, decoders: Sequence[Callable[[], Prepared]]) -> list[Vector]:
        """Decode images and return their vectors, in order; the first that cannot be decoded raises its error."""
        if not self._running:
            self._running = [asyncio.create_task(self._run()) for _ in range(self.limits.workers)]
        tasks = [asyncio.create_task(self._vector(decode)) for decode in decoders]
        try:
            return [await task for task in tasks]
        finally:  # after a failure, or when the client has left
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _vector(self, decode: Callable[[], Prepared]) -> Vector:
        self._decoding += 1
        try:
            image = await self.in_thread(decode)
        finally:
            self._decoding -= 1
        item = _Waiting(image, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(item)
        return await item.vector

    async def _run(self) -> None:
        while True:
            batch = [each for each in await self._next() if not each.vector.cancelled()]
            if not batch:
                continue
            start = time.perf_counter()
            try:
                images = [each.image for each in batch]
                found = await asyncio.get_running_loop().run_in_executor(self._engines, self.compute, images)
            except Exception as error:
                logging.getLogger(__name__).exception("the engine failed")
                line = f"the engine failed ({type(error).__name__}); see the terminal that runs the server"
                for each in batch:
                    if not each.vector.done():
                        each.vector.set_exception(RequestError(line, status=500))
                continue
            took = time.perf_counter() - start
            self._seconds_per_image += 0.2 * (took / len(batch) / self.limits.workers - self._seconds_per_image)
            self.metrics.batch(len(batch), took)
            for each, vector in zip(batch, found, strict=True):
                if not each.vector.done():
                    each.vector.set_result(vector)

    async def _next(self) -> list[_Waiting]:
        batch = [await self._waiting.get()]
        until = time.perf_counter() + self.limits.wait_ms / 1e3
        while len(batch) < self.limits.batch:
            left = until - time.perf_counter()
            if not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            elif self._decoding and left > 0:
                try:
                    batch.append(await asyncio.wait_for(self._waiting.get(), left))
                except TimeoutError:
                    break
            else:
                break
        return batch

    def close(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self._engines.shutdown(wait=False, cancel_futures=True)
