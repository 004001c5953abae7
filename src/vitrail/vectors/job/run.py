"""Give shards to workers until none is left: to processes of this machine, or to another crew.

Runs that share a folder need no locks. Each starts at a random shard and skips those that are done; if two do the same
shard, both write the same file under a temporary name of their own, and the later rename changes nothing. A shard that
a crew lost with its machine is given to another member.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from vitrail.remote import Location
from vitrail.stop import Stop
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.part_files import Tally, read_tallies, read_tally
from vitrail.vectors.job.plan import Plan, read_plan
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.job.worker import Worker, WorkerOptions

__all__ = ["Crew", "Finished", "LocalCrew", "OwnProcess", "Progress", "run_shards"]


class Finished(NamedTuple):
    """A shard that a crew has finished, or has lost together with a member: its tally is then None."""

    shard: int
    tally: Tally | None


class Crew(Protocol):
    """Workers, each of which does one shard at a time."""

    @property
    def free(self) -> int:
        """Members that wait for a shard."""
        ...

    def give(self, shard: int) -> None:
        """Give a shard to a free member."""
        ...

    def wait(self, seconds: float) -> list[Finished]:
        """Wait up to `seconds`; return finished and lost shards; re-raise a member's error."""
        ...

    @property
    def underway(self) -> int:
        """Images finished in shards still running."""
        ...

    def stop(self) -> None:
        """Stop at once, in the middle of shards."""
        ...


@dataclass(kw_only=True)
class Progress:
    """The progress of a run."""

    images: int
    tally: Tally = field(default_factory=Tally)
    """Images in finished shards, of this run and others."""
    before: int = 0
    """Images that were done when this run started."""
    underway: int = 0
    own: int = 0
    """Images in shards that this run finished."""
    seconds: float = 0.0
    """Seconds since the first image, which leaves out the workers' start."""
    head_start: int = 0
    """Images that were done when the clock was started."""
    stopping: bool = False

    @property
    def done(self) -> int:
        return self.tally.ok + self.tally.failed + self.underway

    @property
    def per_second(self) -> float:
        return (self.own + self.underway - self.head_start) / self.seconds if self.seconds else 0.0


def run_shards(
    folder: Location, plan: Plan, crew: Crew, watch: Callable[[Progress], None] = lambda _: None
) -> int | None:
    """Run all shards that are not done; return the signal that stopped the run, if one did.

    After the first Ctrl-C or SIGTERM no more shards are started; the second raises KeyboardInterrupt.
    """
    progress = Progress(images=plan.images)
    waiting: list[int] = []
    for shard, tally in enumerate(read_tallies(folder, plan)):
        if tally is None:
            waiting.append(shard)
        else:
            progress.tally += tally
    progress.before = progress.done
    watch(progress)
    first = random.randrange(len(waiting)) if waiting else 0
    waiting = (waiting[first:] + waiting[:first])[::-1]
    busy, began = 0, None
    try:
        with Stop() as stop:
            while busy or (waiting and not stop.asked):
                while crew.free and waiting and not stop.asked:
                    shard = waiting.pop()
                    done = read_tally(folder, plan, shard)
                    if done is not None:  # another run did it meanwhile
                        progress.tally += done
                        continue
                    crew.give(shard)
                    busy += 1
                for shard, tally in crew.wait(0.2):
                    busy -= 1
                    if tally is None:
                        waiting.append(shard)
                        continue
                    progress.tally += tally
                    progress.own += tally.ok + tally.failed - tally.kept
                progress.underway = crew.underway
                if began is not None:
                    progress.seconds = time.monotonic() - began
                elif progress.own + progress.underway:
                    began, progress.head_start = time.monotonic(), progress.own + progress.underway
                progress.stopping = stop.asked is not None
                watch(progress)
            return stop.asked
    finally:
        crew.stop()


class OwnProcess:
    """A crew of one, this process: it starts at once, and ends if a decoder crashes or hangs."""

    underway = 0

    def __init__(self, folder: Location, options: WorkerOptions, size: int) -> None:
        self.folder, self.batch, self.plan = folder, options.batch, read_plan(folder, options.generation)
        self.engine = engine_of(folder, self.plan, batch=options.batch, stamp=options.stamp)
        self.given: list[int] = []

    @property
    def free(self) -> int:
        return 1 - len(self.given)

    def give(self, shard: int) -> None:
        self.given.append(shard)

    def wait(self, seconds: float) -> list[Finished]:
        given, self.given = self.given, []
        return [
            Finished(each, process_shard(self.folder, self.plan, each, self.engine, batch=self.batch)) for each in given
        ]

    def stop(self) -> None:
        """Nothing runs between calls."""


class LocalCrew:
    """A crew of processes on this machine, each watched by a thread."""

    def __init__(self, folder: Location, options: WorkerOptions, size: int) -> None:
        self.workers = [Worker(folder, options) for _ in range(size)]
        self.idle = list(self.workers)
        self.watchers = ThreadPoolExecutor(size)
        self.doing: dict[Future[Tally], tuple[Worker, int]] = {}

    @property
    def free(self) -> int:
        return len(self.idle)

    def give(self, shard: int) -> None:
        worker = self.idle.pop()
        self.doing[self.watchers.submit(worker.do, shard)] = worker, shard

    def wait(self, seconds: float) -> list[Finished]:
        done, _ = wait(self.doing, timeout=seconds, return_when=FIRST_COMPLETED)
        return [self._take(future) for future in done]

    def _take(self, future: Future[Tally]) -> Finished:
        worker, shard = self.doing.pop(future)
        self.idle.append(worker)
        return Finished(shard, future.result())

    @property
    def underway(self) -> int:
        return sum(worker.done for worker in self.workers)

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join()
        self.watchers.shutdown()
