"""A table on one grid → the table on another, by the conventions that models were trained with.

The conventions differ by several per cent, so each is named, and a model keeps the one it came with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size
from vitrail.parts import Convention

__all__ = ["resample_grid"]


def resample_grid(table: Tensor, *, old: Size, new: Size, convention: Convention = "timm") -> Tensor:
    """(old.area, D) → (new.area, D), in float32 at least, given back in the table's own type; the same grid is
    returned as it is.

    timm: bicubic, antialiased. huggingface: bicubic. dinov2: bicubic by scale factors with 0.1 added to the
    new side. torchvision: bicubic with the corners aligned. big_vision: linear with the corners aligned, in float64.
    """
    if old == new:
        return table
    precise = torch.promote_types(table.dtype, torch.float32)
    image = table.to(precise).T.reshape(1, -1, *old)  # (1, D, h, w)
    if convention == "timm":
        image = F.interpolate(image, size=tuple(new), mode="bicubic", antialias=True, align_corners=False)
    elif convention == "huggingface":
        image = F.interpolate(image, size=tuple(new), mode="bicubic", align_corners=False)
    elif convention == "dinov2":
        scale = ((new.height + 0.1) / old.height, (new.width + 0.1) / old.width)
        image = F.interpolate(image, scale_factor=scale, mode="bicubic", align_corners=False)
    elif convention == "torchvision":
        image = F.interpolate(image, size=tuple(new), mode="bicubic", align_corners=True)
    else:
        return _zoom(table, old, new)
    return image.flatten(2)[0].T.to(table.dtype)


def _zoom(table: Tensor, old: Size, new: Size) -> Tensor:
    """scipy's linear zoom, to the bit: four neighbours, weighted and added up in float64 in its order."""
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
