"""A run's folder: what people and programs read while it runs and after.

config.json, recipe.json, data.json   the job
metrics.jsonl                          an object a step
status.json                            where it stands
states/                                the two newest states
model.safetensors, curves.png          at the end
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError

__all__ = ["RunFolder", "read_metrics"]


class RunFolder:
    """Writes metrics and status; only the first process does."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.states, self.model, self.curves = path / "states", path / "model.safetensors", path / "curves.png"
        self.metrics, self.status_file = path / "metrics.jsonl", path / "status.json"
        self.held: dict[str, Any] = {}

    def rewind(self, step: int) -> None:
        """Forget what was told of steps after `step`: they will be done again."""
        if not self.writes or not self.metrics.exists():
            return
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        self._replace(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def append(self, line: dict[str, Any]) -> None:
        if not self.writes:
            return
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise _not_written(self.metrics, error) from None

    def status(self, **facts: Any) -> None:
        """Replace the status; what isn't given stays."""
        self.held |= facts
        if self.writes:
            self._replace(self.status_file, json.dumps(self.held, indent=2) + "\n")

    def _replace(self, path: Path, text: str) -> None:
        temporary = path.with_name(f".{path.name}.part")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> VitrailError:
    return VitrailError(
        f"{path} was not written ({error.strerror or error}); the last state in {path.parent / 'states'} is whole: "
        "make room and resume"
    )


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The steps' objects; a last line that a kill cut short is left out."""
    path, found = folder / "metrics.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
