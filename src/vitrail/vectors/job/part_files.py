"""The output folder: a Parquet part per shard with a row per input, written atomically.

A part says in its metadata of which inputs and by which model it was made. One that an earlier generation of the plan
made is read until its shard is done again, and its rows are kept where their inputs are the same.

part-00000.parquet          id, status, error, height, width, vector
part-00000.tokens.npy       every token's features, if asked for: (rows, tokens, width), NaN where a row failed
part-00000.tokens.safetensors    the same, a tensor per row under its number
"""

from __future__ import annotations

import base64
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from vitrail.atomic import write_file
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.remote import Location, Remote, take_retries
from vitrail.vectors.job.inputs import Input
from vitrail.vectors.job.listing import shard_stamp
from vitrail.vectors.job.plan import Plan, is_superseded, names_in

__all__ = [
    "Rows",
    "Tally",
    "is_done",
    "is_readable",
    "keep_rows",
    "part_path",
    "read_part",
    "read_tallies",
    "read_tally",
    "reason_of",
    "require_arrow",
    "skip_pandas",
    "write_part",
]

KIND_KEY, SHARD_KEY, STAMP_KEY, ROWS_KEY = b"vitrail.kind", b"vitrail.shard", b"vitrail.stamp", b"vitrail.stamps"
AT_ONCE = 16
"""Parts of a store that are asked for at the same time."""


def require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise VitrailError(
            "vectors are written as Parquet, which needs pyarrow; pip install 'vitrail[parquet]'"
        ) from None


def skip_pandas() -> None:
    """Keep pandas out of this process: pyarrow imports it, for 0.4 s, to ask whether a list is one of its columns."""
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here")


@dataclass(kw_only=True)
class Rows:
    """The results of a shard, in input order."""

    inputs: Sequence[Input]
    vectors: NDArray[np.floating]
    """(rows, width)"""
    errors: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, Size] = field(default_factory=dict)
    tokens: dict[int, NDArray[np.floating]] = field(default_factory=dict)
    """(tokens, width) of a row."""
    kept: set[int] = field(default_factory=set)
    """Rows that come from the part of an earlier generation."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many inputs became vectors, and why the others did not."""

    ok: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    kept: int = 0
    """Rows that were not computed but kept from an earlier generation."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Requests to a store that were repeated, by reason."""

    @property
    def failed(self) -> int:
        return sum(self.reasons.values())

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            ok=self.ok + other.ok,
            reasons=Counter(self.reasons) + Counter(other.reasons),
            kept=self.kept + other.kept,
            retries=Counter(self.retries) + Counter(other.retries),
        )


def reason_of(error: str) -> str:
    """Return the kind of an error: its message without details and remedy.

    >>> reason_of("damaged JPEG (OSError: image file is truncated); replace or remove it")
    'damaged JPEG'
    >>> reason_of("12000x12000 is 144,000,000 pixels, more than the limit of 67,108,864; tile it")
    'more than the limit of 67,108,864'
    """
    words = error.partition(";")[0].partition(" (")[0]
    return words.rpartition("pixels, ")[2] or words


@overload
def part_path(folder: Path, shard: int) -> Path: ...
@overload
def part_path(folder: Location, shard: int) -> Location: ...
def part_path(folder: Location, shard: int) -> Location:
    return folder / f"part-{shard:05d}.parquet"


def write_part(folder: Location, plan: Plan, shard: int, rows: Rows) -> Tally:
    """Write a shard's files, the part itself last, which marks the shard as done.

    A run whose plan is no longer the newest writes nothing. Should it stand still between this check and its write, for
    as long as another run needs to do the shard, then the other's part is lost, which the next run finds and mends.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    path = part_path(folder, shard)
    if plan.options.tokens is not None:
        _write_tokens(path.with_suffix(f".tokens.{plan.options.tokens}"), plan, rows)
    count, width = rows.vectors.shape
    order = range(count)
    ids, stamps = [each.id for each in rows.inputs], [each.stamp for each in rows.inputs]
    sizes = [rows.sizes.get(row) for row in order]
    failed = np.array([row in rows.errors for row in order], bool)
    stored = rows.vectors.astype(plan.options.dtype)
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(stored.reshape(-1)), width, mask=arrow.array(failed))
    table = arrow.table(
        {
            "id": arrow.array(ids, arrow.string()),
            "status": arrow.array(["failed" if each else "ok" for each in failed], arrow.string()),
            "error": arrow.array([rows.errors.get(row) for row in order], arrow.string()),
            "height": arrow.array([size and size.height for size in sizes], arrow.int32()),
            "width": arrow.array([size and size.width for size in sizes], arrow.int32()),
            "vector": vectors,
        }
    ).replace_schema_metadata(
        {
            KIND_KEY: plan.kind,
            SHARD_KEY: str(shard),
            STAMP_KEY: shard_stamp(ids, stamps),
            ROWS_KEY: base64.b64encode(np.array(stamps, "<i8").tobytes()),
        }
    )
    buffer = arrow.BufferOutputStream()
    parquet.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    require(
        not is_superseded(folder, plan),
        f"another run has brought the plan of {folder} up to date; run the same command to go on with it",
    )
    write_file(path, lambda file: file.write(data))
    return replace(_tally(rows.errors.values(), count), kept=len(rows.kept), retries=take_retries())


def _write_tokens(path: Location, plan: Plan, rows: Rows) -> None:
    dtype = plan.options.dtype
    if plan.options.tokens == "npy":
        shape = next((each.shape for each in rows.tokens.values()), (0, rows.vectors.shape[1]))
        whole = np.full((len(rows.inputs), *shape), np.nan, dtype=dtype)
        for row, each in rows.tokens.items():
            whole[row] = each
        write_file(path, lambda file: np.save(file, whole))
    else:
        import torch

        from vitrail.checkpoint.formats.safetensors import write_safetensors

        named = {str(row): torch.from_numpy(each.astype(dtype)) for row, each in sorted(rows.tokens.items())}
        write_file(path, lambda file: write_safetensors(file, named, {"plan": plan.fingerprint}))


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


def is_done(folder: Location, plan: Plan, shard: int) -> bool:
    """Whether the shard's part is complete, made of the planned inputs, by the planned model."""
    return _open_part(folder, plan, shard) is not None


def is_readable(folder: Location, plan: Plan, shard: int) -> bool:
    """Whether the shard has a complete part by the planned model, perhaps of an earlier generation's inputs."""
    return _open_part(folder, plan, shard, of_inputs=False) is not None


def read_part(folder: Location, shard: int, columns: list[str] | None = None) -> Any:
    """Read a part's table, or some of its columns."""
    from pyarrow import parquet

    path = part_path(folder, shard)
    if isinstance(path, Remote):
        return parquet.read_table(path.open(), columns=columns)
    return parquet.read_table(path, columns=columns, memory_map=True)


def read_tally(folder: Location, plan: Plan, shard: int) -> Tally | None:
    """Count the rows of a part; None if the shard is not done."""
    file = _open_part(folder, plan, shard)
    if file is None:
        return None
    errors = file.read(columns=["error"]).column(0).drop_null().to_pylist()
    return _tally(errors, file.metadata.num_rows)


def read_tallies(folder: Location, plan: Plan) -> list[Tally | None]:
    """Count the rows of every part."""
    count = partial(read_tally, folder, plan)
    if not isinstance(folder, Remote):
        return [count(shard) for shard in range(plan.shards)]
    there = set(names_in(folder, "part-"))
    with ThreadPoolExecutor(AT_ONCE) as readers:
        begun = [
            readers.submit(count, shard) if part_path(folder, shard).name in there else None
            for shard in range(plan.shards)
        ]
        return [each and each.result() for each in begun]


def keep_rows(folder: Location, plan: Plan, shard: int, rows: Rows) -> None:
    """Take over the vectors of an earlier generation's part whose inputs are the same."""
    if not plan.generation or plan.options.tokens is not None:
        return
    file = _open_part(folder, plan, shard, of_inputs=False)
    if file is None:
        return
    table = file.read(columns=["id", "status", "height", "width", "vector"])
    stamps = np.frombuffer(base64.b64decode(file.schema_arrow.metadata[ROWS_KEY]), "<i8").tolist()
    before = {each: row for row, each in enumerate(zip(table.column("id").to_pylist(), stamps, strict=True))}
    old = {
        row: found for row, each in enumerate(rows.inputs) if (found := before.get((each.id, each.stamp))) is not None
    }
    status, heights, widths = (table.column(name).to_pylist() for name in ("status", "height", "width"))
    vectors = table.column("vector")
    for row, place in old.items():
        if status[place] == "ok":
            rows.vectors[row] = vectors[place].values.to_numpy(zero_copy_only=False)
            rows.sizes[row] = Size(heights[place], widths[place])
            rows.kept.add(row)


def _open_part(folder: Location, plan: Plan, shard: int, *, of_inputs: bool = True) -> Any:
    import pyarrow as arrow
    from pyarrow import parquet

    path = part_path(folder, shard)
    try:
        remote = isinstance(path, Remote)
        file = parquet.ParquetFile(path.open() if remote else path, memory_map=not remote)
    except (OSError, arrow.ArrowException):
        return None
    held = file.schema_arrow.metadata or {}
    by_model = held.get(KIND_KEY) == plan.kind.encode() and held.get(SHARD_KEY) == str(shard).encode()
    same = held.get(STAMP_KEY) == plan.stamp(shard).encode() and file.metadata.num_rows == plan.rows(shard)
    return file if by_model and (same or not of_inputs) else None


def _tally(errors: Any, rows: int) -> Tally:
    reasons = Counter(reason_of(error) for error in errors)
    return Tally(ok=rows - reasons.total(), reasons=reasons)
