"""The output folder: a Parquet part per shard with a row per input, written atomically.

part-00000.parquet          id, status, error, height, width, vector
part-00000.tokens.npy       every token's features, if asked for: (rows, tokens, width), NaN where a row failed
part-00000.tokens.safetensors    the same, a tensor per row under its number
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.atomic import write_file
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.vectors.job.plan import Plan

__all__ = ["Rows", "Tally", "is_done", "part_path", "read_tally", "reason_of", "require_arrow", "write_part"]

PLAN_KEY, SHARD_KEY = b"vitrail.plan", b"vitrail.shard"


def require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise VitrailError(
            "vectors are written as Parquet, which needs pyarrow; pip install 'vitrail[parquet]'"
        ) from None


@dataclass(kw_only=True)
class Rows:
    """The results of a shard, in input order."""

    ids: Sequence[str]
    vectors: NDArray[np.floating]
    """(rows, width)"""
    errors: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, Size] = field(default_factory=dict)
    tokens: dict[int, NDArray[np.floating]] = field(default_factory=dict)
    """(tokens, width) of a row."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many inputs became vectors, and why the others did not."""

    ok: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return sum(self.reasons.values())

    def __add__(self, other: Tally) -> Tally:
        return Tally(ok=self.ok + other.ok, reasons=Counter(self.reasons) + Counter(other.reasons))


def reason_of(error: str) -> str:
    """Return the kind of an error: its message without details and remedy.

    >>> reason_of("damaged JPEG (OSError: image file is truncated); replace or remove it")
    'damaged JPEG'
    >>> reason_of("12000x12000 is 144,000,000 pixels, more than the limit of 67,108,864; tile it")
    'more than the limit of 67,108,864'
    """
    words = error.partition(";")[0].partition(" (")[0]
    return words.rpartition("pixels, ")[2] or words


def part_path(folder: Path, shard: int) -> Path:
    return folder / f"part-{shard:05d}.parquet"


def write_part(folder: Path, plan: Plan, shard: int, rows: Rows) -> Tally:
    """Write a shard's files, the part itself last: its existence marks the shard as done."""
    import pyarrow as arrow
    from pyarrow import parquet

    path = part_path(folder, shard)
    if plan.options.tokens is not None:
        _write_tokens(path.with_suffix(f".tokens.{plan.options.tokens}"), plan, rows)
    count, width = rows.vectors.shape
    order = range(count)
    sizes = [rows.sizes.get(row) for row in order]
    failed = np.array([row in rows.errors for row in order])
    stored = rows.vectors.astype(plan.options.dtype)
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(stored.reshape(-1)), width, mask=arrow.array(failed))
    table = arrow.table(
        {
            "id": arrow.array(rows.ids, arrow.string()),
            "status": arrow.array(["failed" if each else "ok" for each in failed], arrow.string()),
            "error": arrow.array([rows.errors.get(row) for row in order], arrow.string()),
            "height": arrow.array([size and size.height for size in sizes], arrow.int32()),
            "width": arrow.array([size and size.width for size in sizes], arrow.int32()),
            "vector": vectors,
        }
    ).replace_schema_metadata({PLAN_KEY: plan.fingerprint, SHARD_KEY: str(shard)})
    buffer = arrow.BufferOutputStream()
    parquet.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    write_file(path, lambda file: file.write(data))
    return _tally(rows.errors.values(), count)


def _write_tokens(path: Path, plan: Plan, rows: Rows) -> None:
    dtype = plan.options.dtype
    if plan.options.tokens == "npy":
        shape = next((each.shape for each in rows.tokens.values()), (0, rows.vectors.shape[1]))
        whole = np.full((len(rows.ids), *shape), np.nan, dtype=dtype)
        for row, each in rows.tokens.items():
            whole[row] = each
        write_file(path, lambda file: np.save(file, whole))
    else:
        import torch

        from vitrail.checkpoint.formats.safetensors import write_safetensors

        named = {str(row): torch.from_numpy(each.astype(dtype)) for row, each in sorted(rows.tokens.items())}
        write_file(path, lambda file: write_safetensors(file, named, {"plan": plan.fingerprint}))


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


def is_done(folder: Path, plan: Plan, shard: int) -> bool:
    """Whether the shard's part is complete, of this plan, and has the planned number of rows."""
    return _open_part(folder, plan, shard) is not None


def read_tally(folder: Path, plan: Plan, shard: int) -> Tally | None:
    """Count the rows of a part; None if the shard is not done."""
    file = _open_part(folder, plan, shard)
    if file is None:
        return None
    errors = file.read(columns=["error"]).column(0).drop_null().to_pylist()
    return _tally(errors, file.metadata.num_rows)


def _open_part(folder: Path, plan: Plan, shard: int) -> Any:
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(part_path(folder, shard), memory_map=True)
    except (OSError, arrow.ArrowException):
        return None
    held = file.schema_arrow.metadata or {}
    of_plan = held.get(PLAN_KEY) == plan.fingerprint.encode() and held.get(SHARD_KEY) == str(shard).encode()
    return file if of_plan and file.metadata.num_rows == plan.rows(shard) else None


def _tally(errors: Any, rows: int) -> Tally:
    reasons = Counter(reason_of(error) for error in errors)
    return Tally(ok=rows - reasons.total(), reasons=reasons)
