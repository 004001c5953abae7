"""Unlabelled images to heal with: decoded once if there is room, checked to be different ones, and split into three.

Shapes: H×W pixels, C channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image as Pillow

from vitrail.checkpoint.pixels import Image, check_pixels, resize, with_channels
from vitrail.data.source import Subset
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.images.decode import ImageError, Pixels, decode_at_least, peek, pixels_of

__all__ = ["FEWEST", "HELD_OUT", "Parts", "Pictures", "different", "image_mark", "readable", "split"]

FEWEST = 16
"""Different images that healing needs: 8 to learn from, 4 to choose by, 4 to judge on."""
HELD_OUT = 24
"""The most images to choose by, and the most to judge on."""
KEPT_BYTES = 1 << 30
"""Decoded pixels that are kept in memory; further images are decoded each time."""
HASHED_BYTES = 1 << 16
SPARE = 2
"""Images are shrunk to this many times the size that the models take, so that random parts have enough pixels."""


class Pictures:
    """Images by index, as training takes them, without labels."""

    classes: tuple[str, ...] = ()

    def __init__(self, images: Sequence[Image], *, least: Size, channels: int) -> None:
        self.images, self.channels = list(images), channels
        self.least = Size(*(SPARE * side for side in least))
        self.labels = np.zeros(len(self.images), np.int64)
        self.kept: dict[int, Pixels] = {}
        self.damaged: dict[int, str] = {}  # what decoding found, by index
        self.room = KEPT_BYTES

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        held = self.kept.get(index)
        if held is None:
            try:
                held = self._shrunk(self._decoded(self.images[index]))
            except ImageError as error:
                self.damaged[index] = str(error)
                raise
            if held.nbytes <= self.room:
                self.room -= held.nbytes
                self.kept[index] = held
        return held, 0

    def _decoded(self, image: Image) -> Pixels:
        channels = self.channels
        if isinstance(image, Pillow.Image):
            image = pixels_of(image)
        if isinstance(image, str | Path | bytes):
            require(
                channels in (1, 3),
                f"files have 1 or 3 channels and the model takes {channels}; give uint8 arrays (height, width, "
                f"{channels}) from Python, red, green and blue first",
            )
            return decode_at_least(image, self.least, channels=channels)[0]  # type: ignore[arg-type]
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == channels:
            return image
        return with_channels(check_pixels(image), channels)

    def _shrunk(self, pixels: Pixels) -> Pixels:
        size = Size(*pixels.shape[:2])
        scale = max(least / side for least, side in zip(self.least, size, strict=True))
        if scale >= 1:
            return pixels
        return resize(pixels, Size(*(max(1, round(side * scale)) for side in size)))


class Parts(NamedTuple):
    """The images to learn from, to make choices by, and to judge the result on."""

    training: Subset
    choosing: Subset
    judging: Subset


def readable(images: Sequence[Image]) -> tuple[list[Image], list[str]]:
    """Return the images whose header can be read, and the errors of the others; decoding finds damage inside."""
    good, failed = [], []
    for image in images:
        try:
            if isinstance(image, str | Path | bytes):
                peek(image)
        except ImageError as error:
            failed.append(str(error))
        else:
            good.append(image)
    return good, failed


def different(images: Sequence[Image]) -> list[Image]:
    """Return the images without repetitions, in order; files are compared by size and beginning."""
    seen: set[bytes] = set()
    found = []
    for image in images:
        mark = image_mark(image)
        if mark not in seen:
            seen.add(mark)
            found.append(image)
    return found


def image_mark(image: Image) -> bytes:
    """Return a hash by which copies are recognised."""
    if isinstance(image, str | Path):
        try:
            with open(image, "rb") as file:
                data, size = file.read(HASHED_BYTES), file.seek(0, 2)
        except OSError as error:
            raise VitrailError(f"{image} cannot be read ({error.strerror or error}); check the path") from None
    else:
        data = image if isinstance(image, bytes) else np.asarray(image).tobytes()
        size = len(data)
    return hashlib.sha256(size.to_bytes(8, "little") + data).digest()


def split(pictures: Pictures, *, judging: bool = True) -> Parts:
    """Split evenly over the order, which follows folders: a tenth to choose by, a tenth to judge on, the rest to learn.

    Without `judging`, no images are set aside to judge on.

    >>> [len(part) for part in split(Pictures([b""] * 40, least=Size(8, 8), channels=3))]
    [32, 4, 4]
    """
    count = len(pictures)
    few = "1 different image is" if count == 1 else f"{count} different images are"
    require(count >= FEWEST, f"{few} too few to heal with; give {FEWEST} or more, and better a few hundred")
    apart = min(HELD_OUT, max(4, count // 10))
    held = np.arange(2 * apart) * count // (2 * apart)
    choosing, judged = held[::2], held[1::2] if judging else held[:0]
    training = np.setdiff1d(np.arange(count), np.concatenate([choosing, judged]))
    return Parts(*(Subset(pictures, indices) for indices in (training, choosing, judged)))
