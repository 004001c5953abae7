"""Give shards to workers until none is left: to processes of this machine, or to another crew.

Runs that share a folder need no locks. Each starts at a random shard and skips those that are done; if two do the same
shard, both write the same file under a temporary name of their own, and the later rename changes nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from vitrail.stop import Stop
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.part_files import Tally, is_done, read_tally
from vitrail.vectors.job.plan import Plan, read_plan
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.job.worker import Worker, WorkerOptions

__all__ = ["Crew", "Finished", "LocalCrew", "OwnProcess", "Progress", "run_shards"]


class Finished(NamedTuple):
    """A member of the crew has finished its shard."""

    member: int
    tally: Tally


class Crew(Protocol):
    """Workers, each of which does one shard at a time."""

    size: int

    def give(self, member: int, shard: int) -> None: ...

    def wait(self, seconds: float) -> list[Finished]:
        """Wait up to `seconds`; return finished members; re-raise a member's error."""
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


def run_shards(folder: Path, plan: Plan, crew: Crew, watch: Callable[[Progress], None] = lambda _: None) -> int | None:
    """Run all shards that are not done; return the signal that stopped the run, if one did.

    After the first Ctrl-C or SIGTERM no more shards are started; the second raises KeyboardInterrupt.
    """
    progress = Progress(images=plan.images)
    waiting: list[int] = []
    for shard in range(plan.shards):
        tally = read_tally(folder, plan, shard)
        if tally is None:
            waiting.append(shard)
        else:
            progress.tally += tally
    progress.before = progress.done
    watch(progress)
    first = random.randrange(len(waiting)) if waiting else 0
    waiting = (waiting[first:] + waiting[:first])[::-1]
    idle, busy = list(range(min(crew.size, len(waiting)))), set[int]()
    began = None
    try:
        with Stop() as stop:
            while busy or (waiting and not stop.asked):
                while idle and waiting and not stop.asked:
                    shard = waiting.pop()
                    if is_done(folder, plan, shard):  # another run did it meanwhile
                        progress.tally += read_tally(folder, plan, shard) or Tally()
                        continue
                    busy.add(idle[-1])
                    crew.give(idle.pop(), shard)
                for member, tally in crew.wait(0.2) if busy else ():
                    progress.tally += tally
                    progress.own += tally.ok + tally.failed
                    busy.discard(member)
                    idle.append(member)
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

    size, underway = 1, 0

    def __init__(self, folder: Path, options: WorkerOptions, size: int) -> None:
        self.folder, self.batch, self.plan = folder, options.batch, read_plan(folder)
        self.engine = engine_of(folder, self.plan, batch=options.batch, stamp=options.stamp)
        self.given: list[int] = []

    def give(self, member: int, shard: int) -> None:
        self.given.append(shard)

    def wait(self, seconds: float) -> list[Finished]:
        return [Finished(0, process_shard(self.folder, self.plan, self.given.pop(), self.engine, batch=self.batch))]

    def stop(self) -> None:
        """Nothing runs between calls."""


class LocalCrew:
    """A crew of processes on this machine, each watched by a thread."""

    def __init__(self, folder: Path, options: WorkerOptions, size: int) -> None:
        self.size = size
        self.workers = [Worker(folder, options) for _ in range(size)]
        self.watchers = ThreadPoolExecutor(size)
        self.doing: dict[Future[Tally], int] = {}

    def give(self, member: int, shard: int) -> None:
        self.doing[self.watchers.submit(self.workers[member].do, shard)] = member

    def wait(self, seconds: float) -> list[Finished]:
        done, _ = wait(self.doing, timeout=seconds, return_when=FIRST_COMPLETED)
        return [Finished(self.doing.pop(future), future.result()) for future in done]

    @property
    def underway(self) -> int:
        return sum(worker.done for worker in self.workers)

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join()
        self.watchers.shutdown()
