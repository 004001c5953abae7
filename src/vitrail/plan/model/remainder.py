"""The cost of fitting an image to the patches."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.plan.graph import Tensor, view
from vitrail.plan.tape import Tape

__all__ = ["fit_pixels"]


def fit_pixels(t: Tape, c: ViTConfig, image: Tensor, batch: int) -> Tensor:
    """A resized or padded image is a new tensor; a cropped one is a view."""
    if c.remainder == "error" or (fit := c.fit(c.image)).fitted == fit.image:
        return image
    count = batch * c.frames * c.channels * fit.fitted.area
    return view(image.storage, count, image.size) if c.remainder in ("crop", "floor") else t.new(count, image.size)
