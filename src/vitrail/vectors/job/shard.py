"""Process one shard, from its inputs to its file: the only function that a scheduler calls.

The result depends only on the plan, so that a retry, here or on another machine, writes the same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
import torch

from vitrail.checkpoint.pixels import Prepared, prepare
from vitrail.images.decode import ImageError
from vitrail.remote import Location
from vitrail.vectors.engines.engine import Engine
from vitrail.vectors.engines.pack import PackedEngine
from vitrail.vectors.job.engine_factory import Watch, preparer_of, vectors_of
from vitrail.vectors.job.inputs import Input, is_remote
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.part_files import Rows, Tally, keep_rows, write_part
from vitrail.vectors.job.plan import Plan, read_shard

__all__ = ["process_shard"]


def process_shard(
    folder: Location,
    plan: Plan,
    shard: int,
    engine: Engine | PackedEngine,
    *,
    batch: int = 4,
    lost: Mapping[int, str] | None = None,
    decode: Callable[..., Prepared] = prepare,
    watch: Watch = lambda row, done: None,
) -> Tally:
    """Decode the shard's images, compute their vectors and write its part; a row that fails has its error instead.

    `lost`: rows to skip, each with its error.
    """
    inputs = read_shard(folder, plan, shard)
    rows = Rows(inputs=inputs, vectors=np.zeros((len(inputs), engine.width), np.float32))
    keep_rows(folder, plan, shard, rows)
    rows.errors.update({row: error for row, error in (lost or {}).items() if row not in rows.kept})
    todo = {row: item for row, item in enumerate(inputs) if row not in rows.kept and row not in rows.errors}
    open_input, prepare_one, waiting = Opener(todo.values()), preparer_of(plan, decode), dict[int, Prepared]()

    def compute() -> None:
        images = list(waiting.values())
        if plan.options.tokens is None:
            rows.vectors[list(waiting)] = vectors_of(engine, images).numpy()
        else:
            assert not isinstance(engine, PackedEngine)
            found = engine.features(torch.from_numpy(np.stack([image.pixels for image in images])))
            rows.vectors[list(waiting)] = found.vectors.numpy()
            rows.tokens.update(zip(waiting, found.tokens.numpy(), strict=True))
        waiting.clear()

    for row, item in todo.items():
        # a store has time limits of its own, and a decoder that hangs is another matter
        watch(None if is_remote(item) else row, row - len(waiting))
        try:
            source = open_input(item)
            watch(row, row - len(waiting))
            image = prepare_one(source)
        except ImageError as error:
            rows.errors[row] = _without_name(str(error), item)
            continue
        rows.sizes[row] = image.original
        waiting[row] = image
        if len(waiting) == batch:
            watch(None, row)
            compute()
    watch(None, len(inputs) - len(waiting))
    if waiting:
        compute()
    _refuse_infinite(rows, plan)
    return write_part(folder, plan, shard, rows)


def _without_name(message: str, item: Input) -> str:
    """Remove the name, which the row has as its id, and escape what is not UTF-8, as Parquet requires."""
    for name in (item.id, os.fsdecode(item.file), "image"):
        message = message.removeprefix(f"{name}: ")
    return message.encode(errors="backslashreplace").decode()


def _refuse_infinite(rows: Rows, plan: Plan) -> None:
    with np.errstate(over="ignore"):
        finite = np.isfinite(rows.vectors.astype(plan.options.dtype)).all(axis=1)
    rows.vectors[~finite] = 0
    for row in np.flatnonzero(~finite):
        rows.errors[int(row)] = f"the vector has numbers that {plan.options.dtype} cannot hold; try float32"
        rows.tokens.pop(int(row), None)
