"""Run the shards on a Ray cluster whose machines all see the input, the weights and the output.

An actor runs one `vitrail.vectors.job.worker.Worker`. An actor that dies is replaced, and its shard is retried.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, require
from vitrail.vectors.job.part_files import Tally
from vitrail.vectors.job.run import Finished
from vitrail.vectors.job.worker import MAX_DEATHS, Worker, WorkerOptions

__all__ = ["RayCluster", "RayCrew"]


class RayCluster:
    """Connect to the Ray cluster at an address, or start one on this machine."""

    def __init__(self, address: str | None = None, *, cpus: int | None = None) -> None:
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
            import ray
        except ImportError:
            raise VitrailError("--engine ray needs Ray, which is not installed; pip install 'vitrail[ray]'") from None
        started: dict[str, Any] = {} if address else {"num_cpus": cpus, "include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **started)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:100]
            raise VitrailError(f"no Ray cluster answers at {address or 'this machine'} ({reason}); start one") from None
        self.cpus = int(ray.cluster_resources().get("CPU", 1))

    def crew(self, folder: Path, options: WorkerOptions, size: int) -> RayCrew:
        return RayCrew(folder.absolute(), options, size)


class RayCrew:
    """A crew with one Ray actor per member."""

    underway: int = 0  # actors report only whole shards

    def __init__(self, folder: Path, options: WorkerOptions, size: int) -> None:
        import ray

        self.ray, self.size = ray, size
        self.folder, self.options = folder, options
        self.actor = ray.remote(num_cpus=1, max_restarts=0)(RayWorker)
        self.hands: list[Any] = [None] * size
        self.doing: dict[Any, tuple[int, int]] = {}
        self.deaths: Counter[int] = Counter()

    def give(self, member: int, shard: int) -> None:
        if self.hands[member] is None:
            self.hands[member] = self.actor.remote(self.folder, self.options)
        self.doing[self.hands[member].do.remote(shard)] = member, shard

    def wait(self, seconds: float) -> list[Finished]:
        ready, _ = self.ray.wait(list(self.doing), timeout=seconds)
        return [finished for each in ready if (finished := self._take(each)) is not None]

    def _take(self, promise: Any) -> Finished | None:
        member, shard = self.doing.pop(promise)
        try:
            answer = self.ray.get(promise)
        except self.ray.exceptions.RayActorError as error:
            self.deaths[shard] += 1
            reason = " ".join(str(error).split())[:100]
            require(
                self.deaths[shard] < MAX_DEATHS,
                f"an actor died {MAX_DEATHS} times in shard {shard} ({reason}); run the same command again",
            )
            self.hands[member] = None
            self.give(member, shard)
            return None
        if isinstance(answer, Tally):
            return Finished(member, answer)
        raise VitrailError(answer)

    def stop(self) -> None:
        self.ray.shutdown()


class RayWorker:
    """The actor: a worker whose errors are returned as text, because Ray wraps exceptions."""

    def __init__(self, folder: Path, options: WorkerOptions) -> None:
        self.worker = Worker(folder, options)

    def do(self, shard: int) -> Tally | str:
        try:
            return self.worker.do(shard)
        except VitrailError as error:
            return str(error)
