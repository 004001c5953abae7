"""The end of a run: count the rows of all parts, write manifest.json and, last, _SUCCESS."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail._version import __version__
from vitrail.atomic import sweep, write_file, write_json_file
from vitrail.errors import VitrailError
from vitrail.remote import Location
from vitrail.vectors.job.listing import remove_listing
from vitrail.vectors.job.part_files import Tally, part_path, read_part, read_tallies
from vitrail.vectors.job.plan import MANIFEST, SUCCESS, Plan, find_generation, generation_of, names_in, read_plan

__all__ = ["MANIFEST", "SUCCESS", "Failure", "failures", "finish"]

DAY = 86400


@dataclass(frozen=True, kw_only=True)
class Failure:
    id: str
    error: str


def finish(folder: Location, plan: Plan, facts: dict[str, Any] | None = None) -> Tally:
    """Count the rows of all parts; if every input has one, write the manifest and _SUCCESS."""
    tallies = read_tallies(folder, plan)
    missing = [shard for shard, tally in enumerate(tallies) if tally is None]
    if missing:
        raise VitrailError(f"{folder} has no part {missing[0]} of {plan.shards}; run the same command again")
    total = sum((tally for tally in tallies if tally is not None), Tally())
    assert total.ok + total.failed == plan.images
    if find_generation(folder) != plan.generation or _is_finished(folder, plan):
        return total  # another run has begun with what is new, or there was nothing to do
    sweep(folder)
    _remove_older(folder, plan)
    manifest = {
        "plan": plan.fingerprint,
        "generation": plan.generation,
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


def _is_finished(folder: Location, plan: Plan) -> bool:
    if not (folder / SUCCESS).exists():
        return False
    try:
        return json.loads((folder / MANIFEST).read_bytes())["plan"] == plan.fingerprint
    except (OSError, ValueError, KeyError):
        return False


def _remove_older(folder: Location, plan: Plan) -> None:
    """Remove earlier plans and their listings, except the last, which a reader that began earlier may need.

    A listing without a plan was left by a run that was killed, or is about to get its plan: it is removed after a day.
    """
    newest, held = max(0, plan.generation - 1), set[str]()
    for name in names_in(folder, "plan"):
        number = generation_of(name)
        if number is not None and number < newest:
            listing = read_plan(folder, number).inputs
            remove_listing(folder, listing)
            (folder / name).unlink(missing_ok=True)
        elif number is not None:
            held.add(read_plan(folder, number).inputs)
    if isinstance(folder, Path):
        for path in folder.glob("inputs-*.parquet"):
            if path.name.rpartition("-")[0] not in held and time.time() - path.stat().st_mtime > DAY:
                path.unlink(missing_ok=True)


def failures(folder: Location, plan: Plan) -> Iterator[Failure]:
    """Yield the inputs that failed, in input order."""
    for shard in range(plan.shards):
        table = read_part(folder, shard, ["id", "error"])
        for row in table.filter(table.column("error").is_valid()).to_pylist():
            yield Failure(**row)
