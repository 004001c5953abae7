"""The vectors of a folder: those that it has, or those of its images, which are embedded once and kept.

Vectors of images are a run of `vitrail embed` in vitrail's cache folder, named by the folder and the weights, so that
the next map of the folder embeds only what is new.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from vitrail.checkpoint.sources.catalogue import cache_folder
from vitrail.checkpoint.sources.names import weights_path
from vitrail.errors import VitrailError
from vitrail.images.folder import image_files
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.job.embed import embed_source
from vitrail.vectors.job.finish import failures
from vitrail.vectors.job.part_files import require_arrow
from vitrail.vectors.job.plan import find_generation, weights_stamp
from vitrail.vectors.job.run import Progress
from vitrail.vectors.search import collection_of

__all__ = ["MOST_IMAGES", "collect", "holds_vectors", "kept_vectors"]

MOST_IMAGES = 20_000
"""Images of a map: every one is compared with all others, and has a thumbnail."""


def holds_vectors(folder: Path) -> bool:
    """Whether `vitrail embed` wrote this folder."""
    return find_generation(folder) is not None


def kept_vectors(folder: Path, weights: str | Path) -> Path:
    """Return where the vectors of a folder's images are kept."""
    path = weights_path(weights)
    named = f"{folder.resolve()}\n{path}\n{weights_stamp(path)}"
    return cache_folder("folders") / f"folder-{hashlib.sha256(os.fsencode(named)).hexdigest()[:24]}"


def collect(
    folder: Path,
    weights: str | Path = "default",
    *,
    out: Path | None = None,
    workers: int | None = None,
    watch: Watch = lambda words, done, total: None,
) -> Collection:
    """Return the vectors of a folder, after embedding the images that have none yet.

    `out` keeps the vectors of images elsewhere than in the cache.
    """
    require_arrow()
    if holds_vectors(folder):
        return _checked(folder, collection_of(folder, watch))
    watch("listing the images", 0, 0)
    count = len(image_files(folder))
    _check_count(folder, count)
    done = embed_source(
        folder,
        weights,
        out or kept_vectors(folder, weights),
        workers=workers,
        drop_vanished=True,
        watch=_embedding(watch),
    )
    if done.tally is None:
        raise KeyboardInterrupt
    if not done.tally.ok:
        first = next(iter(failures(done.folder, done.plan)))
        raise VitrailError(f"none of the {count:,} images in {folder} can be read; {first.id}: {first.error}")
    return _checked(folder, collection_of(done.folder, watch))


def _embedding(watch: Watch) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        watch("embedding images", progress.done, progress.images)

    return tell


def _check_count(folder: Path, count: int) -> None:
    if count > MOST_IMAGES:
        raise VitrailError(
            f"{folder} has {count:,} images, and a map takes {MOST_IMAGES:,}; give one of its subfolders, "
            "or use vitrail embed and vitrail search"
        )


def _checked(folder: Path, collection: Collection) -> Collection:
    _check_count(folder, len(collection))
    if len(collection) < 2:
        raise VitrailError(f"{folder} has one image that can be read, and a map needs two; add images")
    return collection
