"""The whole job, from listing the inputs to writing _SUCCESS."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.errors import VitrailError, require
from vitrail.rules import positive
from vitrail.vectors.engines.engine import Agreement
from vitrail.vectors.job.engine_factory import read_agreement
from vitrail.vectors.job.finish import finish
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.part_files import Tally, require_arrow
from vitrail.vectors.job.plan import Plan, freeze, growth, weights_stamp
from vitrail.vectors.job.run import Crew, LocalCrew, Progress, run_shards
from vitrail.vectors.job.worker import Worker, WorkerOptions

__all__ = ["LEAST_COSINE", "Embedded", "embed_source"]

LEAST_COSINE = 0.99
"""Refuse int8 if its mean cosine to float32, on a sample of the images, is below this."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The result of a run."""

    plan: Plan
    tally: Tally | None
    """None if the run was stopped before the end."""
    stopped: int | None = None
    """The signal that stopped the run, if one did."""


def embed_source(
    source: Path,
    weights: str | Path,
    out: Path,
    options: Options | None = None,
    *,
    workers: int | None = None,
    shard_size: int | None = None,
    worker: WorkerOptions | None = None,
    crew: Callable[[Path, WorkerOptions, int], Crew] = LocalCrew,
    force: bool = False,
    begin: Callable[[Plan, list[str], Agreement | None], None] = lambda plan, notes, agreement: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Embedded:
    """Embed every image of `source` into the folder `out`, or resume the run that `out` has.

    Each worker decodes and computes with one thread (default: one worker per core). `begin` is called with the plan,
    notes for the user and, for approximate engines, the agreement with float32; `watch` with the run's progress.
    """
    require_arrow()
    options, worker = options or Options(), worker or WorkerOptions()
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    positive("workers", count)
    path, fresh = weights_path(weights), not (out / "plan.json").exists()
    worker = replace(worker, stamp=weights_stamp(path))
    plan = freeze(out, source, path, load(path), options, shard_size=shard_size, workers=count)
    found = _agreement(out, plan, replace(worker, threads=count), force=force) if options.approximate else None
    begin(plan, _notes(plan, fresh=fresh), found)
    stopped = run_shards(out, plan, crew(out, worker, count), watch)
    if stopped is not None:
        return Embedded(plan=plan, tally=None, stopped=stopped)
    facts = {} if found is None else {"cosine_to_float32": asdict(found)}
    return Embedded(plan=plan, tally=finish(out, plan, facts))


def _notes(plan: Plan, *, fresh: bool) -> list[str]:
    notes = []
    if plan.repeated:
        notes.append(f"{plan.repeated:,} repeated lines of {plan.input} count once")
    if plan.unread:
        notes.append(f"{plan.unread:,} tables and tars in {plan.input} are not read; give each by itself")
    if not fresh:
        with suppress(VitrailError):  # if the input is gone, every remaining row will say so
            more = growth(plan)
            notes += [more] if more else []
    return notes


def _agreement(out: Path, plan: Plan, options: WorkerOptions, *, force: bool) -> Agreement:
    found = read_agreement(out, plan)
    if found is None:
        worker = Worker(out, options)
        try:
            worker.do("calibration")
        finally:
            worker.stop()
            worker.join()
        found = read_agreement(out, plan)
    assert found is not None
    require(
        found.mean >= LEAST_COSINE or force or plan.options.engine == "torch",
        f"int8 comes within a cosine of {found.mean:.4f} of float32 on {found.images} of your images, less than "
        f"{LEAST_COSINE}; use --engine torch and another --out, or --force it",
    )
    return found
