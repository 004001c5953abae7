"""Group runs that differ only in their seed: settings, results and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vitrail.errors import require
from vitrail.training.job import Job, difference
from vitrail.training.run import Run

__all__ = ["CHANCE", "Group", "Spread", "group_runs", "spread"]

CHANCE = {2: 9.0, 3: 2.5, 4: 1.6, 5: 1.25}
"""Seeds → Student's t at 97.5 % over their root: how many deviations make a mean difference unlikely by chance."""


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
