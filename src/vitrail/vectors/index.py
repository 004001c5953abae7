"""An index for more vectors than are compared one by one: faiss's inverted lists, with its recall measured.

search-STAMP.faiss    cells of nearby vectors, 8 bits per number, memory-mapped
search-STAMP.json     how many cells a query visits, and the recall@10 that this reaches on sampled queries

The index only proposes candidates: their cosines are computed again from the vectors themselves. faiss rather than
usearch: for 40,000 clustered vectors of width 384, inverted lists were built ten times as fast as usearch's graph, and
what a query visits can be chosen after building, by measuring.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.atomic import write_file, write_json_file
from vitrail.errors import VitrailError
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.cosine import Floats, Nearest, nearest_in

__all__ = ["LARGEST_EXACT", "Index", "Recall", "has_faiss", "open_index"]

LARGEST_EXACT = 1_000_000
"""Vectors up to which a search compares every one."""
WANTED, SAMPLED, NEIGHBOURS = 0.95, 200, 10
"""The recall that the number of visited cells is chosen for; queries that it is measured on; neighbours compared."""
CANDIDATES = 10
"""Candidates per neighbour, whose cosines are computed again."""
TRAINING, ROUNDS = 40, 10
"""Training vectors per cell, and rounds of k-means. On a million clustered vectors, 64 and 25 took minutes more for a
recall of 0.989 instead of 0.984."""


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How many of the true ten nearest an index finds, measured against exact search."""

    at_10: float
    queries: int
    """Vectors of the collection that were sampled as queries."""
    cells: int
    visited: int
    """Cells that a query visits."""


@dataclass(frozen=True)
class Index:
    """Finds most of the nearest vectors without comparing all."""

    collection: Collection
    lists: Any
    """faiss's index."""
    recall: Recall

    def nearest(self, queries: Floats, k: int) -> Nearest:
        """Return the nearest of the candidates, by their exact cosines."""
        self.lists.nprobe = self.recall.visited
        found = [
            self._one(query, candidates, k) for query, candidates in zip(queries, self._ask(queries, k), strict=True)
        ]
        return Nearest(*(np.stack(each) for each in zip(*found, strict=True)))

    def _ask(self, queries: Floats, k: int) -> Any:
        return self.lists.search(np.ascontiguousarray(queries), min(CANDIDATES * k, len(self.collection)))[1]

    def _one(self, query: Floats, candidates: Any, k: int) -> tuple[Any, Any]:
        places = np.sort(candidates[candidates >= 0])
        best = nearest_in([self.collection.vectors(places)], query[None], k)
        return best.scores[0], np.where(best.places[0] < 0, -1, places[best.places[0]])


def has_faiss() -> bool:
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


def open_index(collection: Collection, watch: Watch = lambda words, done, total: None) -> Index:
    """Return the collection's index, building it if its folder has none for these vectors."""
    import faiss

    if not isinstance(collection.folder, Path) or collection.missing:
        lists = _build(collection, watch)
        return Index(collection, lists, _measure(collection, lists, watch))
    path = collection.folder / f"search-{collection.stamp[:12]}.faiss"
    with suppress(OSError, ValueError, TypeError, RuntimeError):  # not built yet, or damaged
        recall = Recall(**json.loads(path.with_suffix(".json").read_bytes()))
        lists = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        if lists.ntotal == len(collection):
            return Index(collection, lists, recall)
    lists = _build(collection, watch)
    recall = _measure(collection, lists, watch)
    with suppress(VitrailError):  # a folder that cannot be written
        write_file(path, lambda file: faiss.write_index(lists, faiss.PyCallbackIOWriter(file.write)))  # type: ignore
        write_json_file(path.with_suffix(".json"), asdict(recall))
        _remove_others(path)
    return Index(collection, lists, recall)


def _build(collection: Collection, watch: Watch) -> Any:
    """Cut the vectors into cells, by k-means on a sample."""
    import faiss

    count, width = len(collection), collection.width
    cells = max(1, min(2 ** round(np.log2(4 * count**0.5)), count // 40))
    dice = np.random.default_rng(0)
    sample = np.sort(dice.choice(count, min(count, TRAINING * cells), replace=False))
    quantizer = faiss.IndexFlatIP(width)
    kind = faiss.ScalarQuantizer.QT_8bit
    lists = faiss.IndexIVFScalarQuantizer(quantizer, width, cells, kind, faiss.METRIC_INNER_PRODUCT)
    watch("finding the index's cells", 0, 1)
    lists.cp.spherical, lists.cp.niter = True, ROUNDS
    lists.train(collection.vectors(sample))
    done = 0
    for block in collection.blocks:
        watch("indexing the vectors", done, count)
        lists.add(block)
        done += len(block)
    return lists


def _measure(collection: Collection, lists: Any, watch: Watch) -> Recall:
    """Let queries visit as many cells as the wanted recall takes, and say what it is."""
    watch("measuring the index's recall", 0, 1)
    count = min(SAMPLED, len(collection))
    sample = np.sort(np.random.default_rng(1).choice(len(collection), count, replace=False))
    queries = collection.vectors(sample)
    # a query's own vector is no finding
    exact = _others(nearest_in(collection.blocks, queries, NEIGHBOURS + 1), sample)
    visited = min(8, lists.nlist)
    while True:
        recall = Recall(at_10=0.0, queries=count, cells=lists.nlist, visited=visited)
        found = _others(Index(collection, lists, recall).nearest(queries, NEIGHBOURS + 1), sample)
        shares = [len(a & b) / max(1, len(a)) for a, b in zip(exact, found, strict=True)]
        recall = Recall(at_10=float(np.mean(shares)), queries=count, cells=lists.nlist, visited=visited)
        if recall.at_10 >= WANTED or visited == lists.nlist:
            return recall
        visited = min(2 * visited, lists.nlist)


def _others(found: Nearest, own: Any) -> list[set[int]]:
    rows = (
        [int(place) for place in row if place not in (-1, itself)]
        for row, itself in zip(found.places, own, strict=True)
    )
    return [set(row[:NEIGHBOURS]) for row in rows]


def _remove_others(path: Path) -> None:
    for other in path.parent.glob("search-*.*"):
        if other.stem != path.stem:
            other.unlink(missing_ok=True)
