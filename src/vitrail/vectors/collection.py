"""The vectors of a run as one table of blocks, memory-mapped: what every search reads.

search.arrow    id, height, width, shard, row, vector: a row per image that has a vector, of unit length

The parts of a run are many and compressed. The first search of a large finished run copies their vectors into this
Arrow file, and later searches map it: nothing is decoded, and what the system has cached is not read again. The file
stores a stamp of the parts, and is written again when they change. Small runs are read from their parts each time; an
unfinished run, or one whose folder cannot be written, uses a temporary file.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.atomic import write_file
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.remote import Location, Remote
from vitrail.vectors.cosine import Floats, unit
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.part_files import is_readable, part_path, read_part
from vitrail.vectors.job.plan import Plan, read_plan, read_shard

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Collection", "Item", "Watch", "of_folder", "of_table"]

FILE = "search.arrow"
STAMP = b"vitrail.stamp"
BLOCK, LARGEST = 16_384, 32_768
"""Least rows of a block, except the last; and most."""
SMALL = 32_768
"""Images of a run up to which nothing is kept: its parts are read in a fraction of a second."""
Watch = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """An image that has a vector."""

    id: str
    height: int
    width: int
    shard: int
    row: int
    """Row number in the shard's part."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Collection:
    """Vectors of unit length, in the order of the run's inputs, and what they are the vectors of."""

    table: pyarrow.Table
    """One chunk per block."""
    missing: int = 0
    """Number of parts that are not written yet."""
    folder: Location | None = None
    plan: Plan | None = None
    stamp: str = ""

    def __len__(self) -> int:
        return self.table.num_rows

    def __repr__(self) -> str:
        return f"<Collection: {len(self):,} vectors of width {self.width}>"

    @property
    def width(self) -> int:
        return self.table.schema.field("vector").type.list_size

    @cached_property
    def blocks(self) -> list[Floats]:
        """Unit vectors (B, D), without a copy."""
        whole = [chunk.flatten().to_numpy().reshape(-1, self.width) for chunk in self.table.column("vector").chunks]
        return [each[start : start + LARGEST] for each in whole for start in range(0, len(each), LARGEST)]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first place of every block, and the number of vectors."""
        return np.cumsum([0, *map(len, self.blocks)])

    def vectors(self, places: NDArray[np.int64]) -> Floats:
        """Return copies of some vectors, (places, D)."""
        found = np.empty((len(places), self.width), np.float32)
        of_block = np.searchsorted(self.starts, places, side="right") - 1
        for block in np.unique(of_block):
            here = of_block == block
            found[here] = self.blocks[block][places[here] - self.starts[block]]
        return found

    def items(self, places: Iterable[int]) -> list[Item]:
        rows = self.table.drop_columns("vector").take(list(places)).to_pylist()
        return [Item(**row) for row in rows]

    def place_of(self, name: str) -> int:
        """Return the place of an image by its id; raise VitrailError if it has no vector."""
        place = self.table.column("id").index(name).as_py()
        if place >= 0:
            return place
        if self.folder is None or self.plan is None:
            first = self.table.column("id")[0].as_py() if len(self) else "none"
            raise VitrailError(f"the table has no vector of {name!r}; its first id is {first}")
        raise VitrailError(_why_missing(self.folder, self.plan, name))

    def original(self, item: Item) -> Path | bytes:
        """Return the file or bytes that an image was embedded from; of a clip, the frame in the middle."""
        require(self.folder is not None, "a table does not say where its images are; give the folder of the run")
        assert self.folder is not None
        assert self.plan is not None
        for each in read_shard(self.folder, self.plan, item.shard):
            if each.id == item.id:
                return Opener().picture(each)
        raise ImageError(f"{item.id}: gone since it was embedded")


def of_table(table: pyarrow.Table) -> Collection:
    """Return the vectors of a table that `vitrail.embed` returned."""
    import pyarrow as arrow

    rows = _rows_of(0, table)
    return Collection(table=arrow.Table.from_batches(_in_blocks(iter([rows]))))


def of_folder(folder: Location, watch: Watch = lambda words, done, total: None) -> Collection:
    """Return the vectors of a folder that `vitrail embed` wrote, finished or not; those of a URL are read each time."""
    import pyarrow as arrow

    plan = read_plan(folder)
    stamp = _stamp(folder, plan)

    def opened(source: Any, missing: int) -> Collection:
        table = arrow.ipc.open_file(source).read_all()
        return Collection(table=table, missing=missing, folder=folder, plan=plan, stamp=stamp)

    local = isinstance(folder, Path)
    with suppress(OSError, arrow.ArrowException):  # not written yet, or damaged
        if local:
            mapped = arrow.memory_map(str(folder / FILE))
            if (arrow.ipc.open_file(mapped).schema.metadata or {}).get(STAMP) == stamp.encode():
                return opened(mapped, 0)
    done = [shard for shard in range(plan.shards) if is_readable(folder, plan, shard)]
    require(len(done) > 0, f"{folder} has no vectors yet; let vitrail embed finish")
    missing = plan.shards - len(done)
    if plan.images <= SMALL:
        sink = arrow.BufferOutputStream()
        _write(sink, folder, done, stamp, watch)
        return opened(arrow.py_buffer(sink.getvalue()), missing)
    if not missing and local:
        with suppress(VitrailError):  # a folder that cannot be written
            write_file(folder / FILE, lambda file: _write(file, folder, done, stamp, watch))
            return opened(arrow.memory_map(str(folder / FILE)), 0)
    with tempfile.NamedTemporaryFile(prefix="vitrail-") as file:  # its mapping outlives its name
        _write(file, folder, done, stamp, watch)
        file.flush()
        return opened(arrow.memory_map(file.name), missing)


def _write(sink: Any, folder: Location, shards: list[int], stamp: str, watch: Watch) -> None:
    import pyarrow as arrow

    def parts() -> Iterator[Any]:
        for done, shard in enumerate(shards):
            watch("reading the vectors", done, len(shards))
            yield _rows_of(shard, read_part(folder, shard, ["id", "height", "width", "vector"]))

    blocks = _in_blocks(parts())
    first = next(blocks)
    schema = first.schema.with_metadata({STAMP: stamp})
    with arrow.ipc.new_file(sink, schema) as file:
        file.write_batch(first)
        for block in blocks:
            file.write_batch(block)


def _rows_of(shard: int, table: Any) -> Any:
    """Return the rows of a part that have a vector, scaled to unit length."""
    import pyarrow as arrow

    column = table.column("vector").combine_chunks()
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    width = column.type.list_size
    vectors = unit(column.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(rows), width))
    named = table.select(["id", "height", "width"]).take(rows)
    columns = {
        "id": named.column("id").cast(arrow.large_string()),
        "height": named.column("height"),
        "width": named.column("width"),
        "shard": arrow.array(np.full(len(rows), shard, np.int32)),
        "row": arrow.array(rows.astype(np.int32)),
        "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), width),
    }
    return arrow.table(columns)


def _in_blocks(parts: Iterator[Any]) -> Iterator[Any]:
    """Join tables to record batches of at least BLOCK rows."""
    waiting, rows = [], 0
    for part in parts:
        waiting.append(part)
        rows += part.num_rows
        if rows >= BLOCK:
            yield _batch(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(tables: list[Any]) -> Any:
    import pyarrow as arrow

    (batch,) = arrow.concat_tables(tables).combine_chunks().to_batches() or [None]
    return batch if batch is not None else arrow.RecordBatch.from_pylist([], schema=tables[0].schema)


def _stamp(folder: Location, plan: Plan) -> str:
    """Hash the plan, and the size and time of every part."""
    digest = hashlib.sha256(plan.fingerprint.encode())
    if isinstance(folder, Remote):
        digest.update(repr([each for each in folder.entries() if each.name.startswith("part-")]).encode())
        return digest.hexdigest()
    for shard in range(plan.shards):
        try:
            found = part_path(folder, shard).stat()
            digest.update(f"{shard},{found.st_size},{found.st_mtime_ns};".encode())
        except OSError:
            digest.update(f"{shard},missing;".encode())
    return digest.hexdigest()


def _why_missing(folder: Location, plan: Plan, name: str) -> str:
    for shard in range(plan.shards):
        if is_readable(folder, plan, shard):
            part = read_part(folder, shard, ["id", "error"])
            row = part.column("id").index(name).as_py()
            if row >= 0:
                return f"{name} has no vector: {part.column('error')[row].as_py()}"
    return f"{folder} has no input {name!r}; ids are paths relative to {plan.input}"
