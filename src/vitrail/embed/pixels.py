"""A file → the pixels that a model was trained to see: decoded, resized, cropped, still uint8.

Two paths with one geometry: the whole image is resized to sides that round as the training code's did, then the middle
is cut out. (A crop without that rounding costs more cosine than any decoder.)

    exact   Pillow's decoder and Pillow's resize, to the bit
    fast    a JPEG leaves out frequencies that the resize would remove, and torch resizes, on bytes and antialiased

The fast path's pixels differ from the exact ones by at most `MEAN_TOLERANCE` levels of 255 on average over an image;
without a JPEG to shrink, by at most 1 anywhere.

Shapes: H×W pixels, C channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from vitrail.checkpoint.preprocessing import Interpolation, Preprocessing
from vitrail.geometry import Size
from vitrail.images.decode import Pixels, decode_at_least

__all__ = ["MEAN_TOLERANCE", "Prepared", "prepare", "resized_size"]

MEAN_TOLERANCE = 1.5
"""Levels of 255, on average over an image, by which the fast path may differ from the exact one on a photograph."""
SPARE = 2
"""A JPEG is decoded to no less than this many times what the model sees."""
MOST_PIXELS = 2**24
"""Most pixels of the resized image: beyond, as for a picture of 1×20000, only the middle is resized."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An image as the model takes it, and what it was."""

    pixels: Pixels
    """uint8 (H, W, C)"""
    original: Size
    """The upright size of the file's picture."""


def prepare(
    source: str | Path | bytes,
    preprocessing: Preprocessing,
    *,
    exact: bool = False,
    channels: Literal[1, 3] = 3,
) -> Prepared:
    """Decode, resize and crop to `preprocessing.image`; what gives no picture raises an ImageError."""
    least = None if exact else Size(*(SPARE * side for side in preprocessing.image))
    pixels, original = decode_at_least(source, least, channels=channels)
    whole, image = resized_size(original, preprocessing), preprocessing.image
    down = preprocessing.half_pixel == "down"
    margins = [(a - b) / 2 for a, b in zip(whole, image, strict=True)]
    top, left = (math.floor(margin) if down else round(margin) for margin in margins)
    if whole.area > MOST_PIXELS:
        part = _resize_part(pixels, original, whole, (top, left), preprocessing)
    else:
        if exact or preprocessing.interpolation not in _ON_BYTES:
            resized = _pillow(pixels, whole, preprocessing.interpolation)
        else:
            resized = _torch(pixels, original, whole, preprocessing.interpolation)
        part = resized[top : top + image.height, left : left + image.width]
    return Prepared(pixels=np.array(part, order="C"), original=original)


def resized_size(original: Size, preprocessing: Preprocessing) -> Size:
    """What the whole image is resized to before the middle is cut out.

    The shorter side is image / crop_share, rounded down, and the longer one follows: rounded down for a square
    (torchvision, timm, transformers), to the nearest otherwise (timm).

    >>> resized_size(Size(480, 641), Preprocessing(image=Size(224, 224), crop_share=0.9))
    Size(height=248, width=331)
    """
    target = preprocessing.whole
    if preprocessing.resize == "squash":
        return target
    if target.height == target.width:
        short = min(original)
        return Size(*(int(target.height * side / short) for side in original))
    scale = min(original.height / target.height, original.width / target.width)
    return Size(*(round(side / scale) for side in original))


_ON_BYTES = {"bilinear": torch.ops.aten._upsample_bilinear2d_aa, "bicubic": torch.ops.aten._upsample_bicubic2d_aa}


def _torch(pixels: Pixels, original: Size, size: Size, interpolation: Interpolation) -> Pixels:
    """Resize on bytes. A JPEG's decoder rounds sides up: 1201 / 2 → 601 pixels that show 600.5, so the scale is the
    original's."""
    shrunk = round(max(original) / max(pixels.shape[:2]))
    scales = [to * shrunk / side for to, side in zip(size, original, strict=True)]
    image = torch.tensor(pixels).permute(2, 0, 1)[None]  # a copy: Pillow's bytes are read-only
    return _ON_BYTES[interpolation](image, tuple(size), False, *scales)[0].permute(1, 2, 0).numpy()


def _pillow(pixels: Pixels, size: Size, interpolation: Interpolation) -> Pixels:
    resized = _as_image(pixels).resize((size.width, size.height), Image.Resampling[interpolation.upper()])
    return np.asarray(resized).reshape(*size, pixels.shape[2])


def _resize_part(
    pixels: Pixels, original: Size, whole: Size, corner: tuple[int, int], preprocessing: Preprocessing
) -> Pixels:
    """The middle of the resized image, without the rest of it."""
    image, shrunk = preprocessing.image, round(max(original) / max(pixels.shape[:2]))
    down, across = original.height / shrunk / whole.height, original.width / shrunk / whole.width
    (top, left), method = corner, Image.Resampling[preprocessing.interpolation.upper()]
    box = (left * across, top * down, (left + image.width) * across, (top + image.height) * down)
    part = _as_image(pixels).resize((image.width, image.height), method, box=box)
    return np.asarray(part).reshape(*image, pixels.shape[2])


def _as_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
