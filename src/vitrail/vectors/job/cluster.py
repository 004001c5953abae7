"""Run the shards on a Ray cluster whose machines all see the input, the weights and the output.

An actor runs one `vitrail.vectors.job.worker.Worker`. Machines may come and go: an actor that dies with its machine is
replaced where there is room, its shard goes to whichever actor is free, and a machine that joins gets actors of its
own. Nothing is given to an actor before it runs, so that no shard waits for a machine.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from typing import Any

from vitrail.errors import VitrailError, require
from vitrail.remote import Location
from vitrail.vectors.job.part_files import Tally
from vitrail.vectors.job.run import Finished
from vitrail.vectors.job.worker import MAX_DEATHS, Worker, WorkerOptions

__all__ = ["RayCluster", "RayCrew"]

LOOK = 5.0
"""Seconds between two looks at the cluster's size."""
ALONE = 300.0
"""Seconds without any actor after which a run gives up."""


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
            # Ray without an address joins whatever cluster was started last on this machine
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **started)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:100]
            raise VitrailError(f"no Ray cluster answers at {address or 'this machine'} ({reason}); start one") from None
        self.most = cpus
        self.cpus = int(ray.cluster_resources().get("CPU", 1))

    def crew(self, folder: Location, options: WorkerOptions, size: int) -> RayCrew:
        return RayCrew(folder.absolute(), options, size, most=self.most)


class RayCrew:
    """A crew with an actor per core of the cluster, at most `most`."""

    underway: int = 0  # actors report only whole shards

    def __init__(self, folder: Location, options: WorkerOptions, size: int, *, most: int | None = None) -> None:
        import ray

        self.ray, self.most = ray, most
        self.folder, self.options = folder, options
        self.actor: Any = ray.remote(num_cpus=1, max_restarts=0)(RayWorker)
        self.starting: dict[Any, Any] = {}
        self.idle: list[Any] = []
        self.doing: dict[Any, tuple[Any, int]] = {}
        self.deaths: Counter[int] = Counter()
        self.looked = self.last_seen = time.monotonic()
        self._start(size)

    @property
    def free(self) -> int:
        return len(self.idle)

    def give(self, shard: int) -> None:
        actor = self.idle.pop()
        self.doing[actor.do.remote(shard)] = actor, shard

    def wait(self, seconds: float) -> list[Finished]:
        self._look()
        promises = [*self.starting, *self.doing]
        ready, _ = self.ray.wait(promises, timeout=seconds) if promises else ([], [])
        return [finished for each in ready if (finished := self._take(each)) is not None]

    def _take(self, promise: Any) -> Finished | None:
        if promise in self.starting:
            actor = self.starting.pop(promise)
            try:
                self.ray.get(promise)
                self.idle.append(actor)
            except self.ray.exceptions.RayError:
                self._start(1)
            return None
        actor, shard = self.doing.pop(promise)
        try:
            answer = self.ray.get(promise)
        except self.ray.exceptions.RayError as error:
            self.deaths[shard] += 1
            reason = " ".join(str(error).split())[:100]
            require(
                self.deaths[shard] < MAX_DEATHS,
                f"an actor died {MAX_DEATHS} times in shard {shard} ({reason}); run the same command again",
            )
            self._start(1)
            self.starting |= {each.ready.remote(): each for each in self.idle}  # they may have died with the machine
            self.idle.clear()
            return Finished(shard, None)
        self.idle.append(actor)
        if isinstance(answer, Tally):
            return Finished(shard, answer)
        raise VitrailError(answer)

    def _start(self, count: int) -> None:
        for _ in range(count):
            actor = self.actor.remote(self.folder, self.options)
            self.starting[actor.ready.remote()] = actor

    def _look(self) -> None:
        """Start actors on machines that have joined; give up if there has been no machine for long."""
        now = time.monotonic()
        if self.idle or self.doing:
            self.last_seen = now
        require(
            now - self.last_seen < ALONE,
            f"the cluster has had no free core for {ALONE:g} s; add a machine and run the same command again",
        )
        if now - self.looked < LOOK:
            return
        self.looked = now
        cpus = int(self.ray.cluster_resources().get("CPU", 0))
        wanted = cpus if self.most is None else min(cpus, self.most)
        self._start(max(0, wanted - len(self.starting) - len(self.idle) - len(self.doing)))

    def stop(self) -> None:
        self.ray.shutdown()


class RayWorker:
    """The actor: a worker whose errors are returned as text, because Ray wraps exceptions."""

    def __init__(self, folder: Location, options: WorkerOptions) -> None:
        self.worker = Worker(folder, options)

    def ready(self) -> None:
        """Answer once the actor runs."""

    def do(self, shard: int) -> Tally | str:
        try:
            return self.worker.do(shard)
        except VitrailError as error:
            return str(error)
