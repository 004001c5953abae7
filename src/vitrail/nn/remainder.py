"""Fit an image to whole patches: resize it, crop it, or pad it and mask the padding.

Shapes: B images, C channels, H×W pixels, h×w grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import require
from vitrail.geometry import Fit, Size

__all__ = ["fit_pixels", "inside_of", "pad_batch"]


def fit_pixels(image: Tensor, to: Fit) -> Tensor:
    """(B, C, H, W) → images of size `to.fitted`; padding adds zeros at the bottom and right."""
    if to.fitted == to.image:
        return image
    if to.remainder == "resize":
        return F.interpolate(image, size=tuple(to.fitted), mode="bicubic", antialias=True, align_corners=False)
    if to.remainder in ("crop", "floor"):
        top, left = to.offset
        return image[:, :, top : top + to.fitted.height, left : left + to.fitted.width]
    return F.pad(image, (0, to.fitted.width - to.image.width, 0, to.fitted.height - to.image.height))


def pad_batch(images: Sequence[Tensor]) -> tuple[Tensor, list[Size]]:
    """Images (C, H, W), or clips (F, C, H, W), of different sizes → one zero-padded batch and the size of each, for a
    model whose remainder is "pad".

    >>> batch, sizes = pad_batch([torch.ones(3, 32, 48), torch.ones(3, 40, 16)])
    >>> batch.shape, sizes
    (torch.Size([2, 3, 40, 48]), [Size(height=32, width=48), Size(height=40, width=16)])
    """
    require(len(images) > 0, "images is empty, and a batch needs one or more; give at least one")
    sizes = [Size(*image.shape[-2:]) for image in images]
    canvas = Size(max(size.height for size in sizes), max(size.width for size in sizes))
    batch = images[0].new_zeros(len(images), *images[0].shape[:-2], *canvas)
    for row, image, size in zip(batch, images, sizes, strict=True):
        row[..., : size.height, : size.width] = image
    return batch, sizes


def inside_of(sizes: Sequence[Size], canvas: Size, device: torch.device) -> Tensor:
    """Return (B, H, W) or (B, h, w): true in the top left part of the canvas that each image covers."""
    heights, widths = torch.tensor([tuple(size) for size in sizes], device=device).T[:, :, None]
    rows = torch.arange(canvas.height, device=device) < heights
    columns = torch.arange(canvas.width, device=device) < widths
    return rows[:, :, None] & columns[:, None, :]
