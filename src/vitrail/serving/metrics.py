"""Counters for Prometheus, in its text format.

Written by hand: seven metrics are eighty lines, and prometheus_client would bring a registry for the whole process.
Tests read what is written with that library's own parser.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        below = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self.sum!r}"
        yield f"{name}_count {below}"


class Metrics:
    """What has been asked and answered. All methods belong to one event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images = 0
        self.request_seconds, self.batch_seconds = Histogram(SECONDS), Histogram(SECONDS)
        self.batch_images = Histogram(IMAGES)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests[endpoint, status] += 1
        self.request_seconds.add(seconds)

    def batch(self, images: int, seconds: float) -> None:
        self.images += images
        self.batch_images.add(images)
        self.batch_seconds.add(seconds)

    def text(self, *, waiting: int, ready: bool) -> str:
        """Return all metrics in Prometheus's text format."""
        lines = [
            *_head("vitrail_requests_total", "counter", "Requests answered, by endpoint and status."),
            *(
                f'vitrail_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
                for (endpoint, status), count in sorted(self.requests.items())
            ),
            *_head("vitrail_images_total", "counter", "Images turned into vectors."),
            f"vitrail_images_total {self.images}",
            *_head("vitrail_waiting_images", "gauge", "Images that are admitted and not yet answered."),
            f"vitrail_waiting_images {waiting}",
            *_head("vitrail_ready", "gauge", "Whether the model is ready."),
            f"vitrail_ready {int(ready)}",
            *_head("vitrail_request_seconds", "histogram", "Seconds from a request to its answer."),
            *self.request_seconds.lines("vitrail_request_seconds"),
            *_head("vitrail_batch_seconds", "histogram", "Seconds that the engine took for a batch."),
            *self.batch_seconds.lines("vitrail_batch_seconds"),
            *_head("vitrail_batch_images", "histogram", "Images of a batch."),
            *self.batch_images.lines("vitrail_batch_images"),
        ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"
