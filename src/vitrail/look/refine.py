"""Carry values of a token grid to the pixels of a photograph, along its edges, without training.

A fast guided filter (He and Sun, arXiv 1505.00996): near every token, values are a linear function of the photograph's
colours, fitted at the resolution of the grid; the coefficients are interpolated and applied to every pixel. Where the
colours say nothing, the result is bilinear interpolation of a local mean.

Shapes: C channels of values, h×w tokens, H×W pixels.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size
from vitrail.images.decode import Pixels
from vitrail.look.cells import Cells

__all__ = ["at_pixels", "guided"]

RADIUS = 1
"""Tokens to each side of a fit: 3 × 3."""
SMOOTH = 1e-3
"""The variance of a colour, of 0 … 1, below which it is taken for noise."""


@torch.no_grad()
def at_pixels(values: Tensor, cells: Cells, size: Size, mode: Literal["bilinear", "nearest"] = "bilinear") -> Tensor:
    """(C, h, w) → (C, H, W): interpolation between the middles of cells, or the value of the nearest cell."""
    axes = [
        ((torch.arange(pixels) + 0.5) - corner) / (step * count) * 2 - 1
        for pixels, corner, step, count in zip(size, (cells.top, cells.left), cells.step, cells.grid, strict=True)
    ]
    rows, columns = torch.meshgrid(*axes, indexing="ij")
    places = torch.stack([columns, rows], dim=-1)[None].to(values)
    return F.grid_sample(values[None], places, mode=mode, padding_mode="border", align_corners=False)[0]


@torch.no_grad()
def guided(values: Tensor, cells: Cells, pixels: Pixels, radius: int = RADIUS, smooth: float = SMOOTH) -> Tensor:
    """(C, h, w) → (C, H, W): values that follow the edges of the photograph (H, W, 3)."""
    size = Size(*pixels.shape[:2])
    photo = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255  # (3, H, W)
    colours = _at_cells(photo, cells)  # (3, h, w)
    mean_colour, mean_value = _around(colours, radius), _around(values, radius)
    spread = _around(colours[:, None] * colours, radius) - mean_colour[:, None] * mean_colour  # (3, 3, h, w)
    shared = _around(values[:, None] * colours, radius) - mean_value[:, None] * mean_colour  # (C, 3, h, w)
    noise = smooth * torch.eye(3)[:, :, None, None]
    # in float64: grey photographs have three equal colours, and the matrix is singular but for the noise
    inverse = torch.linalg.inv((spread + noise).permute(2, 3, 0, 1).double()).float()  # (h, w, 3, 3)
    slopes = torch.einsum("cihw,hwij->cjhw", shared, inverse)  # (C, 3, h, w)
    offsets = mean_value - (slopes * mean_colour).sum(dim=1)
    slopes, offsets = _around(slopes, radius), _around(offsets, radius)
    result = at_pixels(offsets, cells, size)
    for channel in range(3):
        result += at_pixels(slopes[:, channel], cells, size) * photo[channel]
    return result


def _at_cells(photo: Tensor, cells: Cells) -> Tensor:
    """(3, H, W) → (3, h, w): the mean colour of every cell."""
    top, left = round(cells.top), round(cells.left)
    down, across = (round(side) for side in cells.step)
    part = photo[:, top : top + down * cells.grid.height, left : left + across * cells.grid.width]
    return F.avg_pool2d(part[None], (down, across))[0]


def _around(values: Tensor, radius: int) -> Tensor:
    """Average (…, h, w) over neighbouring tokens; at an edge, over those that there are."""
    flat = values.flatten(0, -3)[None] if values.ndim > 2 else values[None, None]
    return F.avg_pool2d(flat, 2 * radius + 1, 1, radius, count_include_pad=False)[0].view(values.shape)
