"""A worker process, watched by its parent, so that a decoder that crashes or hangs costs one image.

The worker reports which row it is decoding. If it crashes there, or reports nothing for `patience` seconds, that row
fails with the reason, and a new process retries the shard without it. A worker that was killed from outside (out of
memory, kill -9) retries the row once. A worker ends when its parent does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, Literal

import torch

from vitrail.checkpoint.pixels import prepare
from vitrail.errors import VitrailError
from vitrail.remote import Location
from vitrail.rules import NonNegativeInt, PositiveFloat, PositiveInt
from vitrail.value import Value
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.forks import FORKS
from vitrail.vectors.job.part_files import Tally, skip_pandas
from vitrail.vectors.job.plan import read_plan
from vitrail.vectors.job.preparation import prepare_engine
from vitrail.vectors.job.shard import process_shard

__all__ = ["MAX_DEATHS", "StoppedError", "Task", "Worker", "WorkerOptions"]

MAX_DEATHS = 3
"""Give up after a worker dies this often in one shard, outside any image."""
ROW, SINCE, DONE = 0, 1, 2
NO_ROW = -1
"""The board's row while none is being decoded."""
TIDYING = 5.0
"""Seconds that a stopped process has to exit before it is killed."""
HUNG = "hung"
KILLED = ("SIGKILL", "SIGTERM", "SIGHUP")
"""Signals that come from outside."""
Task = int | Literal["preparation"]
"""A shard's number, or `vitrail.vectors.job.preparation.prepare_engine`, which comes before the first shard."""
STARTING = threading.Lock()


class StoppedError(Exception):
    """The worker was stopped in the middle of a shard."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Value):
    batch: PositiveInt = 4
    threads: PositiveInt = 1
    patience: PositiveFloat = 120.0
    """Seconds that decoding one image may take."""
    decode: Callable[..., Any] | None = None
    """A decoder to use instead of vitrail's."""
    generation: NonNegativeInt | None = None
    """Generation of the plan that the run follows (default: the newest)."""
    stamp: str | None = None
    """`weights_stamp` when the run hashed the weights: a worker that finds the same skips hashing."""


class Worker:
    """Does one shard at a time, restarting its process if it dies."""

    def __init__(self, folder: Location, options: WorkerOptions) -> None:
        self.folder, self.options = folder, options
        self.board = FORKS.RawArray("q", [NO_ROW, 0, 0])  # row being decoded, since when, finished rows
        self.process: BaseProcess | None = None
        self.line: Connection
        self.working = self.stopping = False

    @property
    def done(self) -> int:
        """Finished rows of the current shard."""
        return self.board[DONE]

    def do(self, task: Task) -> Tally:
        """Do a task; raise VitrailError if its part cannot be written."""
        lost: dict[int, str] = {}
        deaths: Counter[int] = Counter()
        while True:
            self.working = True
            result = self._attempt(task, lost)
            self.working = False
            if isinstance(result, Tally):
                self.board[DONE] = 0
                return result
            row = self.board[ROW]
            if self.stopping:
                raise StoppedError
            deaths[row] += 1
            if row >= 0 and (result not in KILLED or deaths[row] > 1):
                how = f"hung for {self.options.patience:g} s" if result == HUNG else f"crashed ({result})"
                lost[row] = f"the decoder {how}; replace or remove it"
            elif deaths[row] >= MAX_DEATHS:
                raise VitrailError(
                    f"a worker died {MAX_DEATHS} times in {f'shard {task}' if isinstance(task, int) else task}, "
                    f"outside any image ({result}); "
                    "if memory is short, use fewer --workers, then run the same command again"
                )

    def stop(self) -> None:
        """Let an idle process exit, and kill a busy one, which is safe: parts are written atomically."""
        self.stopping = True
        if self.process is not None and self.working:
            self.process.kill()
        elif self.process is not None:
            self.line.close()

    def join(self) -> None:
        """Wait until a stopped process has ended."""
        if self.process is not None:
            self.process.join(timeout=TIDYING)
            self.process.kill()
            self.process.join()

    def _attempt(self, task: Task, lost: Mapping[int, str]) -> Tally | str:
        """Return the task's tally, or how the process ended."""
        self.board[ROW], self.board[DONE] = NO_ROW, 0
        process = self.process if self.process is not None and self.process.is_alive() else self._start()
        try:
            self.line.send((task, lost))
            while not wait([self.line, process.sentinel], timeout=0.2):
                if self.board[ROW] >= 0 and time.monotonic_ns() - self.board[SINCE] > self.options.patience * 1e9:
                    process.kill()
                    process.join()
                    return HUNG
            answer = self.line.recv()
        except (EOFError, OSError):
            process.join()
            return _ending(process.exitcode or 0)
        if isinstance(answer, Tally):
            return answer
        raise VitrailError(answer)

    def _start(self) -> BaseProcess:
        self.line, theirs = FORKS.Pipe()
        arguments = (self.folder, self.options, theirs, self.board, dict(os.environ))
        self.process = FORKS.Process(target=_work, args=arguments, daemon=True, name="vitrail-embed")
        with _without_main():
            self.process.start()
        theirs.close()
        return self.process


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not import the caller's script, which would run it again if it has no main guard."""
    with STARTING:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# ── inside the process ──────────────────────────────────────────────────────────────────────────────────────────


def _work(folder: Location, options: WorkerOptions, line: Connection, board: Any, environment: dict[str, str]) -> None:
    """Answer each (task, lost rows) with a tally or with the message of a VitrailError."""
    skip_pandas()
    os.environ.update(environment)  # the process that this one was forked from has that of its own start
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool of compilers would outlive this process
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def watch(row: int | None, done: int) -> None:
        board[SINCE], board[ROW], board[DONE] = time.monotonic_ns(), NO_ROW if row is None else row, done

    decode, batch, threads, stamp = options.decode or prepare, options.batch, options.threads, options.stamp
    torch.set_num_threads(threads)  # torch resizes images, whichever runtime computes: more threads wait in a loop
    engine = None
    while True:
        try:
            task, lost = line.recv()
        except EOFError:
            return
        answer = Tally()
        try:
            plan = read_plan(folder, options.generation)
            common = {"lost": lost, "decode": decode, "watch": watch, "batch": batch}
            if task == "preparation":
                prepare_engine(folder, plan, threads=threads, stamp=stamp, **common)
            else:
                engine = engine or engine_of(folder, plan, batch=batch, threads=threads, stamp=stamp)
                answer = process_shard(folder, plan, task, engine, **common)
        except VitrailError as error:
            answer = str(error)
        line.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
