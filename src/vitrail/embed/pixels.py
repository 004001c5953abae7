"""A file → the pixels that a model was trained to see: decoded, resized, cropped, still uint8.

Shapes: H×W pixels, C channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.geometry import Size
from vitrail.images.decode import Pixels, decode_at_least

__all__ = ["Prepared", "prepare"]

SPARE = 2
"""A JPEG is decoded no smaller than this many times the size that it is resized to."""


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
    """Decode, resize and crop to `preprocessing.image`; what gives no picture raises an ImageError.

    exact: what Pillow's decoder and resize give, to the bit.
    """
    pixels, original = decode_at_least(source, None, channels=channels)
    resized = resized_size(original, preprocessing)
    return Prepared(pixels=_resize(pixels, resized, preprocessing), original=original)


def resized_size(original: Size, preprocessing: Preprocessing) -> Size:
    """What the whole image is resized to before the middle is cut out; sides round as timm's and torchvision's do."""
    image = preprocessing.image
    if preprocessing.resize == "squash":
        return image
    # a share that was computed from two sides gives the larger one back
    target = Size(*(math.floor(side / preprocessing.crop_share + 1e-6) for side in image))
    if target.height == target.width:
        short = min(original)
        return Size(*(int(target.height * side / short) for side in original))
    scale = min(original.height / target.height, original.width / target.width)
    return Size(*(round(side / scale) for side in original))


def _resize(pixels: Pixels, resized: Size, preprocessing: Preprocessing) -> Pixels:
    image, method = preprocessing.image, Image.Resampling[preprocessing.interpolation.upper()]
    top, left = (round((whole - part) / 2) for whole, part in zip(resized, image, strict=True))
    flat = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    scale = pixels.shape[0] / resized.height, pixels.shape[1] / resized.width
    box = (left * scale[1], top * scale[0], (left + image.width) * scale[1], (top + image.height) * scale[0])
    seen = flat.resize((image.width, image.height), method, box=box)
    return np.asarray(seen).reshape(*image, pixels.shape[2])
