"""Decode, resize and crop an image to the uint8 pixels that a model was trained on.

Two paths with the same geometry: the whole image is resized, its sides rounded as in the training code, and the centre
is cropped. (Cropping without that rounding costs more cosine than any decoder.)

    exact   exactly Pillow's decoder and resize
    fast    a JPEG is decoded at a fraction of its size, and torch resizes uint8 pixels, antialiased

The fast path's pixels differ from the exact ones by at most `MEAN_TOLERANCE` levels of 255 on average over an image;
images that are not JPEGs by at most 1 level per pixel.

Shapes: H×W pixels, C channels.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Pillow

from vitrail.charts.notebook import Brief
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.images.decode import Pixels, decode_at_least, peek, pixels_of, read_file

if TYPE_CHECKING:
    from vitrail.checkpoint.preprocessing import Interpolation, Preprocessing

__all__ = [
    "MEAN_TOLERANCE",
    "Image",
    "Prepared",
    "check_pixels",
    "file_of",
    "prepare",
    "read_pixels",
    "resize",
    "size_of",
    "with_channels",
]

Image = str | Path | bytes | Pixels | Pillow.Image
"""A file, its bytes, an open Pillow image, or decoded pixels: uint8 (H, W, C)."""

MEAN_TOLERANCE = 1.5
"""Mean difference per pixel, in levels of 255, that the fast path may have on a photograph."""
SPARE = 2
"""A JPEG is decoded to at least this many times the size that the model takes."""
MOST_PIXELS = 2**24
"""Above this many pixels after resizing (e.g. for an image of 1×20000), only the centre is resized."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Prepared(Brief):
    """An image as the model takes it, and its original size."""

    pixels: Pixels
    """uint8 (H, W, C)"""
    original: Size
    """Size of the image in the file, after EXIF rotation."""


def prepare(image: Image, steps: Preprocessing, *, exact: bool = False) -> Prepared:
    """Decode, resize and crop to `steps.image`; raise ImageError if the image cannot be decoded."""
    pixels, original = _read(image, steps, exact=exact)
    whole, seen = steps.resized_size(original), steps.image
    top, left = steps.corner(whole)
    if whole == seen == original == Size(*pixels.shape[:2]):
        return Prepared(pixels=np.array(pixels, order="C"), original=original)
    if whole.area > MOST_PIXELS:
        part = _resize_part(pixels, original, whole, (top, left), steps)
    else:
        if exact or steps.interpolation not in _ON_BYTES:
            resized = _pillow(pixels, whole, steps.interpolation)
        else:
            resized = resize(pixels, whole, steps.interpolation, original=original)
        part = resized[top : top + seen.height, left : left + seen.width]
    return Prepared(pixels=np.array(part, order="C"), original=original)


def read_pixels(image: Image, steps: Preprocessing) -> Pixels:
    """Decode a whole image, with as many channels as the model takes."""
    return _read(image, steps, exact=True)[0]


def size_of(image: Image) -> Size:
    """Return the upright size of an image, from a file's header where possible."""
    if isinstance(image, Pillow.Image):
        image = pixels_of(image)
    return Size(*check_pixels(image).shape[:2]) if isinstance(image, np.ndarray) else peek(image)


def file_of(image: Image) -> bytes:
    """Return a file of the image: its own bytes, or its pixels as PNG."""
    if isinstance(image, str | Path | bytes):
        return read_file(image)[1]
    stream = io.BytesIO()
    pixels = pixels_of(image) if isinstance(image, Pillow.Image) else check_pixels(image)
    _as_image(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _read(image: Image, steps: Preprocessing, *, exact: bool) -> tuple[Pixels, Size]:
    """Return the pixels, perhaps of a JPEG decoded at a fraction of its size, and the image's upright size."""
    channels = steps.channels
    if channels not in (1, 3):
        raise VitrailError(
            f"{channels} channels cannot be decoded from pictures, which have 1 or 3; give tensors instead"
        )
    if isinstance(image, Pillow.Image):
        image = pixels_of(image, channels=channels)
    if not isinstance(image, np.ndarray):
        least = None if exact else Size(*(SPARE * side for side in steps.image))
        return decode_at_least(image, least, channels=channels)
    check_pixels(image)
    return with_channels(image, channels), Size(*image.shape[:2])


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Return the pixels with this many channels: grey from colour, three from grey, or the first of more.

    >>> with_channels(np.zeros((2, 5, 13), np.uint8), 3).shape
    (2, 5, 3)
    """
    held = pixels.shape[2]
    if held == channels:
        return pixels
    if held > 3 and channels == 3:
        return pixels[:, :, :3]
    require(
        held in (1, 3) and channels in (1, 3),
        f"{held} channels cannot become {channels}; give images of {channels} channels",
    )
    converted = _as_image(pixels).convert("L" if channels == 1 else "RGB")
    return np.array(converted).reshape(*pixels.shape[:2], channels)  # a copy: Pillow's bytes are read-only


def check_pixels(pixels: Pixels) -> Pixels:
    """Return an array that is an image: uint8 (H, W, 1 or 3); raise VitrailError for any other."""
    require(
        isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] in (1, 3),
        f"{_described(pixels)} is not an image; give uint8 (height, width, 1 or 3), a file, bytes or a Pillow image",
    )
    return pixels


def _described(pixels: object) -> str:
    if isinstance(pixels, np.ndarray):
        return f"an array of shape {pixels.shape} and type {pixels.dtype}"
    return f"a value of type {type(pixels).__name__}"


_ON_BYTES = ("bilinear", "bicubic")
"""Interpolations that torch has for uint8."""


def resize(
    pixels: Pixels, size: Size, interpolation: Interpolation = "bicubic", *, original: Size | None = None
) -> Pixels:
    """Resize uint8 pixels, antialiased. A JPEG decoder rounds sides up (1201 / 2 → 601 pixels that show 600.5), so the
    scale is computed from the `original` size."""
    import torch  # imported late: the studio's first room needs only a crop

    original = original or Size(*pixels.shape[:2])
    shrunk = round(max(original) / max(pixels.shape[:2]))
    scales = [to * shrunk / side for to, side in zip(size, original, strict=True)]
    image = torch.tensor(pixels).permute(2, 0, 1)[None]  # a copy: Pillow's bytes are read-only
    antialiased = getattr(torch.ops.aten, f"_upsample_{interpolation}2d_aa")
    return antialiased(image, tuple(size), False, *scales)[0].permute(1, 2, 0).numpy()


def _pillow(pixels: Pixels, size: Size, interpolation: Interpolation) -> Pixels:
    resized = _as_image(pixels).resize((size.width, size.height), Pillow.Resampling[interpolation.upper()])
    return np.asarray(resized).reshape(*size, pixels.shape[2])


def _resize_part(pixels: Pixels, original: Size, whole: Size, corner: tuple[int, int], steps: Preprocessing) -> Pixels:
    """Resize only the centre of the image."""
    image, shrunk = steps.image, round(max(original) / max(pixels.shape[:2]))
    down, across = original.height / shrunk / whole.height, original.width / shrunk / whole.width
    (top, left), method = corner, Pillow.Resampling[steps.interpolation.upper()]
    box = (left * across, top * down, (left + image.width) * across, (top + image.height) * down)
    part = _as_image(pixels).resize((image.width, image.height), method, box=box)
    return np.asarray(part).reshape(*image, pixels.shape[2])


def _as_image(pixels: Pixels) -> Pillow.Image:
    return Pillow.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
