"""Compare runs: their settings and results, with the spread over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.errors import require
from vitrail.training.folder import read_metrics
from vitrail.training.job import Job, difference, read_job

__all__ = ["Group", "Run", "Spread", "group_runs", "read_run", "spread"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation; a single value has no deviation."""

    mean: float
    deviation: float | None
    count: int

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """
        >>> spread([0.512, 0.518]).text(1, 100), spread([3.0]).text()
        ('51.5 ± 0.4', '3.00')
        """
        mean = f"{self.mean * scale:,.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation * scale:,.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    return Spread(
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        count=len(values),
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as read from its folder, finished or not."""

    path: Path
    job: Job
    state: str
    lines: tuple[dict[str, Any], ...]

    @property
    def step(self) -> int:
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def finished(self) -> bool:
        return self.step == self.job.recipe.steps and self.state == "finished"

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

    def images_per_second(self) -> float | None:
        return statistics.median(line["images_per_second"] for line in self.lines) if self.lines else None

    def test_accuracies(self) -> list[tuple[int, float]]:
        return [(line["step"], line["test_accuracy"]) for line in self.lines if "test_accuracy" in line]

    def results(self) -> dict[str, float]:
        """Return those that exist of final_loss, best_loss, final_accuracy, best_accuracy (on the test split)."""
        losses, accuracies = self.smooth_loss(), [value for _, value in self.test_accuracies()]
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


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ only in their seed."""

    runs: tuple[Run, ...]
    changes: tuple[str, ...]
    """Differences from the first group."""

    @property
    def name(self) -> str:
        first = self.runs[0].path.name
        return first if len(self.runs) == 1 else f"{first} +{len(self.runs) - 1}"

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.job.recipe.seed for run in self.runs)

    def spreads(self) -> dict[str, Spread]:
        """Spread of every result over the runs that have it; unfinished runs count only if no run has finished."""
        counted = [run for run in self.runs if run.finished] or list(self.runs)
        found: dict[str, list[float]] = {}
        for run in counted:
            for name, value in run.results().items():
                found.setdefault(name, []).append(value)
        return {name: spread(values) for name, values in found.items()}


def group_runs(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Group runs that differ only in their seed, in the given order; refuse a seed that comes twice in a group."""
    held: dict[Job, list[Run]] = {}
    for run in runs:
        held.setdefault(_seedless(run.job), []).append(run)
    first = next(iter(held))
    for each in held.values():
        seeds = [run.job.recipe.seed for run in each]
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        require(
            twice is None,
            f"{' and '.join(str(r.path) for r in each if r.job.recipe.seed == twice)} are the same job with the same "
            f"seed {twice}; give one of them",
        )
    return tuple(Group(runs=tuple(each), changes=tuple(difference(first, job))) for job, each in held.items())


def _seedless(job: Job) -> Job:
    return replace(job, recipe=job.recipe.but(seed=0))
