"""A run as a value: its job, the metrics of every step, its results and its weights."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.charts.notebook import Shown, curve, facts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.errors import require
from vitrail.training.folder import read_metrics
from vitrail.training.job import Job, read_job

__all__ = ["Run", "read_run"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(Shown):
    """A run as read from its folder, finished or not.

    >>> from vitrail import preset, train
    >>> small = preset("cifar-small", depth=1, classes=4)
    >>> run = train("shapes", small, out="run", changes={"steps": 2, "batch": 8})
    >>> run.finished, run.accuracies()[-1][1] == run.accuracy
    (True, True)
    """

    path: Path
    job: Job
    state: str
    lines: tuple[dict[str, Any], ...]
    """The metrics of every step."""
    stopped: int | None = None
    """Number of the signal that stopped the run, if one did; the last step is saved."""

    @property
    def step(self) -> int:
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def finished(self) -> bool:
        return self.step == self.job.recipe.steps and self.state == "finished"

    @property
    def loss(self) -> float | None:
        """The training loss of the last step."""
        return self.lines[-1]["loss"] if self.lines else None

    @property
    def accuracy(self) -> float | None:
        """The last accuracy on the test split; with a validation split, on that."""
        return next((value for _, value in reversed(self.accuracies())), None)

    def _summary(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        accuracy = "" if self.accuracy is None else f", {self.job.data.judged_on} accuracy {self.accuracy:.2%}"
        return f"{self.path}, step {self.step:,} of {self.job.recipe.steps:,}{loss}{accuracy}"

    def _panel(self) -> Iterator[str]:
        if self.lines:
            steps = [line["step"] for line in self.lines]
            yield curve("Loss", {"training": list(zip(steps, self.smooth_loss(), strict=True))})
            accuracies = {"training": [(line["step"], 100 * line["accuracy"]) for line in self.lines]}
            tests = [(step, 100 * value) for step, value in self.accuracies()]
            yield curve("Accuracy", accuracies | ({self.job.data.judged_on: tests} if tests else {}), unit=" %")
        data = self.job.data
        yield facts(
            [
                ("state", self.state),
                ("data", f"{', '.join(map(str, data.sources))}: {data.images:,} images, {len(data.classes)} classes"),
                ("recipe", self.job.recipe),
            ]
        )

    def checkpoint(self) -> Checkpoint:
        """Load the trained weights; the run must be finished."""
        require(self.finished, f"{self.path} is at step {self.step} of {self.job.recipe.steps}; resume it first")
        return load(self.path / "model.safetensors")

    def smooth_loss(self) -> list[float]:
        """Return the loss at every step, averaged over the preceding twentieth of the run."""
        width, sums, found = max(1, self.job.recipe.steps // 20), 0.0, []
        losses = [line["loss"] for line in self.lines]
        for place, loss in enumerate(losses):
            sums += loss - (losses[place - width] if place >= width else 0.0)
            found.append(sums / min(place + 1, width))
        return found

    def first_epoch_loss(self) -> float | None:
        """Mean training loss of the first epoch, or of the part that the run has."""
        steps = max(1, self.job.data.images // self.job.recipe.batch)
        losses = [line["loss"] for line in self.lines[:steps]]
        return statistics.fmean(losses) if losses else None

    def accuracies(self) -> list[tuple[int, float]]:
        """Return steps and accuracies on the split that the run was judged on."""
        name = f"{self.job.data.judged_on}_accuracy"
        return [(line["step"], line[name]) for line in self.lines if name in line]

    def results(self) -> dict[str, float]:
        """Return those that exist of final_loss, best_loss, final_accuracy and best_accuracy."""
        losses, accuracies = self.smooth_loss(), [value for _, value in self.accuracies()]
        found: dict[str, float] = {}
        if losses:
            width = max(1, self.job.recipe.steps // 20)
            found = {"final_loss": losses[-1], "best_loss": min(losses[width - 1 :] or losses[-1:])}
        if accuracies:
            found |= {"final_accuracy": accuracies[-1], "best_accuracy": max(accuracies)}
        return found


def read_run(path: Path) -> Run:
    require(path.is_dir(), f"{path} is not a run's folder; give folders that vitrail train --out made")
    job, state = read_job(path), "begun"
    with suppress(OSError, ValueError, KeyError, TypeError):  # a run that was killed before its first metrics
        state = json.loads((path / "status.json").read_bytes())["state"]
    return Run(path=path, job=job, state=state, lines=tuple(read_metrics(path)))
