"""The whole job, from listing the inputs to writing _SUCCESS."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.codec import to_plain
from vitrail.errors import VitrailError, require
from vitrail.rules import positive
from vitrail.vectors.engines.engine import Agreement
from vitrail.vectors.engines.tournament import Choice
from vitrail.vectors.job.engine_factory import read_choice, runtime_of
from vitrail.vectors.job.finish import finish
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.part_files import Tally, require_arrow
from vitrail.vectors.job.plan import Plan, freeze, growth, read_plan, weights_stamp
from vitrail.vectors.job.preparation import choose_without_images, is_prepared, read_agreement
from vitrail.vectors.job.run import Crew, LocalCrew, OwnProcess, Progress, run_shards
from vitrail.vectors.job.worker import Worker, WorkerOptions

__all__ = ["LEAST_COSINE", "Embedded", "Prepared", "embed_source"]

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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What was found out before the first shard."""

    choice: Choice | None = None
    """None for --engine torch."""
    agreement: Agreement | None = None
    """None for engines whose vectors are float32's."""

    def facts(self) -> dict[str, Any]:
        """What the manifest tells."""
        told: dict[str, Any] = {} if self.choice is None else {"engine": to_plain(self.choice)}
        return told if self.agreement is None else told | {"cosine_to_float32": asdict(self.agreement)}


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
    begin: Callable[[Plan, list[str], Prepared], None] = lambda plan, notes, prepared: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Embedded:
    """Embed every image of `source` into the folder `out`, or resume the run that `out` has.

    Each worker decodes and computes with one thread (default: one worker per core). `begin` is called with the plan,
    notes for the user and what was found out about its engine; `watch` with the run's progress.
    """
    require_arrow()
    options, worker = options or Options(), worker or WorkerOptions()
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    positive("workers", count)
    path, fresh = weights_path(weights), not (out / "plan.json").exists()
    worker, checkpoint = replace(worker, stamp=weights_stamp(path)), load(path)
    if not fresh:
        options = _followed(options, read_plan(out))
    plan = freeze(out, source, path, checkpoint, options, shard_size=shard_size, workers=count)
    parameters = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    prepared = _prepare(out, plan, worker, count, parameters, in_process=crew is OwnProcess, force=force)
    begin(plan, _notes(plan, fresh=fresh), prepared)
    stopped = run_shards(out, plan, crew(out, worker, count), watch)
    if stopped is not None:
        return Embedded(plan=plan, tally=None, stopped=stopped)
    return Embedded(plan=plan, tally=finish(out, plan, prepared.facts()))


def _followed(asked: Options, held: Plan) -> Options:
    """With --engine auto, a run that was begun goes on with its own float32 engine."""
    if asked.engine == "auto" and held.options.engine != "int8":
        return replace(asked, engine=held.options.engine)
    return asked


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


def _prepare(
    out: Path, plan: Plan, worker: WorkerOptions, workers: int, parameters: int, *, in_process: bool, force: bool
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
    return Prepared(choice=read_choice(out), agreement=found)
