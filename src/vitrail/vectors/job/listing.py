"""The inputs of a plan on disk, to be read shard by shard.

inputs-…-00000.parquet     row group i holds the inputs of shard i; 256 shards to a file, so that footers stay short

They are written and compared in a stream. Each input has a stamp, made of its file's size and time or of its content; a
shard's stamp is made of its inputs' ids and stamps, and tells whether a part was made of these inputs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from vitrail.atomic import write_file
from vitrail.errors import VitrailError
from vitrail.remote import Location, Remote
from vitrail.vectors.job.inputs import Input

__all__ = ["STAMP_DIGITS", "Listing", "facts_of", "read_inputs", "remove_listing", "shard_stamp", "write_listing"]

SHARDS_PER_FILE = 256
STAMP_DIGITS = 16


@dataclass
class Listing:
    """What was written: the number of inputs of every shard, and its stamp."""

    rows: list[int] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)


def write_listing(folder: Location, name: str, shards: Iterable[list[Input]]) -> Listing:
    """Write the inputs of all shards; inputs without a stamp get theirs."""
    import pyarrow as arrow
    from pyarrow import parquet

    schema, waiting, written = _schema(), iter(shards), Listing()

    def write(file: Any, some: Iterator[list[Input]]) -> None:
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for shard in some:
                columns: list[Any] = list(zip(*shard, strict=True)) or [() for _ in schema]
                columns[-1] = [each.stamp or stamp_of(each) for each in shard]
                arrays = [arrow.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema), row_group_size=max(1, len(shard)))
                written.rows.append(len(shard))
                written.stamps.append(shard_stamp(columns[0], columns[-1]))

    while (first := next(waiting, None)) is not None:
        some = chain([first], islice(waiting, SHARDS_PER_FILE - 1))
        write_file(_path(folder, name, len(written.rows)), lambda file, some=some: write(file, some))
    return written


def read_inputs(folder: Location, name: str, shard: int) -> list[Input]:
    """Return the inputs of one shard."""
    import pyarrow as arrow
    from pyarrow import parquet

    path = _path(folder, name, shard)
    try:
        with parquet.ParquetFile(path.open() if isinstance(path, Remote) else path) as file:
            table = file.read_row_group(shard % SHARDS_PER_FILE)
            columns = [table.column(field).to_pylist() for field in Input._fields]
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise VitrailError(
            f"{path} cannot be read ({str(error)[:80]}), and the plan needs it; choose another --out"
        ) from None
    return [Input(*row) for row in zip(*columns, strict=True)]


def remove_listing(folder: Location, name: str) -> None:
    shard = 0
    while (path := _path(folder, name, shard)).exists():
        path.unlink(missing_ok=True)
        shard += SHARDS_PER_FILE


def stamp_of(item: Input) -> int:
    return _number(item.content.encode()) if item.content else facts_of(item)


def facts_of(item: Input) -> int:
    """Hash the size, the time and the place of an input."""
    return _number(struct.pack("<qqqq", item.start, item.length, item.size, item.modified))


def shard_stamp(ids: Sequence[str], stamps: Sequence[int]) -> str:
    data = "\0".join(ids).encode() + struct.pack(f"<{len(stamps)}q", *stamps)
    return hashlib.blake2b(data, digest_size=STAMP_DIGITS // 2).hexdigest()


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), signed=True) or 1  # 0 is for none


def _path(folder: Location, name: str, shard: int) -> Location:
    return folder / f"{name}-{shard // SHARDS_PER_FILE:05d}.parquet"


def _schema() -> Any:
    import pyarrow as arrow

    return arrow.schema(
        [
            ("id", arrow.string()),
            ("place", arrow.string()),
            ("file", arrow.binary()),
            *((name, arrow.int64()) for name in ("start", "length", "size", "modified")),
            ("content", arrow.string()),
            ("stamp", arrow.int64()),
        ]
    )
