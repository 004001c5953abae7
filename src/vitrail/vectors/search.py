"""The images nearest to one, by cosine: exact, or beyond a million vectors by an index whose recall is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.charts.notebook import Shown, html_table
from vitrail.checkpoint.pixels import Image
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.remote import Location, Remote, location_of
from vitrail.vectors.collection import Collection, Item, Watch, of_folder, of_table
from vitrail.vectors.cosine import Floats, Nearest, nearest_in, unit
from vitrail.vectors.index import LARGEST_EXACT, Recall, has_faiss, open_index
from vitrail.vectors.job.plan import Plan

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Found", "Match", "collection_of", "embed_query", "nearest", "search", "stored"]

ALIKE = 0.99
"""Least cosine at which a match's file is compared with the query's: equal files have equal vectors, up to rounding."""
SPARE = 8
"""Further candidates, in case the query itself and copies of it are among the nearest."""


@dataclass(frozen=True, kw_only=True)
class Match(Item):
    """An image that search found."""

    score: float
    """Cosine to the query."""


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
    recall: Recall | None = None
    """How much of the exact result an index finds; None if the search was exact."""

    def _summary(self) -> str:
        unfinished = f", {self.missing:,} parts are not done yet" if self.missing else ""
        return f"{len(self.matches)} nearest of {self.searched:,} vectors{unfinished}"

    def _panel(self) -> Iterator[str]:
        rows = ((f"{match.score:.4f}", f"{match.height} × {match.width}", escape(match.id)) for match in self.matches)
        yield html_table(("cosine", "pixels", "id"), rows, "rll")


def search(
    vectors: str | Path | Remote | pyarrow.Table,
    image: Image | None = None,
    *,
    id: str | None = None,  # noqa: A002 — the column's name
    top: int = 12,
    with_itself: bool = False,
    exact: bool | None = None,
    weights: str | Path | None = None,
) -> Found:
    """Find the images nearest to one, by cosine, best first.

    `vectors` is what `vitrail.embed` returned, or the folder or URL that `vitrail embed` wrote, finished or not. The
    query is a new image or the `id` of one in `vectors`, which is left out of the matches unless `with_itself` is
    set. An image is embedded as the folder's images were; for a table, give their `weights`.

    Up to a million vectors, and beyond that without `faiss` or with `exact=True`, all are compared. Otherwise an index
    finds the nearest, and `Found.recall` says how many of the exact ten nearest it found on sampled queries.

    >>> from vitrail import embed, search, synthesize_image
    >>> table = embed([synthesize_image(seed) for seed in range(5)], workers=0)
    >>> found = search(table, id="3", top=2)
    >>> found.searched, found.left_out, len(found.matches)
    (5, ['3'], 2)
    """
    require((image is None) != (id is None), "give either an image or id=, the id of one that is embedded")
    collection = collection_of(vectors)
    if image is not None:
        query = embed_query(collection, image, weights=weights)
        itself = Path(image) if isinstance(image, str | Path) else None
    else:
        query, itself = stored(collection, str(id))
    return nearest(collection, query, top, leave_out=None if with_itself else itself, exact=exact)


def collection_of(
    vectors: str | Path | Remote | pyarrow.Table, watch: Watch = lambda words, done, total: None
) -> Collection:
    """Open what `vitrail.embed` returned, or the folder that it wrote."""
    in_folder = isinstance(vectors, str | Path | Remote)
    collection = of_folder(location_of(vectors), watch) if in_folder else of_table(vectors)
    require(len(collection) > 0, "there are no vectors to search: every image failed; see the column error")
    return collection


def nearest(
    collection: Collection,
    query: Floats,
    top: int = 12,
    *,
    leave_out: Path | Item | None = None,
    exact: bool | None = None,
    watch: Watch = lambda words, done, total: None,
) -> Found:
    """Return the vectors with the greatest cosine to the query, best first; ties keep the input order.

    `leave_out` is the query's image, as a file or as what `stored` found: it would be its own nearest neighbour.
    `exact` compares all vectors, or else uses the index; None decides by their number.
    """
    require(top > 0, f"top {top} is not positive; give 1 or more")
    top = min(top, len(collection))
    require(
        collection.width == len(query),
        f"the query has {len(query)} numbers and the vectors {collection.width}; embed it with their weights",
    )
    if exact is None:
        exact = len(collection) <= LARGEST_EXACT or not has_faiss()
    require(exact or has_faiss(), "an index needs faiss; pip install 'vitrail[index]', or search exactly")
    index = None if exact else open_index(collection, watch)
    is_query, asked = _same_image(collection, leave_out), unit(query)[None]
    wanted = top + SPARE
    while True:
        found = nearest_in(collection.blocks, asked, wanted) if index is None else index.nearest(asked, wanted)
        matches = _matches(collection, found)
        own = [match for match in matches if is_query(match)]
        others = [match for match in matches if match not in own]
        if len(others) >= top or len(matches) < wanted:
            break
        wanted *= 4  # many copies of the query
    return Found(
        matches=others[:top],
        searched=len(collection),
        missing=collection.missing,
        left_out=[match.id for match in own],
        recall=None if index is None else index.recall,
    )


def _matches(collection: Collection, found: Nearest) -> list[Match]:
    places = [int(place) for place in found.places[0] if place >= 0]
    scores = found.scores[0].tolist()
    return [Match(score=score, **vars(item)) for score, item in zip(scores, collection.items(places), strict=False)]


def _same_image(collection: Collection, image: Path | Item | None) -> Callable[[Match], bool]:
    """Return what tells whether a match is this image or an exact copy of its file."""

    def content(source: Path | Item) -> bytes | None:
        if collection.folder is None and isinstance(source, Item):
            return None
        try:
            found = source if isinstance(source, Path) else collection.original(source)
            return found if isinstance(found, bytes) else found.read_bytes()
        except (ImageError, OSError):  # moved or changed since
            return None

    if image is None:
        return lambda match: False
    own = content(image)

    def is_same(match: Match) -> bool:
        if isinstance(image, Item) and match.id == image.id:
            return True
        return own is not None and match.score >= ALIKE and content(match) == own

    return is_same


def stored(collection: Collection, name: str) -> tuple[Floats, Item]:
    """Return the unit vector of an image by its id, and the image."""
    place = collection.place_of(name)
    (item,) = collection.items([place])
    return collection.vectors(np.array([place]))[0], item


def embed_query(collection: Collection, image: Image, *, weights: str | Path | None = None) -> Floats:
    """Embed a new image as the collection's images were."""
    if collection.folder is None or collection.plan is None:
        if weights is None:
            raise VitrailError("a table does not say how an image is embedded; give weights=, its own")
        return _embedded_alone(image, weights)
    return _embedded_as_planned(collection.folder, collection.plan, image, weights)


def _embedded_alone(image: Image, weights: str | Path) -> Floats:
    from vitrail.vectors.embed import embed

    (row,) = embed([image], weights, workers=0).to_pylist()
    require(row["error"] is None, f"the query has no vector: {row['error']}")
    return np.asarray(row["vector"], np.float32)


def _embedded_as_planned(folder: Location, plan: Plan, image: Image, weights: str | Path | None) -> Floats:
    # imported late: a search for an image that is embedded already needs no torch
    from vitrail.vectors.job.engine_factory import engine_of, preparer_of, vectors_of

    return vectors_of(engine_of(folder, plan, weights=weights), [preparer_of(plan)(image)]).numpy()[0]
