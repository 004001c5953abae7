"""The folder that the studio was started with, and its maps: one thread computes them, while all rooms stay free.

Images are embedded by a process of their own, into vitrail's cache folder; the page asks how far that is. Without a
folder, there is a sample of drawn shapes.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Literal

from vitrail.errors import VitrailError, require
from vitrail.images.folder import image_files
from vitrail.server.jobs import Worker

if TYPE_CHECKING:
    from vitrail.maps.atlas import Atlas

__all__ = ["FolderMaps", "MapMethod", "Progress"]

MapMethod = Literal["pca", "tsne"]
IMPORT_SECONDS = 600.0
SAMPLE = 120
"""Drawn shapes of the sample, besides a copy and one in the wrong class."""


@dataclass
class Progress:
    """How far a map is."""

    words: str = "starting"
    done: int = 0
    total: int = 0
    error: str = ""
    atlas: Atlas | None = None

    def tell(self, words: str, done: int, total: int) -> None:
        self.words, self.done, self.total = words, done, total


class FolderMaps:
    """Maps by weights and method; each is computed once, until the folder is read again."""

    def __init__(self, folder: str | Path | None = None, worker: Worker | None = None) -> None:
        self._worker = worker or Worker()
        self._folder = None if folder is None else Path(folder)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="studio-folder")
        self._lock = threading.Lock()
        self._maps: dict[tuple[str, MapMethod], Progress] = {}
        self._listed: frozenset[tuple[str, int, int]] = frozenset()
        self._temporary: Path | None = None
        self.reading = 0
        """How often the folder was read again."""

    @property
    def is_sample(self) -> bool:
        return self._folder is None

    @property
    def name(self) -> str:
        return "Drawn shapes" if self._folder is None else self._folder.resolve().name

    @property
    def path(self) -> str | None:
        """The folder as it was given, for a command; None for the sample."""
        return None if self._folder is None else str(self._folder)

    def check(self) -> None:
        """Refuse a folder that has neither images nor vectors: an error at the start."""
        if self._folder is not None and not self.has_own_vectors:
            image_files(self._folder, limit=1)

    @property
    def has_own_vectors(self) -> bool:
        """Whether the folder has vectors, which have their own weights."""
        # plan.json is the first file that vitrail embed writes; asked without importing torch
        return self._folder is not None and (self._folder / "plan.json").is_file()

    def progress(self, weights: str, method: MapMethod) -> Progress:
        """Return how far the map is; the first call begins it. `weights` are a name or a path."""
        from vitrail.maps.flatten import check_method

        check_method(method)
        key = ("" if self.has_own_vectors else weights, method)
        with self._lock:
            if key not in self._maps:
                self._maps[key] = Progress()
                self._pool.submit(self._compute, weights, method, self._maps[key])
            return self._maps[key]

    def atlas(self, weights: str, method: MapMethod) -> Atlas:
        """Return a map that is finished."""
        found = self.progress(weights, method)
        require(found.atlas is not None, found.error or "the map is not ready yet; wait for it")
        assert found.atlas is not None
        return found.atlas

    def read_again(self) -> None:
        """Forget the maps: the next question reads the folder as it is then."""
        with self._lock:
            self._maps.clear()
            self.reading += 1

    def has_changed(self) -> bool:
        """Whether images were added, removed or changed since the folder was read."""
        if self.is_sample or self.has_own_vectors:
            return False
        return self._listing() != self._listed

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _compute(self, weights: str, method: MapMethod, progress: Progress) -> None:
        try:
            # on the thread that runs models: two threads that load the same modules at once would deadlock
            self._worker.run("atlas", lambda: import_module("vitrail.maps.atlas"), IMPORT_SECONDS)
            from vitrail.maps.atlas import atlas

            folder, kept = self._folder or self._sample(), None
            if self._temporary is not None:
                kept = self._temporary / f"vectors-{hashlib.sha256(weights.encode()).hexdigest()[:16]}"
            if self._folder is not None and not self.has_own_vectors:
                self._listed = self._listing()
            progress.atlas = atlas(folder, weights, method=method, vectors=kept, workers=1, watch=progress.tell)
        except VitrailError as error:
            progress.error = str(error)
        except BaseException as error:
            progress.error = f"the map failed: {type(error).__name__}: {error}; try vitrail atlas in a terminal"
            raise

    def _listing(self) -> frozenset[tuple[str, int, int]]:
        assert self._folder is not None
        try:
            found = [(path, path.stat()) for path in image_files(self._folder)]
        except (OSError, VitrailError):  # gone, or empty now
            return frozenset()
        return frozenset((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in found)

    def _sample(self) -> Path:
        """Draw the sample into a temporary folder, which ends with the studio."""
        if self._temporary is None:
            self._temporary = Path(mkdtemp(prefix="vitrail-studio-sample-"))
            atexit.register(self.close)
            _draw_sample(self._temporary / "shapes")
        return self._temporary / "shapes"


def _draw_sample(folder: Path) -> None:
    """Draw four classes of shapes; one shape is there twice, and a star is among the circles."""
    from PIL import Image

    from vitrail.data.shapes import SHAPES, Shapes
    from vitrail.geometry import Size

    source = Shapes(Size(64, 64), count=SAMPLE + len(SHAPES), seed=7)
    for index in range(SAMPLE):
        pixels, label = source[index]
        path = folder / SHAPES[label] / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    star = SHAPES.index("star")
    Image.fromarray(source[star][0]).save(folder / "star" / "copy.png")
    Image.fromarray(source[SAMPLE + star][0]).save(folder / "circle" / "a-star.png")
