"""Exact nearest neighbours by cosine, one part in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError, require
from vitrail.vectors.job.engine_factory import engine_of, preparer_of, vectors_of
from vitrail.vectors.job.part_files import is_done, part_path
from vitrail.vectors.job.plan import Plan

__all__ = ["Found", "Match", "embed_query", "nearest", "stored"]


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


def nearest(folder: Path, plan: Plan, query: NDArray[np.float32], top: int = 12) -> Found:
    """Return the vectors with the greatest cosine to the query, best first; ties keep the input order."""
    require(top > 0, f"top {top} is not positive; give 1 or more")
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
        for place in np.argsort(-scores, kind="stable")[:top]:
            row = int(rows[place])
            best.append(Match(score=float(scores[place]), shard=shard, row=row, **names.slice(row, 1).to_pylist()[0]))
        best = sorted(best, key=lambda match: -match.score)[:top]
    require(searched > 0, f"{folder} has no vectors yet; let vitrail embed finish")
    return Found(matches=best, searched=searched, missing=missing)


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


def embed_query(folder: Path, plan: Plan, image: Path, *, weights: str | Path | None = None) -> NDArray[np.float32]:
    """Embed a new image with the folder's own plan."""
    engine = engine_of(folder, plan, weights=weights)
    return vectors_of(engine, [preparer_of(plan)(image)]).numpy()[0]
