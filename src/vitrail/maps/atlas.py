"""A folder of images as a map (`vitrail.atlas`): points, neighbours, near duplicates, and a probe's doubts.

Shapes: N images, D width, K neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.charts.notebook import Shown, facts, html_table
from vitrail.checkpoint.assess.describe import few
from vitrail.checkpoint.pixels import Image
from vitrail.data.classes import class_names
from vitrail.errors import VitrailError, require
from vitrail.maps.flatten import METHODS, Flat, Kept, Method, check_method, flatten, neighbours_kept
from vitrail.maps.judge import Judged, judge
from vitrail.maps.source import collect
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.cosine import Floats, Nearest, nearest_in
from vitrail.vectors.duplicates import Duplicates, Groups, find_duplicates
from vitrail.vectors.job.finish import Failure, failures
from vitrail.vectors.pairs import ROWS
from vitrail.vectors.search import Found, collection_of, embed_query, nearest

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Atlas", "Doubt", "atlas", "map_collection"]

NEIGHBOURS = 12
"""Nearest images that are kept of each."""
COPY = 1 - 1e-5
"""Least cosine of two images that are the same picture: equal pixels have equal vectors, up to rounding."""


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """An image that a probe, fitted on the others, finds improbable in its own class."""

    id: str
    place: int
    """Its number in the atlas."""
    label: str
    """The class that it is in."""
    guess: str
    """The most probable class."""
    probability: float
    """Of its own class."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Atlas(Shown):
    """A map of images; similar images are near each other, as far as two dimensions allow."""

    ids: tuple[str, ...]
    method: Method
    flat: Flat
    kept: Kept | None
    """How many neighbours the map keeps; None for two images."""
    near: Nearest
    """(N, K) the nearest images of each, without itself, best first."""
    classes: tuple[str, ...]
    """Names of the classes; () if the images have none."""
    labels: NDArray[np.int64]
    """(N,) the class of each image; −1 without classes."""
    duplicates: Duplicates
    judged: Judged | None
    """What a linear probe says of each image; None without classes."""
    unjudged: str
    """Why there is no probe; empty if there is one."""
    failed: tuple[Failure, ...]
    """Images that cannot be read, with the reasons."""
    collection: Collection = field(compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def points(self) -> Floats:
        """(N, 2): across and up."""
        return self.flat.points

    @property
    def vectors(self) -> Floats:
        """(N, D) of unit length."""
        return np.concatenate(self.collection.blocks)

    @property
    def doubts(self) -> list[Doubt]:
        """All judged images, the most doubted first; [] without classes."""
        if self.judged is None:
            return []
        return [
            Doubt(
                id=self.ids[place],
                place=int(place),
                label=self.classes[self.labels[place]],
                guess=self.classes[self.judged.guesses[place]],
                probability=float(self.judged.probabilities[place]),
            )
            for place in self.judged.doubted()
        ]

    def search(self, image: Image, *, top: int = NEIGHBOURS, weights: str | Path | None = None) -> Found:
        """Find the images nearest to another one, which is embedded as these were; for a table, give its weights."""
        itself = Path(image) if isinstance(image, str | Path) else None
        return nearest(self.collection, embed_query(self.collection, image, weights=weights), top, leave_out=itself)

    def in_words(self) -> Iterator[tuple[str, str]]:
        """Yield what is known of the map, as pairs of a name and a sentence."""
        failed = f", and {len(self.failed):,} cannot be read" if self.failed else ""
        yield "images", f"{len(self):,} with vectors of width {self.collection.width}{failed}"
        share = (
            ""
            if self.flat.variance is None
            else f", whose two components have {self.flat.variance:.1%} of the variance"
        )
        yield "map", f"{METHODS[self.method]}{share}"
        if self.kept is not None:
            yield (
                "neighbours",
                f"{self.kept.share:.1%} of the {self.kept.neighbours} nearest are among the {self.kept.neighbours} "
                f"nearest on the map, {self.kept.chance:.1%} by chance",
            )
        groups, least = self.duplicates.groups, self.duplicates.threshold
        yield "duplicates", f"{len(groups):,} groups with {sum(map(len, groups)):,} images, cosine {least:g} and more"
        if self.judged is None:
            yield "probe", f"none: {self.unjudged}"
            return
        left = f"; not judged, with one different image: {few(self.judged.left_out)}" if self.judged.left_out else ""
        yield (
            "probe",
            f"{self.judged.accuracy:.1%} of {self.judged.images:,} images in {len(self.classes)} classes are named "
            f"right by probes that have not seen them, {self.judged.chance:.1%} by naming the largest class{left}",
        )

    def _summary(self) -> str:
        classes = f" in {len(self.classes)} classes" if self.classes else ""
        return f"{len(self):,} images{classes} by {METHODS[self.method]}"

    def _panel(self) -> Iterator[str]:
        yield facts(self.in_words())
        rows = ((f"{each.probability:.4f}", each.label, each.guess, each.id) for each in self.doubts[:12])
        if self.judged is not None:
            cells = (tuple(map(escape, row)) for row in rows)
            yield html_table(("probability", "class", "most probable", "id"), cells, "rlll")


def atlas(
    images: str | Path | pyarrow.Table,
    weights: str | Path = "default",
    *,
    method: Method = "pca",
    labels: Sequence[str] | None = None,
    threshold: float = 0.98,
    seed: int = 0,
    vectors: str | Path | None = None,
    workers: int | None = None,
    watch: Watch = lambda words, done, total: None,
) -> Atlas:
    """Map a folder of images: similar images are near each other.

    `images` is a folder of images, a folder that `vitrail embed` wrote, or the table that `vitrail.embed` returned.
    Images are embedded once: their vectors are kept in vitrail's cache folder, or in the folder `vectors`, and the
    same call later embeds only what is new. The method is "pca", or "tsne" (extra map), which keeps neighbours better
    and is the same for the same `seed`.

    If every image is in a subfolder, these are the classes; or give the `labels` of a table's images. Every image is
    then judged by a linear probe that was fitted on others, and `doubts` has the images that it finds improbable.

    >>> from vitrail import atlas, embed, synthesize_image
    >>> table = embed([synthesize_image(seed) for seed in (0, 1, 2, 3, 1)], workers=0)
    >>> found = atlas(table)
    >>> found
    <Atlas: 5 images by PCA>
    >>> found.points.shape, [[image.id for image in group] for group in found.duplicates.groups]
    ((5, 2), [['1', '4']])
    """
    check_method(method)
    if isinstance(images, str | Path):
        out = None if vectors is None else Path(vectors)
        collection = collect(Path(images), weights, out=out, workers=workers, watch=watch)
    else:
        collection = collection_of(images)
        require(len(collection) > 1, "a map needs two vectors; embed more images")
    return map_collection(collection, method, labels=labels, threshold=threshold, seed=seed, watch=watch)


def map_collection(
    collection: Collection,
    method: Method = "pca",
    *,
    labels: Sequence[str] | None = None,
    threshold: float = 0.98,
    seed: int = 0,
    watch: Watch = lambda words, done, total: None,
) -> Atlas:
    """Map vectors that are known."""
    ids = tuple(collection.table.column("id").to_pylist())
    require(
        labels is None or len(labels) == len(ids),
        f"{len(labels or ()):,} labels are given for {len(ids):,} images with vectors; give one for each",
    )
    duplicates = find_duplicates(collection, threshold, exact=True, watch=watch)
    near = _neighbours(collection, watch)
    vectors = np.concatenate(collection.blocks)
    watch(f"placing the images by {METHODS[method]}", 0, 0)
    flat = flatten(vectors, method, seed=seed)
    names = class_names(ids) if labels is None else [str(label) for label in labels]
    classes = tuple(sorted(set(names)))
    found = np.searchsorted(classes, names) if names else np.full(len(ids), -1)
    judged, why = None, "a folder has classes if every image is in one of two or more subfolders"
    if len(classes) > 1:
        try:
            judged, why = judge(vectors, found, classes, _copies(near), seed=seed, watch=watch), ""
        except VitrailError as error:
            why = str(error)
    known = collection.folder is not None and collection.plan is not None
    return Atlas(
        ids=ids,
        method=method,
        flat=flat,
        kept=neighbours_kept(flat.points, near.places),
        near=near,
        classes=classes,
        labels=found.astype(np.int64),
        duplicates=duplicates,
        judged=judged,
        unjudged=why,
        failed=tuple(failures(collection.folder, collection.plan)) if known else (),  # type: ignore[arg-type]
        collection=collection,
    )


def _neighbours(collection: Collection, watch: Watch) -> Nearest:
    """Return the nearest images of each, without itself."""
    count = min(NEIGHBOURS, len(collection) - 1)
    scores, places = list[Floats](), list[NDArray[np.int64]]()
    done = 0
    for block in collection.blocks:
        for first in range(0, len(block), ROWS):
            watch("comparing vectors", done, len(collection))
            rows = block[first : first + ROWS]
            found = nearest_in(collection.blocks, rows, count + 1)
            other = found.places != np.arange(done, done + len(rows))[:, None]
            other[other.all(axis=1), -1] = False  # copies may have pushed the image itself out
            scores.append(found.scores[other].reshape(-1, count))
            places.append(found.places[other].reshape(-1, count))
            done += len(rows)
    return Nearest(np.concatenate(scores), np.concatenate(places))


def _copies(near: Nearest) -> list[NDArray[np.int64]]:
    """Return sets of images that are the same picture."""
    groups = Groups(len(near.places))
    same = near.scores >= COPY
    for place in np.flatnonzero(same.any(axis=1)):
        groups.join(int(place), near.places[place][same[place]])
    return groups.found()
