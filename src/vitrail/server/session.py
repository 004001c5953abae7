"""The state between requests: uploaded images, loaded models, cached results, and one worker for computations."""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Request

from vitrail.checkpoint.sources.catalogue import CATALOGUE, fetched
from vitrail.checkpoint.sources.names import short_name
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, in_shape_of
from vitrail.presets import PRESETS, preset
from vitrail.server.cache import Cache
from vitrail.server.folder_maps import FolderMaps
from vitrail.server.folders import Folders
from vitrail.server.jobs import Worker, proceed
from vitrail.server.pictures import PICTURES
from vitrail.server.uploads import Uploads

if TYPE_CHECKING:
    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.images.decode import Pixels
    from vitrail.look.record import Recording
    from vitrail.look.subject import Subject

__all__ = ["DEFAULT", "Pass", "Session", "SessionDep"]

DEFAULT = "default"
"""The name of the first bundled image, and of the bundled model."""
MAX_PIXELS = 2**25
CACHED_IMAGES = 8
CACHED_RESULTS = 24
CACHED_BYTES = 2 << 30
"""Models, recorded passes and mean attention maps together. A pass of dinov2-S/14 at 448 px is about 60 MB, its mean
maps 50 MB and the model 90 MB; the maps of all heads, 300 MB, are never kept."""
SECONDS = 20.0
MAX_TOKENS = 2048

T = TypeVar("T")


class Pass(NamedTuple):
    """How long one forward pass took."""

    size: Size
    seconds: float


class Session:
    """One running studio. Clients name images by id and weights by name; no path from a client is ever opened."""

    most_patches: float = math.inf
    """The largest grid of an automatic input size."""

    def __init__(self, weights: Sequence[str | Path] = (), folder: str | Path | None = None) -> None:
        known = (DEFAULT, *fetched())
        self._paths: dict[str, str] = {}  # the user's weights come first
        for path in dict.fromkeys(map(str, weights)):
            name = path if path in known else short_name(path)
            taken = name in self._paths or (name in known and name != path)
            require(not taken, f"weights {name!r} are given twice; rename one of the files")
            self._paths[name] = path
        self._given = list(self._paths)
        self._paths |= {name: name for name in known}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._configs: dict[str, Config] = {}
        self.uploads, self.folders = Uploads(), Folders()
        self._images: Cache[Pixels] = Cache(CACHED_IMAGES)
        self._results = Cache[Any](CACHED_RESULTS, CACHED_BYTES)
        self._worker = Worker()
        self.maps = FolderMaps(folder, self._worker)
        self._passes: dict[str, Pass] = {}
        self._kept: dict[Hashable, Any] = {}

    # ── images ──────────────────────────────────────────────────────────────────────────────────────────────────

    def add_image(self, data: bytes) -> str:
        """Decode and store an image; return its id, a hash of the content."""
        from vitrail.images.decode import decode

        pixels = decode(data, max_pixels=MAX_PIXELS)
        name = hashlib.sha256(data).hexdigest()[:16]
        self._images.put(name, pixels)
        return name

    def has_image(self, name: str) -> bool:
        return name in (DEFAULT, *PICTURES) or self._images.get(name) is not None

    def image(self, name: str) -> Pixels:
        """Return a bundled or uploaded image: uint8 (height, width, 3)."""
        if name in (DEFAULT, *PICTURES):
            return PICTURES.get(name, next(iter(PICTURES.values())))()
        pixels = self._images.get(name)
        if pixels is None:
            raise VitrailError(f"image {name!r} is no longer stored; drop it on the page again")
        return pixels

    def image_size(self, name: str) -> Size:
        """Return the height and width of an image."""
        return Size(*self.image(name).shape[:2])

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def weights(self) -> list[str]:
        """The names of all weights: the user's first, which rooms open with."""
        return list(self._paths)

    @property
    def given(self) -> list[str]:
        """The names of the weights that the user gave."""
        return list(self._given)

    def source(self, name: str) -> str:
        """Return what `--weights` takes for loaded weights: a name or a path."""
        return self._paths.get(name, name)

    @property
    def more(self) -> str:
        """How to get models that are not here yet; empty if all of them are."""
        missing = [name for name in CATALOGUE if name not in self._paths]
        return f"vitrail weights fetch {missing[0]}, or --weights FILE or owner/name" if missing else ""

    def open_weights(self) -> None:
        """Read the weights that the user gave: what cannot be read is then an error at the start."""
        for name in self._given:
            self.checkpoint(name)

    def checkpoint(self, name: str = DEFAULT) -> Checkpoint:
        """Return the weights of this name; they are loaded once, on first use."""
        from vitrail.checkpoint.read import load

        require(name in self._paths, f"weights {name!r} are not loaded; start the studio with --weights")
        if name not in self._checkpoints:
            checkpoint = load(self._paths[name])
            checkpoint.config.require_still("the studio")
            self._checkpoints[name] = checkpoint
        return self._checkpoints[name]

    def add_weights(self, path: Path, name: str) -> str:
        """Read an uploaded file and list it; return its name, with a number if the name is taken."""
        from vitrail.checkpoint.read import load

        try:
            checkpoint = load(path)
            checkpoint.config.require_still("the studio")
        except VitrailError as error:
            self.uploads.discard(path)
            raise VitrailError(str(error).replace(str(path), name)) from None
        stem, given = name, 1
        while name in self._paths:
            given += 1
            name = f"{stem} ({given})"
        self._paths[name], self._checkpoints[name] = str(path), checkpoint
        return name

    def config(self, name: str) -> Config:
        """Return the config of loaded weights or of a preset."""
        if name not in self._paths:
            config = preset(name)
            config.require_still("the studio")
            return config
        if name not in self._configs:
            from vitrail.checkpoint.header import written_config

            # most files have the config in their header, which is read without torch
            config = written_config(self._paths[name]) or self.checkpoint(name).config
            config.require_still("the studio")
            self._configs[name] = config
        return self._configs[name]

    def planned(self, name: str) -> ViTConfig:
        """Return a config whose image and patch sizes can be changed."""
        from vitrail.parts import Patches

        config = PRESETS.get(name) or self.config(name)  # fetched weights may have a preset's name
        if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches):
            raise VitrailError(f"model {name!r} has no patch size to choose; choose B/16 or another plain ViT")
        return config

    @property
    def plannable(self) -> list[str]:
        from vitrail.parts import Patches

        return [n for n, c in PRESETS.items() if isinstance(c, ViTConfig) and isinstance(c.embedding, Patches)]

    # ── computing ───────────────────────────────────────────────────────────────────────────────────────────────

    def once(self, key: Hashable, compute: Callable[[], T], seconds: float | None = None) -> T:
        """Return the cached result, or compute it on the one worker thread; raise `BusyError` after a time limit.

        The key must contain everything that the result depends on, including image id and weights name.
        """

        def store() -> T:
            result = self._results.get(key)  # it may have come while this job waited
            if result is None:
                result = compute()
                self._results.put(key, result)
            return result

        result = self._results.get(key)
        return self._worker.run(key, store, seconds or SECONDS) if result is None else result

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a value that stays for the session; it is made on first use, without waiting for the worker."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def recording(
        self, image: str, weights: str = DEFAULT, seen: int = 0, *, whole: bool = False
    ) -> tuple[Subject, Recording]:
        """Return the one forward pass of a model on an image at a size, which all views of all rooms share."""
        size = self.input_size(image, weights, seen, whole=whole)

        def compute() -> tuple[Subject, Recording]:
            from vitrail.look.record import record

            subject = self.subject(image, weights, seen, whole=whole)
            start = time.perf_counter()
            recording = record(subject.model, subject.image)
            self.note_pass(weights, size, time.perf_counter() - start)
            return subject, recording

        return self.once(("pass", image, weights, size, whole), compute)

    def last_pass(self, weights: str) -> Pass | None:
        """Return the size and time of the last forward pass of a model."""
        return self._passes.get(weights)

    def note_pass(self, weights: str, size: Size, seconds: float) -> None:
        """Note how long a forward pass of a model took, for estimates of the next."""
        self._passes[weights] = Pass(size, seconds)

    def model(self, weights: str, size: Size) -> Any:
        """Return the model for an input size; it stops between blocks when nobody waits for it.

        Call this inside `once`: the first call adapts the model to the size.
        """
        import torch

        from vitrail.checkpoint.surgery.adapt import adapt
        from vitrail.nn.block import Block

        key = ("model", weights, size)
        model = self._results.get(key)
        if model is None:
            checkpoint = self.checkpoint(weights)
            if size != checkpoint.config.image:
                checkpoint = adapt(checkpoint, {"image": str(size)})[0]
            model = checkpoint.model(dtype=torch.float32)
            for block in model.modules():
                if isinstance(block, Block):
                    block.register_forward_pre_hook(lambda *_: proceed())
            self._results.put(key, model)
        return model

    def subject(self, image: str, weights: str = DEFAULT, seen: int = 0, *, whole: bool = False) -> Subject:
        """Return the model with the preprocessed image. `seen` is a side in pixels; 0 means the training size.

        With `whole`, the image keeps its shape, with about as many pixels, instead of being cropped to a square.
        Call this inside `once`.
        """
        import torch

        from vitrail.look.subject import subject_of

        size = self.input_size(image, weights, seen, whole=whole)
        steps = self.checkpoint(weights).preprocessing
        preprocessing = steps.squashed(size) if whole else replace(steps, image=size)
        with torch.inference_mode():
            return subject_of(self.model(weights, size), self.image(image), preprocessing, words=f"{weights} at {size}")

    def input_size(self, image: str, weights: str, seen: int, *, whole: bool) -> Size:
        """Return the size at which the model sees an image: square, or in the image's own shape."""
        size = self.seen_size(weights, seen)
        return in_shape_of(self.image_size(image), size.area, self.config(weights).unit) if whole else size

    def seen_size(self, weights: str, seen: int) -> Size:
        """Return the nearest input size that the model accepts, up to MAX_TOKENS patches."""
        config = self.config(weights)
        if seen == 0:
            return config.image
        counts = [max(1, round(seen / side)) for side in config.unit]
        require(
            counts[0] * counts[1] <= MAX_TOKENS,
            f"{counts[0]}x{counts[1]} patches are above {MAX_TOKENS:,}; choose an input size below {seen} px",
        )
        return Size(*(count * side for count, side in zip(counts, config.unit, strict=True)))

    def close(self) -> None:
        self._worker.close()
        self.uploads.close()
        self.folders.close()
        self.maps.close()


def png(pixels: Pixels, side: int) -> bytes:
    """Encode pixels as a PNG whose longer side is at most `side`."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _session(request: Request) -> Session:
    return request.app.state.session


SessionDep = Annotated[Session, Depends(_session)]
"""The type of an endpoint's session parameter."""
