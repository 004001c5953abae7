"""Near duplicates: groups of images whose vectors are nearly the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.charts.notebook import Shown, html_table
from vitrail.errors import require
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.cosine import unit
from vitrail.vectors.index import Recall
from vitrail.vectors.pairs import ROWS, neighbour_index
from vitrail.vectors.search import Match, collection_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Duplicates", "Groups", "find_duplicates", "near_duplicates"]

NEIGHBOURS = 32
"""Nearest vectors that an index gives of each: a group is found through them."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Duplicates(Shown):
    """Groups of near duplicates, the largest first."""

    threshold: float
    groups: list[list[Match]]
    """A group's images in the input's order, each with its cosine to the first."""
    searched: int
    """Number of vectors compared."""
    missing: int
    """Number of parts that are not written yet."""
    recall: Recall | None = None
    """How much of the exact neighbours an index finds; None if all pairs were compared."""

    def _summary(self) -> str:
        images = sum(map(len, self.groups))
        return f"{len(self.groups):,} groups of {images:,} of {self.searched:,} images, cosine ≥ {self.threshold:g}"

    def _panel(self) -> Iterator[str]:
        rows = ((str(len(group)), escape(", ".join(each.id for each in group[:4]))) for group in self.groups[:20])
        yield html_table(("images", "ids"), rows, "rl")


def near_duplicates(
    vectors: str | Path | pyarrow.Table, threshold: float = 0.98, *, exact: bool | None = None
) -> Duplicates:
    """Group the images whose vectors have at least this cosine.

    Groups are chained: two images are in one group if a chain of pairs, each at least as alike as `threshold`, joins
    them. How alike duplicates are depends on the model, so look at what is found. Up to 100,000 vectors, and with
    `exact=True`, all pairs are compared; otherwise an index gives the nearest of each (`vitrail.search` says when).

    >>> from vitrail import embed, near_duplicates, synthesize_image
    >>> table = embed([synthesize_image(seed) for seed in (0, 1, 2, 1)], workers=0)
    >>> [[image.id for image in group] for group in near_duplicates(table, 0.9999).groups]
    [['1', '3']]
    """
    return find_duplicates(collection_of(vectors), threshold, exact=exact)


def find_duplicates(
    collection: Collection,
    threshold: float = 0.98,
    *,
    exact: bool | None = None,
    watch: Watch = lambda words, done, total: None,
) -> Duplicates:
    require(0 < threshold <= 1, f"threshold {threshold:g} is not a cosine in (0, 1]; 0.98 is a start")
    index = neighbour_index(collection, exact, watch)
    groups = Groups(len(collection))
    start = 0
    for number, block in enumerate(collection.blocks):
        for first in range(0, len(block), ROWS):
            rows = block[first : first + ROWS]
            watch("comparing vectors", start + first, len(collection))
            if index is not None:
                found = index.nearest(rows, NEIGHBOURS)
                for row, (scores, places) in enumerate(zip(*found, strict=True)):
                    groups.join(start + first + row, places[scores >= threshold - ROUNDING])
            else:
                _join_alike(groups, start + first, rows, collection, number, threshold)
        start += len(block)
    return Duplicates(
        threshold=threshold,
        groups=[_group(collection, places) for places in groups.found()],
        searched=len(collection),
        missing=collection.missing,
        recall=None if index is None else index.recall,
    )


ROUNDING = 1e-6
"""What the cosine of equal float32 vectors may fall short of 1."""


def _join_alike(
    groups: Groups, first: int, rows: NDArray[np.float32], collection: Collection, number: int, threshold: float
) -> None:
    """Join these rows with all alike from their own block on: earlier blocks have met them."""
    start = int(collection.starts[number])
    for block in collection.blocks[number:]:
        alike = rows @ block.T >= threshold - ROUNDING
        for row in np.flatnonzero(alike.any(axis=1)):
            groups.join(first + int(row), start + np.flatnonzero(alike[row]))
        start += len(block)


def _group(collection: Collection, places: NDArray[np.int64]) -> list[Match]:
    vectors = unit(collection.vectors(places))
    cosines = (vectors @ vectors[0]).tolist()
    return [Match(score=score, **vars(item)) for score, item in zip(cosines, collection.items(places), strict=True)]


class Groups:
    """Disjoint sets of places: every place points to one that stands for its set, perhaps by way of others."""

    def __init__(self, count: int) -> None:
        self.leader = np.arange(count)

    def join(self, place: int, others: Iterable[int] | NDArray[np.int64]) -> None:
        others = np.asarray(others, np.int64)
        if (self.leader[others] == self.leader[place]).all():
            return
        leaders = np.unique([self._led_by(each) for each in (place, *np.unique(self.leader[others]).tolist())])
        self.leader[leaders] = leaders[0]
        self.leader[others] = leaders[0]
        self.leader[place] = leaders[0]

    def _led_by(self, place: int) -> int:
        while self.leader[place] != place:
            self.leader[place] = place = int(self.leader[self.leader[place]])
        return place

    def found(self) -> list[NDArray[np.int64]]:
        """Return the sets of two and more, the largest first, each in order."""
        leaders = np.array([self._led_by(place) for place in range(len(self.leader))])
        order = np.argsort(leaders, kind="stable")
        sets = np.split(order, np.flatnonzero(np.diff(leaders[order])) + 1)
        return sorted((each for each in sets if len(each) > 1), key=lambda each: (-len(each), each[0]))
