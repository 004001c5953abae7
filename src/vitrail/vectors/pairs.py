"""When every vector is compared with every other, and when an index gives the neighbours of each."""

from __future__ import annotations

from vitrail.errors import require
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.index import Index, has_faiss, open_index

__all__ = ["LARGEST_EXACT", "ROWS", "neighbour_index"]

LARGEST_EXACT = 100_000
"""Vectors up to which all pairs are compared: a minute or so for a width of 384."""
ROWS = 1024
"""Vectors that are compared with a block at a time."""


def neighbour_index(collection: Collection, exact: bool | None, watch: Watch) -> Index | None:
    """Return an index of many vectors, or None if all pairs are to be compared."""
    if exact is None:
        exact = len(collection) <= LARGEST_EXACT or not has_faiss()
    require(exact or has_faiss(), "an index needs faiss; pip install 'vitrail[index]', or compare exactly")
    return None if exact else open_index(collection, watch)
