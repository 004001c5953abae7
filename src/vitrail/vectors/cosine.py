"""Exact nearest neighbours by cosine, over blocks of unit vectors.

Shapes: Q queries, B vectors in a block, D width, K neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Nearest", "nearest_in", "unit"]

Floats = NDArray[np.float32]


class Nearest(NamedTuple):
    """The nearest vectors of each query, best first; equal cosines keep the input's order."""

    scores: Floats
    """(Q, K) cosines; −inf where there are fewer vectors than K."""
    places: NDArray[np.int64]
    """(Q, K) numbers of the vectors; −1 where there are fewer than K."""


def unit(vectors: Floats) -> Floats:
    """Scale vectors (…, D) to length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def nearest_in(blocks: Iterable[Floats], queries: Floats, k: int) -> Nearest:
    """Return the K nearest vectors of each query, reading one block (B, D) of unit vectors at a time."""
    best = _nothing(len(queries), k)
    start = 0
    for block in blocks:
        cosines = queries @ block.T  # (Q, B)
        promising = cosines > best.scores[:, -1:]
        if len(block) > k and not np.isfinite(best.scores[:, -1]).all():
            promising &= cosines >= np.partition(cosines, -k, axis=1)[:, [-k]]
        rows, columns = np.nonzero(promising)
        if len(rows):
            best = _merged(best, _ranked(rows, columns + start, cosines[rows, columns], len(queries), k))
        start += len(block)
    return best


def _nothing(queries: int, k: int) -> Nearest:
    return Nearest(np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64))


def _ranked(rows: NDArray[np.int64], places: NDArray[np.int64], scores: Floats, queries: int, k: int) -> Nearest:
    """Return the best K of some candidates of each query."""
    order = np.lexsort((places, -scores, rows))
    rows, places, scores = rows[order], places[order], scores[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)  # a candidate's number within its own row
    kept = rank < k
    found = _nothing(queries, k)
    found.scores[rows[kept], rank[kept]] = scores[kept]
    found.places[rows[kept], rank[kept]] = places[kept]
    return found


def _merged(earlier: Nearest, later: Nearest) -> Nearest:
    scores, places = np.hstack((earlier.scores, later.scores)), np.hstack((earlier.places, later.places))
    order = np.argsort(-scores, axis=1, kind="stable")[:, : earlier.scores.shape[1]]
    return Nearest(np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1))
