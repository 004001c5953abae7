"""The middle of an image, as large as it goes, in the shape that a model gets."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from vitrail.geometry import Size
from vitrail.images.decode import Pixels

__all__ = ["middle_of", "resized"]


def resized(pixels: Pixels, size: Size) -> Pixels:
    """The middle, at this size."""
    return np.asarray(ImageOps.fit(Image.fromarray(pixels), (size.width, size.height), Image.Resampling.BICUBIC))


def middle_of(image: Size, shape: Size) -> tuple[float, float, float, float]:
    """Where the middle lies: top, left, height and width, as shares of the image's sides.

    >>> middle_of(Size(300, 400), Size(64, 64))
    (0.0, 0.125, 1.0, 0.75)
    """
    taller = shape.height * image.width / (shape.width * image.height)
    height, width = min(1.0, taller), min(1.0, 1 / taller)
    return (1 - height) / 2, (1 - width) / 2, height, width
