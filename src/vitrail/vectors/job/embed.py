"""The whole job, from listing the inputs to writing _SUCCESS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.errors import require
from vitrail.remote import Location
from vitrail.rules import positive
from vitrail.vectors.engines.engine import Agreement
from vitrail.vectors.job.engine_factory import read_agreement
from vitrail.vectors.job.finish import finish
from vitrail.vectors.job.freeze import Frozen, freeze, version_of
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.part_files import Tally, require_arrow
from vitrail.vectors.job.plan import Plan, weights_stamp
from vitrail.vectors.job.refresh import By
from vitrail.vectors.job.run import Crew, LocalCrew, Progress, run_shards
from vitrail.vectors.job.worker import Worker, WorkerOptions

__all__ = ["LEAST_COSINE", "Embedded", "embed_source"]

LEAST_COSINE = 0.99
"""Refuse int8 if its mean cosine to float32, on a sample of the images, is below this."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The result of a run."""

    folder: Location
    """Where the vectors are: --out, or a version beside it."""
    plan: Plan
    tally: Tally | None
    """None if the run was stopped before the end."""
    stopped: int | None = None
    """The signal that stopped the run, if one did."""


def embed_source(
    source: Location,
    weights: str | Path,
    out: Location,
    options: Options | None = None,
    *,
    workers: int | None = None,
    shard_size: int | None = None,
    worker: WorkerOptions | None = None,
    crew: Callable[[Location, WorkerOptions, int], Crew] = LocalCrew,
    by: By = "time",
    drop_vanished: bool = False,
    new_version: bool = False,
    force: bool = False,
    begin: Callable[[Plan, list[str], Agreement | None], None] = lambda plan, notes, agreement: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Embedded:
    """Embed every image of `source` into the folder `out`, or resume the run that `out` has and bring it up to date.

    Inputs that were added or changed are embedded, and the vectors of all others stay. `by` says how a change is found;
    with `drop_vanished`, rows whose inputs have vanished are removed. If `out` holds vectors of another model or other
    options, it is refused, or with `new_version` left alone: these go to `out`-v2.

    Each worker decodes and computes with one thread (default: one worker per core). `begin` is called with the plan,
    notes for the user and, for approximate engines, the agreement with float32; `watch` with the run's progress.
    """
    require_arrow()
    options, worker = options or Options(), worker or WorkerOptions()
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    positive("workers", count)
    path = weights_path(weights)
    checkpoint = load(path)
    if new_version:
        out = version_of(out, path, checkpoint, options)
    frozen = freeze(
        out, source, path, checkpoint, options, shard_size=shard_size, workers=count, by=by, drop_vanished=drop_vanished
    )
    plan = frozen.plan
    worker = replace(worker, stamp=weights_stamp(path), generation=plan.generation)
    found = _agreement(out, plan, replace(worker, threads=count), force=force) if options.approximate else None
    begin(plan, list(_notes(frozen, by, drop_vanished=drop_vanished)), found)
    stopped = run_shards(out, plan, crew(out, worker, count), watch)
    if stopped is not None:
        return Embedded(folder=out, plan=plan, tally=None, stopped=stopped)
    facts = {} if found is None else {"cosine_to_float32": asdict(found)}
    return Embedded(folder=out, plan=plan, tally=finish(out, plan, facts))


def _notes(frozen: Frozen, by: By, *, drop_vanished: bool) -> Iterator[str]:
    plan, changes = frozen.plan, frozen.changes
    if plan.repeated:
        yield f"{plan.repeated:,} repeated lines of {plan.input} count once"
    if plan.unread:
        yield f"{plan.unread:,} tables and tars in {plan.input} are not read; give each by itself"
    if plan.unasked:
        yield f"{plan.unasked:,} URLs of {plan.input} are not asked about before they are read; a change is not noticed"
    if frozen.fault is not None:
        yield f"the plan is followed, since its input cannot be compared with it: {frozen.fault}"
    if changes is None or not (changes.added or changes.changed or changes.vanished):
        return
    how = "size and time" if by == "time" else "content"
    vanished = "dropped" if drop_vanished else "kept; --drop-vanished removes them"
    words = [f"{changes.added:,} added"] if changes.added else []
    words += [f"{changes.changed:,} changed (by {how})"] if changes.changed else []
    words += [f"{changes.vanished:,} vanished ({vanished})"] if changes.vanished else []
    yield f"since the last run: {', '.join(words)}"


def _agreement(out: Location, plan: Plan, options: WorkerOptions, *, force: bool) -> Agreement:
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
