"""Folders that are dropped on the page: a sample of their images in temporary files, which end with the studio."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from secrets import token_hex
from tempfile import mkdtemp
from time import monotonic

from vitrail.errors import require
from vitrail.server.jobs import proceed

__all__ = ["MOST_IMAGES", "Folders"]

MOST_IMAGES = 60
"""Images of a folder that the page sends, at even steps; `vitrail advise --images` measures 200 and more."""
MOST_FOLDERS = 4
SECONDS = 8.0
"""Time for one survey; two are made if the first suggests another input size, and an answer may take 20 seconds."""


class Folders:
    """Temporary folders with numbered files, so that no name from a client becomes a path."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._counts: dict[str, int] = {}

    def begin(self) -> str:
        """Return the id of a new folder; the oldest is removed if there are too many."""
        if self._root is None:
            self._root = Path(mkdtemp(prefix="vitrail-studio-folders-"))
            atexit.register(self.close)
        if len(self._counts) == MOST_FOLDERS:
            oldest = next(iter(self._counts))
            del self._counts[oldest]
            shutil.rmtree(self._root / oldest, ignore_errors=True)
        name = token_hex(8)
        (self._root / name).mkdir()
        self._counts[name] = 0
        return name

    def add(self, name: str, image: bytes) -> int:
        """Store an image; return how many the folder has. What cannot be decoded is reported by the survey."""
        folder, count = self._folder(name), self._counts[name]
        require(count < MOST_IMAGES, f"a folder takes {MOST_IMAGES} images; use vitrail advise --images for more")
        self._counts[name] = count + 1
        (folder / f"{count:03}").write_bytes(image)
        return count + 1

    def images(self, name: str) -> Iterator[Path]:
        """Yield the images in an order that is the same each time, as far as the time allows."""
        folder = self._folder(name)
        require(self._counts[name] > 0, "the folder has no images; drop one with photographs")
        paths = [folder / f"{number:03}" for number in range(self._counts[name])]
        Random(0).shuffle(paths)  # so that those which time allows come from the whole folder
        until = monotonic() + SECONDS
        for index, path in enumerate(paths):
            if index and monotonic() > until:
                return
            proceed()
            yield path

    def close(self) -> None:
        """Remove all files."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root, self._counts = None, {}

    def _folder(self, name: str) -> Path:
        require(name in self._counts, f"folder {name!r} is no longer stored; drop it on the page again")
        assert self._root is not None
        return self._root / name
