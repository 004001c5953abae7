"""The end of a run: count the rows of all parts, write manifest.json and, last, _SUCCESS."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail._version import __version__
from vitrail.atomic import sweep, write_file, write_json_file
from vitrail.errors import VitrailError
from vitrail.vectors.job.part_files import Tally, part_path, read_tally
from vitrail.vectors.job.plan import Plan

__all__ = ["MANIFEST", "SUCCESS", "Failure", "failures", "finish"]

MANIFEST, SUCCESS = "manifest.json", "_SUCCESS"


@dataclass(frozen=True, kw_only=True)
class Failure:
    id: str
    error: str


def finish(folder: Path, plan: Plan, facts: dict[str, Any] | None = None) -> Tally:
    """Count the rows of all parts; if every input has one, write the manifest and _SUCCESS."""
    tallies = [read_tally(folder, plan, shard) for shard in range(plan.shards)]
    missing = [shard for shard, tally in enumerate(tallies) if tally is None]
    if missing:
        raise VitrailError(f"{folder} has no part {missing[0]} of {plan.shards}; run the same command again")
    total = sum((tally for tally in tallies if tally is not None), Tally())
    assert total.ok + total.failed == plan.images
    if (folder / SUCCESS).exists():
        return total
    sweep(folder)
    for other in folder.glob("inputs-*.parquet"):  # left by runs that were killed before their plan was written
        if other.name != plan.inputs:
            other.unlink(missing_ok=True)
    manifest = {
        "plan": plan.fingerprint,
        "images": plan.images,
        "ok": total.ok,
        "failed": total.failed,
        "failures_by_reason": dict(sorted(total.reasons.items(), key=lambda item: -item[1])),
        "parts": [part_path(folder, shard).name for shard in range(plan.shards)],
        **(facts or {}),
        "vitrail": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    write_json_file(folder / MANIFEST, manifest)
    write_file(folder / SUCCESS, lambda file: file.write(b""))
    return total


def failures(folder: Path, plan: Plan) -> Iterator[Failure]:
    """Yield the inputs that failed, in input order."""
    from pyarrow import parquet

    for shard in range(plan.shards):
        table = parquet.read_table(
            part_path(folder, shard), columns=["id", "error"], filters=[("status", "==", "failed")]
        )
        for row in table.to_pylist():
            yield Failure(**row)
