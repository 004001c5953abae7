"""Cells of a token grid on the page: the photograph that a grid covers, and the patch of each cell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.look.subject import Subject
from vitrail.look.views.words import cells_on
from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout

__all__ = ["covered_photo", "patch_of_cell"]


def covered_photo(subject: Subject, layout: Layout, side: int) -> np.ndarray:
    """Return the part of the image that a grid covers; its longer side has up to `side` pixels."""
    left, right, bottom, top = cells_on(subject, layout).extent
    photo = subject.photo
    picture = Image.fromarray(photo.pixels)
    across, down = picture.width / photo.seen.width, picture.height / photo.seen.height
    box = (left * across, top * down, right * across, bottom * down)
    scale = min(1.0, side / max(picture.size))
    size = (round((box[2] - box[0]) * scale), round((box[3] - box[1]) * scale))
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS, box))


def patch_of_cell(layout: Layout) -> Tensor:
    """Return (c,): the patch that covers each cell of the grid."""
    if layout.rectangles is None:
        return torch.arange(layout.grid.area)
    numbers = torch.arange(layout.rectangles.shape[1], dtype=torch.float32)
    return to_dense(numbers[None, :, None], replace(layout, mask=None)).long().flatten()
