"""Exact nearest neighbours by cosine, one part in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.vectors.job.engine_factory import engine_of, preparer_of, vectors_of
from vitrail.vectors.job.inputs import Opener
from vitrail.vectors.job.part_files import is_done, part_path
from vitrail.vectors.job.plan import Plan, read_shard

__all__ = ["Found", "Match", "embed_query", "nearest", "original", "stored"]

ALIKE = 0.99
"""Least cosine at which a match's file is compared with the query's: equal files have equal vectors, up to rounding."""


@dataclass(frozen=True, kw_only=True)
class Match:
    id: str
    score: float
    """Cosine to the query."""
    height: int
    width: int
    shard: int
    row: int
    """Row number in the shard's part."""


@dataclass(frozen=True, kw_only=True)
class Found:
    matches: list[Match]
    searched: int
    """Number of vectors compared."""
    missing: int
    """Number of parts that are not written yet."""
    left_out: list[str]
    """Ids of the query itself, and of exact copies of its file."""


def nearest(
    folder: Path, plan: Plan, query: NDArray[np.float32], top: int = 12, *, leave_out: Path | Match | None = None
) -> Found:
    """Return the vectors with the greatest cosine to the query, best first; ties keep the input order.

    `leave_out` is the query's image, as a file or as what `stored` found: it would be its own nearest neighbour.
    """
    require(top > 0, f"top {top} is not positive; give 1 or more")
    is_query, left_out = _same_image(folder, plan, leave_out), []
    query = query / max(float(np.linalg.norm(query)), 1e-12)
    best: list[Match] = []
    searched = missing = 0
    for shard in range(plan.shards):
        if not is_done(folder, plan, shard):
            missing += 1
            continue
        table = _table(folder, shard, ["id", "height", "width", "vector"])
        rows, vectors = _vectors(table)
        require(
            vectors.shape[1] == len(query),
            f"the query has {len(query)} numbers and the vectors {vectors.shape[1]}; embed it with their weights",
        )
        searched += len(rows)
        scores = vectors @ query / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        names = table.select(["id", "height", "width"])
        kept = 0
        for place in np.argsort(-scores, kind="stable"):
            if kept == top:
                break
            row = int(rows[place])
            match = Match(score=float(scores[place]), shard=shard, row=row, **names.slice(row, 1).to_pylist()[0])
            if is_query(match):
                left_out.append(match.id)
            else:
                best.append(match)
                kept += 1
        best = sorted(best, key=lambda match: -match.score)[:top]
    require(searched > 0, f"{folder} has no vectors yet; let vitrail embed finish")
    return Found(matches=best, searched=searched, missing=missing, left_out=left_out)


def original(folder: Path, plan: Plan, match: Match) -> Path | bytes:
    """Return the file or bytes that a match was embedded from."""
    return Opener()(read_shard(folder, plan, match.shard)[match.row])


def _same_image(folder: Path, plan: Plan, image: Path | Match | None) -> Callable[[Match], bool]:
    """Return what tells whether a match is this image or an exact copy of its file."""

    def content(source: Path | Match) -> bytes | None:
        try:
            found = source if isinstance(source, Path) else original(folder, plan, source)
            return found if isinstance(found, bytes) else found.read_bytes()
        except (ImageError, OSError):  # moved or changed since
            return None

    if image is None:
        return lambda match: False
    own = content(image)

    def is_same(match: Match) -> bool:
        if isinstance(image, Match) and (match.shard, match.row) == (image.shard, image.row):
            return True
        return own is not None and match.score >= ALIKE and content(match) == own

    return is_same


def _table(folder: Path, shard: int, columns: list[str]) -> Any:
    from pyarrow import parquet

    return parquet.read_table(part_path(folder, shard), columns=columns, memory_map=True)


def _vectors(table: Any) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the numbers of the rows that have a vector, and their vectors."""
    column = table.column("vector").combine_chunks()
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return rows, values.reshape(len(rows), column.type.list_size)


def stored(folder: Path, plan: Plan, name: str) -> tuple[NDArray[np.float32], Match]:
    """Return the stored vector of an input by its id, and the input as a match with itself."""
    for shard in range(plan.shards):
        if is_done(folder, plan, shard):
            table = _table(folder, shard, ["id", "error", "height", "width", "vector"])
            row = table.column("id").index(name).as_py()
            if row >= 0:
                fields = table.slice(row, 1).to_pylist()[0]
                error, vector = fields.pop("error"), fields.pop("vector")
                require(error is None, f"{name} has no vector: {error}")
                return np.asarray(vector, np.float32), Match(score=1.0, shard=shard, row=row, **fields)
    raise VitrailError(f"{folder} has no input {name!r}; ids are paths relative to {plan.input}")


def embed_query(folder: Path, plan: Plan, image: Path, *, weights: Path | None = None) -> NDArray[np.float32]:
    """Embed a new image with the folder's own plan."""
    engine = engine_of(folder, plan, weights=weights)
    return vectors_of(engine, [preparer_of(plan)(image)]).numpy()[0]
