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
    new side. torchvision: bicubic with the corners aligned. big_vision: linear with the corners aligned.
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
        image = F.interpolate(image, size=tuple(new), mode="bilinear", align_corners=True)
    return image.flatten(2)[0].T.to(table.dtype)
