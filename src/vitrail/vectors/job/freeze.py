"""Make a folder's plan, or follow the one that it has; refuse a plan for something else.

Processes that make a plan at one moment follow one of them: a generation's file is created only if it does not exist,
by a link on a disk and by a conditional PUT in a store.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.atomic import write_file
from vitrail.codec import to_plain
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.remote import Location, Remote, RemoteError
from vitrail.vectors.job.find import find_inputs
from vitrail.vectors.job.inputs import Input, Inputs
from vitrail.vectors.job.listing import remove_listing, write_listing
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import (
    SUCCESS,
    Plan,
    find_generation,
    names_in,
    plan_path,
    read_plan,
    weights_sha256,
)
from vitrail.vectors.job.refresh import By, Changes, Comparison, cut

if TYPE_CHECKING:
    from vitrail.checkpoint.checkpoint import Checkpoint

__all__ = ["Frozen", "freeze", "version_of"]

LARGEST_SHARD, SMALLEST_SHARD, SHARDS_PER_WORKER = 1024, 16, 4


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A plan, and what came of comparing it with its input."""

    plan: Plan
    changes: Changes | None = None
    """None for a new plan."""
    fault: str | None = None
    """Why the input could not be listed again; the plan is followed."""


def freeze(
    folder: Location,
    source: Location,
    weights: Path,
    checkpoint: Checkpoint,
    options: Options,
    *,
    shard_size: int | None = None,
    workers: int = 1,
    by: By = "time",
    drop_vanished: bool = False,
) -> Frozen:
    """Return the folder's plan, brought up to date with the input; refuse a plan for something else."""
    require(shard_size is None or shard_size > 0, f"shard size {shard_size} is not positive; give 1 or more")
    options.check(checkpoint.config)
    if isinstance(folder, Remote):
        folder.check_writable()
    asked = {"input": str(source.absolute()), **_asked(weights, checkpoint, options)}
    if find_generation(folder) is None:
        _check_empty(folder)
        inputs = find_inputs(source, clips=checkpoint.config.frames > 1)
        size, each = _shard_size(inputs, shard_size, workers)
        plan = _write_plan(folder, cut(_with_content(each, by), size), size, inputs, weights, asked)
        if plan is not None:
            return Frozen(plan=plan)
    held = read_plan(folder)
    changed = list(_differences(held, asked))
    require(
        not changed,
        f"{folder} holds another run: {'; '.join(changed[:3])}; use the same options, --new-version to write beside "
        "it, or another --out",
    )
    try:
        inputs = find_inputs(source, clips=checkpoint.config.frames > 1)
        with Comparison(folder, held, _with_content(inputs, by)) as now:
            changes = now.changes
            if not changes.matter(drop_vanished=drop_vanished):
                return Frozen(plan=held, changes=changes)
            size = shard_size or max(held.shard_size, _size_of(changes.added, workers))
            (folder / SUCCESS).unlink(missing_ok=True)
            shards = now.shards(drop_vanished=drop_vanished, size=size)
            plan = _write_plan(folder, shards, size, inputs, weights, asked, generation=held.generation + 1)
    except RemoteError:
        raise
    except VitrailError as error:
        return Frozen(plan=held, fault=str(error))
    return Frozen(plan=plan or read_plan(folder), changes=changes)


def version_of(out: Location, weights: Path, checkpoint: Checkpoint, options: Options) -> Location:
    """Return the folder of these weights and options: `out` itself, or the first of out-v2, out-v3 … that is theirs."""
    asked, place, number = _asked(weights, checkpoint, options), out, 1
    while find_generation(place) is not None and list(_differences(read_plan(place), asked)):
        number += 1
        place = out.with_name(f"{out.name}-v{number}")
    return place


def _asked(weights: Path, checkpoint: Checkpoint, options: Options) -> dict[str, Any]:
    return {
        "weights_sha256": weights_sha256(weights),
        "config": checkpoint.config,
        "preprocessing": checkpoint.preprocessing,
        "options": options,
    }


def _write_plan(
    folder: Location,
    shards: Iterable[list[Input]],
    size: int,
    inputs: Inputs,
    weights: Path,
    asked: dict[str, Any],
    generation: int = 0,
) -> Plan | None:
    """Write a generation of the plan; None if another process has written it."""
    name = f"inputs-{secrets.token_hex(4)}"
    listing = write_listing(folder, name, shards)
    plan = Plan(
        **Plan.shards_of(listing),
        repeated=inputs.repeated,
        unread=inputs.unread,
        unasked=inputs.unasked,
        shard_size=size,
        inputs=name,
        generation=generation,
        weights=str(weights.absolute()),
        **asked,
    )
    if plan.images or generation:
        text = json.dumps(to_plain(plan), indent=2).encode() + b"\n"
        if write_file(plan_path(folder, generation), lambda file: file.write(text), replace=False):
            return plan
    remove_listing(folder, name)
    require(plan.images > 0 or generation > 0, f"{asked['input']} holds no images; give one that does")
    return None


def _check_empty(folder: Location) -> None:
    try:
        # another process may write its plan at this moment, which is followed
        other = [name for name in names_in(folder) if not name.startswith((".", "inputs-", "plan.json"))]
    except OSError as error:
        raise VitrailError(f"--out {folder} is not a folder to write to ({error.strerror}); choose another") from None
    require(not other, f"{folder} holds {', '.join(sorted(other)[:3])} and no plan; choose a new or empty --out")
    if isinstance(folder, Remote):
        _check_conditions(folder)


def _check_conditions(folder: Remote) -> None:
    """Refuse a store that ignores the condition of a PUT: two runs that begin at one moment would mix their plans."""
    probe = folder / f".probe-{secrets.token_hex(4)}"
    probe.write(b"1", replace=False)
    try:
        kept = not probe.write(b"2", replace=False)
    finally:
        probe.unlink(missing_ok=True)
    require(
        kept,
        f"{folder} is in a store that ignores If-None-Match, so that two runs at one moment could not be told apart; "
        "write to a folder, or to a store that knows it",
    )


def _shard_size(inputs: Inputs, asked: int | None, workers: int) -> tuple[int, Iterator[Input]]:
    """Choose a size that keeps files few but gives every worker several shards."""
    if asked is not None:
        return asked, iter(inputs)
    first = list(islice(inputs, LARGEST_SHARD * SHARDS_PER_WORKER * workers))
    return _size_of(len(first), workers), chain(first, inputs)


def _size_of(count: int, workers: int) -> int:
    return max(SMALLEST_SHARD, min(LARGEST_SHARD, -(-count // (SHARDS_PER_WORKER * workers))))


def _with_content(inputs: Iterable[Input], by: By) -> Iterable[Input]:
    """Add the hash of each image's bytes, if changes are to be found by it; one that cannot be read goes without."""
    if by == "time":
        return inputs
    open_input = Opener()

    def hashed(each: Input) -> Input:
        try:
            found = open_input(each)
            files = found if isinstance(found, list) else [found]
            data = b"".join(file if isinstance(file, bytes) else file.read_bytes() for file in files)
        except (ImageError, OSError):
            return each
        return each._replace(content=hashlib.sha256(data).hexdigest())

    return map(hashed, inputs)


def _differences(held: Plan, asked: dict[str, Any]) -> Iterator[str]:
    for name, now in asked.items():
        before = getattr(held, name)
        if before == now:
            continue
        if name in ("preprocessing", "options"):
            for field in fields(now):
                was, wants = getattr(before, field.name), getattr(now, field.name)
                if was != wants:
                    yield f"{field.name.replace('_', ' ')} was {was}, now {wants}"
        elif name == "config":
            yield "the model's config differs"
        else:
            yield f"{name.replace('_', ' ')} was {str(before)[-64:]}, now {str(now)[-64:]}"
