"""The image files of a folder, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import VitrailError

__all__ = ["SUFFIXES", "image_files"]

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)


def image_files(folder: str | Path, *, limit: int | None = None) -> list[Path]:
    """Return every image file below a folder, sorted by path: the same list on every machine.

    Files are chosen by suffix; their content is checked when they are decoded. Links to files are included; links to
    folders are not followed, which avoids loops; hidden files and folders are left out.
    """
    root = Path(folder)
    if not root.is_dir():
        raise VitrailError(f"{folder} is not a folder; give a folder of images")
    paths = sorted(_walk(root), key=lambda path: path.relative_to(root).parts)
    if not paths:
        raise VitrailError(f"{folder} has no images; use files ending in {', '.join(sorted(SUFFIXES))}")
    return paths if limit is None else _evenly(paths, limit)


def _walk(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in SUFFIXES and path.is_file():
                yield path


def _evenly(paths: list[Path], limit: int) -> list[Path]:
    """Return at most `limit` paths, evenly spaced over the list, so that every large subfolder is represented."""
    if limit < 1:
        raise VitrailError(f"limit {limit} is below 1; give 1 or more")
    if len(paths) <= limit:
        return paths
    return [paths[index * len(paths) // limit] for index in range(limit)]
