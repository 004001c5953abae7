"""What the studio holds between requests: images by what is in them, models, and one computation at a time."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from fastapi import Depends, Request

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.images.decode import Pixels, decode
from vitrail.presets import PRESETS, preset
from vitrail.studio.errors import BusyError
from vitrail.studio.pictures import PICTURES

if TYPE_CHECKING:
    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.look.subject import Subject

__all__ = ["DEFAULT", "Here", "Session"]

DEFAULT = "default"
"""The first of the images that come with the studio, and the model that comes with vitrail."""
MAX_PIXELS = 2**25
KEPT_IMAGES = 8
KEPT_RESULTS = 24
SECONDS = 20.0
MAX_TOKENS = 2048

T = TypeVar("T")
V = TypeVar("V")


class Kept(Generic[V]):
    """The last few values by key, oldest out; safe from several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[Hashable, V](), threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)


@dataclass(frozen=True)
class Source:
    """Weights that the person who started the studio named, or the bundled ones."""

    name: str
    read: Callable[[], Checkpoint]


class Session:
    """One running studio. Clients name images by id and weights by name; no path of theirs is ever opened."""

    def __init__(self, weights: Sequence[Path] = ()) -> None:
        self._sources = {DEFAULT: Source(DEFAULT, lambda: _load(Path(DEFAULT)))}
        for path in weights:
            require(path.name not in self._sources, f"weights {path.name!r} are given twice; rename one of the files")
            self._sources[path.name] = Source(path.name, lambda path=path: _load(path))
        self._checkpoints: dict[str, Checkpoint] = {}
        self._images = Kept[Pixels](KEPT_IMAGES)
        self._results = Kept[Any](KEPT_RESULTS)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="studio-model")

    # ── images ──────────────────────────────────────────────────────────────────────────────────────────────────

    def add_image(self, data: bytes) -> str:
        """Decode, keep, and name by content."""
        pixels = decode(data, max_pixels=MAX_PIXELS)
        name = hashlib.sha256(data).hexdigest()[:16]
        self._images.put(name, pixels)
        return name

    def image(self, name: str) -> Pixels:
        """uint8 (height, width, 3)."""
        if name in (DEFAULT, *PICTURES):
            return PICTURES.get(name, next(iter(PICTURES.values())))()
        pixels = self._images.get(name)
        require(pixels is not None, f"image {name!r} is not here any more; drop it on the page again")
        assert pixels is not None
        return pixels

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def weights(self) -> list[str]:
        return list(self._sources)

    def checkpoint(self, name: str = DEFAULT) -> Checkpoint:
        """Loaded once, when first asked for."""
        require(name in self._sources, f"weights {name!r} are not loaded; start the studio with --weights")
        if name not in self._checkpoints:
            self._checkpoints[name] = self._sources[name].read()
        return self._checkpoints[name]

    def config(self, name: str) -> Config:
        """The config of loaded weights, or of a preset."""
        return self.checkpoint(name).config if name in self._sources else preset(name)

    def planned(self, name: str) -> ViTConfig:
        """A config whose image and patch may be chosen."""
        from vitrail.parts import Patches

        config = self.config(name)
        if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches):
            raise VitrailError(f"model {name!r} has no patch size to choose; take B/16 or another plain ViT")
        return config

    @property
    def plannable(self) -> list[str]:
        from vitrail.parts import Patches

        return [n for n, c in PRESETS.items() if isinstance(c, ViTConfig) and isinstance(c.embedding, Patches)]

    # ── computing ───────────────────────────────────────────────────────────────────────────────────────────────

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute on the one model thread, or take what was computed before; `BusyError` when it takes too long.

        The key must hold everything that the result depends on, image id and weights name included.
        """
        kept = self._results.get(key)
        if kept is None:
            future: Future[T] = self._worker.submit(compute)
            try:
                kept = future.result(timeout=SECONDS)
            except Late:
                future.cancel()
                raise BusyError(
                    f"this takes more than {SECONDS:.0f} seconds here; use a smaller image or model"
                ) from None
            self._results.put(key, kept)
        return kept

    def subject(self, image: str, weights: str = DEFAULT, seen: int = 0) -> Subject:
        """The model with the image as it gets it. `seen` is a side in pixels; 0 is the size it was trained at.

        Call it inside `once`: the first call adapts the model to the size.
        """
        import torch

        from vitrail.checkpoint.surgery.adapt import adapt
        from vitrail.look.subject import subject_of

        checkpoint = self.checkpoint(weights)
        size = self.seen_size(weights, seen)
        key = ("model", weights, size)
        model = self._results.get(key)
        if model is None:
            if size != checkpoint.config.image:
                checkpoint = adapt(checkpoint, {"image": str(size)})[0]
            model = checkpoint.model(dtype=torch.float32)
            self._results.put(key, model)
        preprocessing = replace(checkpoint.preprocessing, image=size)
        with torch.inference_mode():
            return subject_of(model, self.image(image), preprocessing, words=f"{weights} at {size}")

    def seen_size(self, weights: str, seen: int) -> Size:
        """The nearest size that the model takes, within what a laptop computes at once."""
        config = self.config(weights)
        if seen == 0:
            return config.image
        counts = [max(1, round(seen / side)) for side in config.unit]
        require(
            counts[0] * counts[1] <= MAX_TOKENS,
            f"{counts[0]}x{counts[1]} patches are above {MAX_TOKENS:,}; see the image at fewer than {seen} px",
        )
        return Size(*(count * side for count, side in zip(counts, config.unit, strict=True)))

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)


def _load(path: Path) -> Checkpoint:
    from vitrail.checkpoint.read import load

    return load(path)


def png(pixels: Pixels, side: int) -> bytes:
    """Pixels as a PNG whose longer side is at most `side`."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _session(request: Request) -> Session:
    return request.app.state.session


Here = Annotated[Session, Depends(_session)]
"""An endpoint's way to the session."""
