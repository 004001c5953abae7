"""Resample a position table to another grid, by the conventions of the libraries that models come from.

Results differ by several per cent between conventions, so each has a name, and a model keeps its own.

Shapes: D width, r×c grid, h heads; a grid has (2r − 1)·(2c − 1) offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size
from vitrail.parts import Convention, RelativeConvention

__all__ = ["resample_grid", "resample_offsets", "resample_steps"]


def resample_grid(table: Tensor, *, old: Size, new: Size, convention: Convention = "timm") -> Tensor:
    """(old.area, D) → (new.area, D), computed in float32 or wider and returned in the table's dtype. If the grid is
    the same, the table is returned unchanged.

    timm: bicubic, antialiased. huggingface: bicubic. dinov2: bicubic by scale factors, with 0.1 added to the new
    sides. torchvision: bicubic, align_corners. big_vision: bilinear, align_corners, in float64. siglip2: bilinear,
    antialiased.
    """
    if old == new:
        return table
    image, size = _as_image(table, old), tuple(new)
    if convention == "timm":
        image = F.interpolate(image, size=size, mode="bicubic", antialias=True, align_corners=False)
    elif convention == "huggingface":
        image = F.interpolate(image, size=size, mode="bicubic", align_corners=False)
    elif convention == "dinov2":
        scale = ((new.height + 0.1) / old.height, (new.width + 0.1) / old.width)
        image = F.interpolate(image, scale_factor=scale, mode="bicubic", align_corners=False)
    elif convention == "torchvision":
        image = F.interpolate(image, size=size, mode="bicubic", align_corners=True)
    elif convention == "siglip2":
        image = F.interpolate(image, size=size, mode="bilinear", antialias=True, align_corners=False)
    else:
        return _zoom(table, old, new)
    return image.flatten(2)[0].T.to(table.dtype)


def resample_steps(table: Tensor, steps: int, resample: Callable[[Tensor], Tensor]) -> Tensor:
    """Resample the grid of every step alike: (steps · old.area, D) → (steps · new.area, D).

    `resample` takes a table of one grid, whose width is here that of all steps.
    """
    grids = table.unflatten(0, (steps, -1)).transpose(0, 1).flatten(1)  # (h·w, s·D)
    return resample(grids).unflatten(1, (steps, -1)).transpose(0, 1).flatten(0, 1)


def resample_offsets(table: Tensor, *, old: Size, new: Size, convention: RelativeConvention) -> Tensor:
    """Resample a relative bias, (old.area, h) → (new.area, h), computed in float32 or wider and returned in its dtype.
    If the sizes are equal, the table is returned unchanged. `old` and `new` count offsets: 2r − 1 and 2c − 1.

    timm: linear between geometrically spaced offsets. huggingface: bilinear.
    """
    if old == new:
        return table
    if convention == "huggingface":
        image = F.interpolate(_as_image(table, old), size=tuple(new), mode="bilinear", align_corners=False)
        return image.flatten(2)[0].T.to(table.dtype)
    precise = torch.promote_types(table.dtype, torch.float32)
    image = table.to(precise).view(*old, -1)  # (2r − 1, 2c − 1, h)
    rows, columns = (_between_knots(*sides, image) for sides in zip(old, new, strict=True))
    total = sum(
        image[row][:, column] * (row_weight[:, None] * column_weight)[:, :, None]
        for row, row_weight in rows.neighbours
        for column, column_weight in columns.neighbours
    )
    resampled = total / (rows.span[:, None] * columns.span)[:, :, None]
    return resampled.flatten(0, 1).to(table.dtype)


def _as_image(table: Tensor, grid: Size) -> Tensor:
    """(grid.area, D) → (1, D, height, width), in float32 or wider."""
    return table.to(torch.promote_types(table.dtype, torch.float32)).T.reshape(1, -1, *grid)


class _Neighbours(NamedTuple):
    """The two old offsets that each new one is interpolated from, with their weights, whose sum is `span`."""

    neighbours: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    span: Tensor


def _between_knots(old: int, new: int, like: Tensor) -> _Neighbours:
    """Interpolate as timm does, to the bit. Old offsets are placed at 0, ±1, ±(1 + q), ±(1 + q + q²) …, where q puts
    the farthest old offset at the farthest new one and is found by bisection between 1.01 and 1.5."""
    far, low, high, ratio = old // 2, 1.01, 1.5, 1.255
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (1 - ratio**far) / (1 - ratio) > new // 2:
            high = ratio
        else:
            low = ratio
    steps, place = [], 1.0
    for index in range(far):
        steps.append(place)
        place += ratio ** (index + 1)
    knots = like.new_tensor([*(-step for step in reversed(steps)), 0.0, *steps])
    wanted = torch.arange(-(new // 2), new // 2 + 1, dtype=like.dtype, device=like.device)
    right = torch.bucketize(wanted, knots).clamp(max=old - 1)
    left = (right - 1).clamp(min=0)
    to_left, to_right = (wanted - knots[left]).clamp(min=0), (knots[right] - wanted).clamp(min=0)
    alone = (to_left == 0) & (to_right == 0)
    to_left, to_right = to_left.where(~alone, 1.0), to_right.where(~alone, 1.0)
    return _Neighbours(((left, to_right), (right, to_left)), to_left + to_right)


def _zoom(table: Tensor, old: Size, new: Size) -> Tensor:
    """Interpolate as scipy's linear zoom does, to the bit: four neighbours, summed in float64 in the same order."""
    image = table.double().view(*old, -1)
    axes = []
    for before, after in zip(old, new, strict=True):
        place = torch.arange(after, device=table.device, dtype=torch.float64) * ((before - 1) / max(after - 1, 1))
        first = place.floor()
        near, index = 1 - (place - first), first.long()
        axes.append(((index, near), ((index + 1).clamp(max=before - 1), 1 - near)))
    total = image.new_zeros(*new, image.shape[-1])
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            total = total + image[row][:, column] * row_weight[:, None, None] * column_weight[:, None]
    return total.flatten(0, 1).to(table.dtype)
