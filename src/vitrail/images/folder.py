"""A folder of images: which files, in which order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import VitrailError

__all__ = ["SUFFIXES", "image_files"]

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)


def image_files(folder: str | Path, *, limit: int | None = None) -> list[Path]:
    """Every image file below a folder, sorted by path: the same folder gives the same list on every machine.

    Names choose here and contents decide when decoding. Links to files count; links to folders are not followed, so
    a loop cannot hang it; hidden files and folders are left out.
    """
    root = Path(folder)
    if not root.is_dir():
        raise VitrailError(f"{folder} is not a folder; give one that holds images")
    found = sorted(_walk(root), key=lambda path: path.relative_to(root).parts)
    if not found:
        raise VitrailError(f"{folder} holds no images; use files ending in {', '.join(sorted(SUFFIXES))}")
    return found if limit is None else _evenly(found, limit)


def _walk(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in SUFFIXES and path.is_file():
                yield path


def _evenly(paths: list[Path], limit: int) -> list[Path]:
    """At most `limit`, spread over the whole list, so that no subfolder is left out by its name."""
    if limit < 1:
        raise VitrailError(f"limit {limit} leaves no image; give 1 or more")
    if len(paths) <= limit:
        return paths
    return [paths[index * len(paths) // limit] for index in range(limit)]
