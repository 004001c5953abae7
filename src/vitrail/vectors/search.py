"""Exact nearest neighbours by cosine, one part in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.charts.notebook import Shown, html_table
from vitrail.checkpoint.pixels import Image
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.vectors.embed import embed
from vitrail.vectors.job.engine_factory import engine_of, preparer_of, vectors_of
from vitrail.vectors.job.inputs import Opener
from vitrail.vectors.job.part_files import is_done, part_path
from vitrail.vectors.job.plan import Plan, read_plan, read_shard

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Found", "Match", "embed_query", "nearest", "original", "search", "stored"]

ALIKE = 0.99
"""Least cosine at which a match's file is compared with the query's: equal files have equal vectors, up to rounding."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """An image that search found."""

    id: str
    score: float
    """Cosine to the query."""
    height: int
    width: int
    shard: int
    row: int
    """Row number in the shard's part."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Found(Shown):
    """The nearest images, best first, and how many there were to compare."""

    matches: list[Match]
    searched: int
    """Number of vectors compared."""
    missing: int
    """Number of parts that are not written yet."""
    left_out: list[str]
    """Ids of the query itself, and of exact copies of its file."""

    def _summary(self) -> str:
        unfinished = f", {self.missing:,} parts are not done yet" if self.missing else ""
        return f"{len(self.matches)} nearest of {self.searched:,} vectors{unfinished}"

    def _panel(self) -> Iterator[str]:
        rows = ((f"{match.score:.4f}", f"{match.height} × {match.width}", escape(match.id)) for match in self.matches)
        yield html_table(("cosine", "pixels", "id"), rows, "rll")


def search(
    vectors: str | Path | pyarrow.Table,
    image: Image | None = None,
    *,
    id: str | None = None,  # noqa: A002 — the column's name
    top: int = 12,
    with_itself: bool = False,
    weights: str | Path | None = None,
) -> Found:
    """Find the images nearest to one, by exact cosine, best first.

    `vectors` is what `vitrail.embed` returned, or the folder that it or `vitrail embed` wrote, finished or not. The
    query is a new image or the `id` of one in `vectors`, which is left out of the matches unless `with_itself` is
    set. An image is embedded as the folder's images were; for a table, give their `weights`.

    >>> from vitrail import embed, search, synthesize_image
    >>> table = embed([synthesize_image(seed) for seed in range(5)], workers=0)
    >>> found = search(table, id="3", top=2)
    >>> found.searched, found.left_out, len(found.matches)
    (5, ['3'], 2)
    """
    require((image is None) != (id is None), "give either an image or id=, the id of one that is embedded")
    if isinstance(vectors, str | Path):
        folder = Path(vectors)
        plan = read_plan(folder)
        if image is not None:
            query = embed_query(folder, plan, image, weights=weights)
            itself = Path(image) if isinstance(image, str | Path) else None
        else:
            query, itself = stored(folder, plan, str(id))
        return nearest(folder, plan, query, top, leave_out=None if with_itself else itself)
    if image is not None:
        if weights is None:
            raise VitrailError("a table does not say how an image is embedded; give weights=, its own")
        query = _vectors(embed([image], weights, workers=0))[1][0]
    else:
        found = _row(0, vectors, str(id))
        if found is None:
            raise VitrailError(f"the table has no id {id!r}; its first is {vectors.column('id')[0]}")
        query = found[0]
    return _rank([(0, vectors)], query, top, lambda match: not with_itself and match.id == id)


def nearest(
    folder: Path, plan: Plan, query: NDArray[np.float32], top: int = 12, *, leave_out: Path | Match | None = None
) -> Found:
    """Return the vectors with the greatest cosine to the query, best first; ties keep the input order.

    `leave_out` is the query's image, as a file or as what `stored` found: it would be its own nearest neighbour.
    """
    done = [shard for shard in range(plan.shards) if is_done(folder, plan, shard)]
    require(len(done) > 0, f"{folder} has no vectors yet; let vitrail embed finish")
    parts = ((shard, _table(folder, shard, ["id", "height", "width", "vector"])) for shard in done)
    found = _rank(parts, query, top, _same_image(folder, plan, leave_out))
    return replace(found, missing=plan.shards - len(done))


def _rank(
    parts: Iterable[tuple[int, Any]], query: NDArray[np.float32], top: int, is_query: Callable[[Match], bool]
) -> Found:
    """Rank the vectors of numbered tables by their cosine to the query."""
    require(top > 0, f"top {top} is not positive; give 1 or more")
    query = query / max(float(np.linalg.norm(query)), 1e-12)
    best: list[Match] = []
    left_out: list[str] = []
    searched = 0
    for shard, table in parts:
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
    require(searched > 0, "there are no vectors to search: every image failed; see the column error")
    return Found(matches=best, searched=searched, missing=0, left_out=left_out)


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
            found = _row(shard, _table(folder, shard, ["id", "error", "height", "width", "vector"]), name)
            if found is not None:
                return found
    raise VitrailError(f"{folder} has no input {name!r}; ids are paths relative to {plan.input}")


def _row(shard: int, table: Any, name: str) -> tuple[NDArray[np.float32], Match] | None:
    row = table.column("id").index(name).as_py()
    if row < 0:
        return None
    fields = table.select(["id", "error", "height", "width", "vector"]).slice(row, 1).to_pylist()[0]
    error, vector = fields.pop("error"), fields.pop("vector")
    require(error is None, f"{name} has no vector: {error}")
    return np.asarray(vector, np.float32), Match(score=1.0, shard=shard, row=row, **fields)


def embed_query(folder: Path, plan: Plan, image: Image, *, weights: str | Path | None = None) -> NDArray[np.float32]:
    """Embed a new image with the folder's own plan."""
    engine = engine_of(folder, plan, weights=weights)
    return vectors_of(engine, [preparer_of(plan)(image)]).numpy()[0]
