"""The whole job, from listing the inputs to writing _SUCCESS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.codec import to_plain
from vitrail.errors import require
from vitrail.remote import Location
from vitrail.rules import positive
from vitrail.vectors.engines.engine import Agreement
from vitrail.vectors.engines.tournament import Choice
from vitrail.vectors.job.engine_factory import Merging, read_choice, read_merging, runtime_of
from vitrail.vectors.job.finish import finish
from vitrail.vectors.job.freeze import Frozen, freeze, version_of
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.part_files import Tally, require_arrow
from vitrail.vectors.job.plan import Plan, find_generation, read_plan, weights_stamp
from vitrail.vectors.job.preparation import choose_without_images, is_prepared, read_agreement
from vitrail.vectors.job.refresh import By
from vitrail.vectors.job.run import Crew, LocalCrew, OwnProcess, Progress, run_shards
from vitrail.vectors.job.worker import Worker, WorkerOptions

__all__ = ["LEAST_COSINE", "Embedded", "Prepared", "embed_source"]

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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What was found out before the first shard."""

    choice: Choice | None = None
    """None for --engine torch."""
    agreement: Agreement | None = None
    """None for engines whose vectors are float32's."""
    merging: Merging | None = None
    """What was chosen for `keep_cosine`."""

    def facts(self) -> dict[str, Any]:
        """What the manifest tells."""
        told: dict[str, Any] = {} if self.choice is None else {"engine": to_plain(self.choice)}
        told |= {} if self.merging is None else {"merging": to_plain(self.merging)}
        return told if self.agreement is None else told | {"cosine_to_float32": asdict(self.agreement)}


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
    begin: Callable[[Plan, list[str], Prepared], None] = lambda plan, notes, prepared: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Embedded:
    """Embed every image of `source` into the folder `out`, or resume the run that `out` has and bring it up to date.

    Inputs that were added or changed are embedded, and the vectors of all others stay. `by` says how a change is found;
    with `drop_vanished`, rows whose inputs have vanished are removed. If `out` holds vectors of another model or other
    options, it is refused, or with `new_version` left alone: these go to `out`-v2.

    Each worker decodes and computes with one thread (default: one worker per core). `begin` is called with the plan,
    notes for the user and what was found out about its engine; `watch` with the run's progress.
    """
    require_arrow()
    options, worker = options or Options(), worker or WorkerOptions()
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    positive("workers", count)
    path = weights_path(weights)
    checkpoint = load(path)
    options = _followed(options, out)
    if new_version:
        out = version_of(out, path, checkpoint, options)
        options = _followed(options, out)
    frozen = freeze(
        out, source, path, checkpoint, options, shard_size=shard_size, workers=count, by=by, drop_vanished=drop_vanished
    )
    plan = frozen.plan
    worker = replace(worker, stamp=weights_stamp(path), generation=plan.generation)
    parameters = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    prepared = _prepare(out, plan, worker, count, parameters, in_process=crew is OwnProcess, force=force)
    begin(plan, list(_notes(frozen, by, drop_vanished=drop_vanished)), prepared)
    stopped = run_shards(out, plan, crew(out, worker, count), watch)
    if stopped is not None:
        return Embedded(folder=out, plan=plan, tally=None, stopped=stopped)
    return Embedded(folder=out, plan=plan, tally=finish(out, plan, prepared.facts()))


def _followed(asked: Options, out: Location) -> Options:
    """With --engine auto, a run that was begun goes on with its own float32 engine."""
    if asked.engine != "auto" or find_generation(out) is None:
        return asked
    held = read_plan(out).options.engine
    return asked if held == "int8" else replace(asked, engine=held)


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


def _prepare(
    out: Location, plan: Plan, worker: WorkerOptions, workers: int, parameters: int, *, in_process: bool, force: bool
) -> Prepared:
    """Find out what the plan leaves open, unless the folder has it: which engine, and how near it comes to float32."""
    choose_without_images(
        out,
        plan,
        parameters=parameters,
        workers=workers,
        batch=worker.batch,
        threads=worker.threads,
        in_process=in_process,
    )
    if not is_prepared(out, plan):
        one = Worker(out, worker)
        try:
            one.do("preparation")
        finally:
            one.stop()
            one.join()
    runtime_of(out, plan)  # refused here, before workers are started
    found = read_agreement(out, plan) if plan.options.approximate else None
    require(
        found is None or found.mean >= LEAST_COSINE or force or plan.options.engine != "int8",
        f"int8 comes within a cosine of {found.mean if found else 0:.4f} of float32 on {found.images if found else 0} "
        f"of your images, less than {LEAST_COSINE}; use --engine torch and another --out, or --force it",
    )
    merging = read_merging(out) if plan.options.keep_cosine is not None else None
    return Prepared(choice=read_choice(out), agreement=found, merging=merging)
