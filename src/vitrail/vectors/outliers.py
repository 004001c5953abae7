"""Outliers: the images that are least like their nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.charts.notebook import Shown, html_table
from vitrail.errors import require
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.cosine import Floats, nearest_in
from vitrail.vectors.index import Recall
from vitrail.vectors.pairs import ROWS, neighbour_index
from vitrail.vectors.search import Match, collection_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Outliers", "find_outliers", "outliers"]

NEIGHBOURS = 10
"""Neighbours whose cosines are averaged: a few copies of an odd image do not make it common."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Outliers(Shown):
    """The images that are least like their nearest neighbours, the oddest first."""

    matches: list[Match]
    """Images with their mean cosine to their neighbours."""
    neighbours: int
    searched: int
    """Number of vectors compared."""
    missing: int
    """Number of parts that are not written yet."""
    recall: Recall | None = None
    """How much of the exact neighbours an index finds; None if all pairs were compared."""

    def _summary(self) -> str:
        return f"{len(self.matches)} images furthest from their {self.neighbours} nearest, of {self.searched:,}"

    def _panel(self) -> Iterator[str]:
        rows = ((f"{match.score:.4f}", f"{match.height} × {match.width}", escape(match.id)) for match in self.matches)
        yield html_table(("mean cosine", "pixels", "id"), rows, "rll")


def outliers(vectors: str | Path | pyarrow.Table, *, top: int = 12, exact: bool | None = None) -> Outliers:
    """Find the images with the lowest mean cosine to their ten nearest neighbours.

    Up to 100,000 vectors, and with `exact=True`, all pairs are compared; otherwise an index gives the nearest of each
    (`vitrail.search` says when).

    >>> from vitrail import embed, outliers, synthesize_image
    >>> table = embed([synthesize_image(seed) for seed in (0, 0, 0, 3)], workers=0)
    >>> outliers(table, top=1).matches[0].id
    '3'
    """
    return find_outliers(collection_of(vectors), top, exact=exact)


def find_outliers(
    collection: Collection,
    top: int = 12,
    *,
    exact: bool | None = None,
    watch: Watch = lambda words, done, total: None,
) -> Outliers:
    require(top > 0, f"top {top} is not positive; give 1 or more")
    require(len(collection) > 1, "one vector has no neighbours; embed more images")
    index = neighbour_index(collection, exact, watch)
    many = min(NEIGHBOURS, len(collection) - 1)
    means = list[Floats]()
    done = 0
    for block in collection.blocks:
        for first in range(0, len(block), ROWS):
            watch("comparing vectors", done, len(collection))
            rows = block[first : first + ROWS]
            near = nearest_in(collection.blocks, rows, many + 1) if index is None else index.nearest(rows, many + 1)
            own = np.arange(done, done + len(rows))[:, None]
            means.append(_mean_without(near.places == own, near.scores))
            done += len(rows)
    mean = np.concatenate(means)
    places = np.argsort(mean, kind="stable")[:top]
    items = zip(mean[places].tolist(), collection.items(places), strict=True)
    return Outliers(
        matches=[Match(score=score, **vars(item)) for score, item in items],
        neighbours=many,
        searched=len(collection),
        missing=collection.missing,
        recall=None if index is None else index.recall,
    )


def _mean_without(own: np.ndarray, scores: Floats) -> Floats:
    """Average each row's cosines without its own, which equal vectors may have pushed out: then without the last."""
    own[~own.any(axis=1), -1] = True
    kept = np.where(own | ~np.isfinite(scores), 0.0, scores)
    return (kept.sum(axis=1) / np.maximum((~own & np.isfinite(scores)).sum(axis=1), 1)).astype(np.float32)
