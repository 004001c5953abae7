"""A run's folder: what people and programs read while it runs and after.

config.json, recipe.json, data.json   the job
metrics.jsonl                          an object per step
status.json                            the progress
states/                                the two newest states
model.safetensors, curves.png          at the end
.lock                                  the process that is training in the folder
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from vitrail.atomic import write_file, write_json_file
from vitrail.errors import VitrailError
from vitrail.lock import lock
from vitrail.training.distributed import World

__all__ = ["RunFolder", "read_metrics"]


class RunFolder:
    """Writes metrics and status, in the first process only."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.states, self.model, self.curves = path / "states", path / "model.safetensors", path / "curves.png"
        self.adapters = path / "adapters.safetensors"
        self.metrics, self.status_file = path / "metrics.jsonl", path / "status.json"
        self.lock_file = path / ".lock"
        self.held: dict[str, Any] = {}
        self.entered, self.descriptor = False, None

    @contextmanager
    def alone(self, world: World) -> Iterator[Self]:
        """Lock the folder against other runs; raise VitrailError in every process if another run has the lock.

        The first process has the lock, which ends with the process. A nested call does nothing.
        """
        if self.entered:
            yield self
            return
        made = not os.path.exists(self.path)
        refusal = self._lock() if self.writes else None
        if world.first(1 if refusal else None) is not None:
            raise VitrailError(refusal or f"{self.path} was refused in the first process of this run; see its message")
        self.entered = True
        try:
            yield self
        finally:
            self.entered = False
            if self.descriptor is not None:
                self.lock_file.unlink(missing_ok=True)
                os.close(self.descriptor)
                self.descriptor = None
            if made and self.writes:
                with suppress(OSError):  # a run that wrote nothing leaves no folder
                    self.path.rmdir()

    def _lock(self) -> str | None:
        """Take the lock, or return why it cannot be taken."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{self.path} cannot be a run's folder ({error.strerror or error}); choose another"
        try:
            self.descriptor = lock(self.lock_file, os.O_RDWR | os.O_CREAT)
        except OSError:
            return None  # a file system without locks: `guarded` is False
        if self.descriptor is None:
            return f"{self.path} is in use by {self._holder()}; wait until it ends, or choose another folder"
        os.truncate(self.descriptor, 0)
        os.write(self.descriptor, f"process {os.getpid()} on {platform.node()}".encode())
        return None

    def _holder(self) -> str:
        with suppress(OSError):
            return " ".join(self.lock_file.read_text(errors="replace").split())[:80] or "another process"
        return "another process"

    @property
    def guarded(self) -> bool:
        """Whether the folder is locked; some file systems have no locks."""
        return self.descriptor is not None or not self.writes

    def rewind(self, step: int) -> None:
        """Remove the metrics of steps after `step`, which will be repeated."""
        if not self.writes or not self.metrics.exists():
            return
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept).encode()
        write_file(self.metrics, lambda file: file.write(text))

    def append(self, line: dict[str, Any]) -> None:
        if not self.writes:
            return
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise VitrailError(
                f"{self.metrics} was not written ({error.strerror or error}); the last state in {self.states} is "
                "whole: make room and resume"
            ) from None

    def status(self, **facts: Any) -> None:
        """Update the given fields of status.json."""
        self.held |= facts
        if self.writes:
            write_json_file(self.status_file, self.held)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of all steps, without an incomplete last line."""
    path, found = folder / "metrics.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
