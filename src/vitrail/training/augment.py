"""Augment uint8 batches: every image by its own random numbers, independent of the rest of the batch.

RandAugment (arXiv 1909.13719) without PIL or torchvision: geometry is one matrix per image, colour a few array
operations. `draws` has a row of 0 ≤ u < 1 per image.

Shapes: B images, C channels, H×W pixels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size

__all__ = ["DRAWS", "OPERATIONS", "crop_box", "flip_and_shift", "rand_augment"]

CROP_DRAWS, MOVE_DRAWS, OPERATION_DRAWS, MOST_OPERATIONS = 4, 3, 2, 8
DRAWS = CROP_DRAWS + MOVE_DRAWS + OPERATION_DRAWS * MOST_OPERATIONS
FILL = 128
"""Value of pixels from outside the image."""


# ── a random part of an image of any size ──────────────────────────────────────────────────────────


def crop_box(size: Size, smallest: float, draws: np.ndarray) -> tuple[int, int, int, int]:
    """Draw a crop (top, left, height, width): its area from `smallest` to 1, its aspect ratio from 3:4 to 4:3."""
    area = size.area * (smallest + (1 - smallest) * draws[0])
    shape = math.exp((2 * draws[1] - 1) * math.log(4 / 3))
    height = min(size.height, max(1, round(math.sqrt(area / shape))))
    width = min(size.width, max(1, round(math.sqrt(area * shape))))
    return (
        int(draws[2] * (size.height - height + 1)),
        int(draws[3] * (size.width - width + 1)),
        height,
        width,
    )


# ── whole batches of one size ───────────────────────────────────────────────────────────────────────────────────


def flip_and_shift(images: Tensor, *, flip: bool, shift: int, draws: Tensor) -> Tensor:
    """Flip half of the images; shift each by up to `shift` pixels, with edge pixels replicated."""
    if flip:
        images = torch.where((draws[:, 0] < 0.5)[:, None, None, None], images.flip(3), images)
    if not shift:
        return images
    height, width = images.shape[2:]
    down, right = ((draws[:, 1:3] * (2 * shift + 1)).long() - shift).unbind(1)
    rows = (down[:, None] + torch.arange(height)).clamp(0, height - 1)  # (B, H)
    columns = (right[:, None] + torch.arange(width)).clamp(0, width - 1)  # (B, W)
    batch = torch.arange(len(images))[:, None, None]
    return images.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def rand_augment(images: Tensor, *, operations: int, magnitude: float, draws: Tensor) -> Tensor:
    """Apply `operations` random operations to each image, with random sign and strength `magnitude`."""
    names = list(OPERATIONS)
    for turn in range(operations):
        choice, sign = draws[:, OPERATION_DRAWS * turn : OPERATION_DRAWS * (turn + 1)].unbind(1)
        kinds = (choice * len(names)).long()
        strength = torch.where(sign < 0.5, -magnitude, magnitude).float()
        images = images.clone()
        for kind in kinds.unique().tolist():
            chosen = (kinds == kind).nonzero()[:, 0]
            images[chosen] = OPERATIONS[names[kind]](images[chosen], strength[chosen])
    return images


# ── operations: (B, C, H, W) uint8 and strengths −1 … 1, (B,) → uint8 ────────────────────────────────────────────


def _identity(images: Tensor, strength: Tensor) -> Tensor:
    return images


def _warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Sample at matrix · (x, y, 1), in units of half the image."""
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    moved = F.grid_sample(images.float() - FILL, grid, mode="bilinear", align_corners=False) + FILL
    return _bytes(moved)


def _affine(strength: Tensor, *, xx: Tensor | float = 1, xy: Tensor | float = 0, x: Tensor | float = 0,
            yx: Tensor | float = 0, yy: Tensor | float = 1, y: Tensor | float = 0) -> Tensor:  # fmt: skip
    entries = [torch.as_tensor(entry, dtype=torch.float32).expand(len(strength)) for entry in (xx, xy, x, yx, yy, y)]
    return torch.stack(entries, dim=1).view(-1, 2, 3)


def _rotate(images: Tensor, strength: Tensor) -> Tensor:
    angle = strength * math.radians(30)
    aspect = images.shape[3] / images.shape[2]
    cos, sin = angle.cos(), angle.sin()
    return _warp(images, _affine(strength, xx=cos, xy=-sin / aspect, yx=sin * aspect, yy=cos))


def _shear_x(images: Tensor, strength: Tensor) -> Tensor:
    return _warp(images, _affine(strength, xy=0.3 * strength * images.shape[2] / images.shape[3]))


def _shear_y(images: Tensor, strength: Tensor) -> Tensor:
    return _warp(images, _affine(strength, yx=0.3 * strength * images.shape[3] / images.shape[2]))


def _translate_x(images: Tensor, strength: Tensor) -> Tensor:
    return _warp(images, _affine(strength, x=0.9 * strength))


def _translate_y(images: Tensor, strength: Tensor) -> Tensor:
    return _warp(images, _affine(strength, y=0.9 * strength))


def _blend(base: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """Blend away from or towards `base`, by at most 0.9."""
    return _bytes(base + (images.float() - base) * (1 + 0.9 * strength)[:, None, None, None])


def _brightness(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(torch.zeros(()), images, strength)


def _contrast(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(_grey(images).mean(dim=(2, 3), keepdim=True), images, strength)


def _colour(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(_grey(images), images, strength)


def _sharpness(images: Tensor, strength: Tensor) -> Tensor:
    channels = images.shape[1]
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).expand(channels, 1, 3, 3)
    smooth = F.conv2d(F.pad(images.float(), (1, 1, 1, 1), mode="replicate"), kernel, groups=channels)
    return _blend(smooth, images, strength)


def _solarize(images: Tensor, strength: Tensor) -> Tensor:
    threshold = (256 * (1 - strength.abs()))[:, None, None, None]
    return torch.where(images >= threshold, 255 - images, images)


def _posterize(images: Tensor, strength: Tensor) -> Tensor:
    dropped = (4 * strength.abs()).round().to(torch.uint8)[:, None, None, None]
    return (images >> dropped) << dropped


def _autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    low, high = (f(images.float(), dim=(2, 3), keepdim=True) for f in (torch.amin, torch.amax))
    return torch.where(high > low, _bytes((images - low) * 255 / (high - low).clamp(min=1)), images)


def _equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Equalise the histogram of every channel."""
    flat = images.flatten(2).flatten(0, 1).long()  # (B·C, H·W)
    counts = torch.zeros(len(flat), 256, dtype=torch.long).scatter_add_(1, flat, torch.ones_like(flat))
    reached = counts.cumsum(1)
    first = counts.gather(1, flat.amin(dim=1, keepdim=True))  # pixels of the darkest value, which stays black
    span = (flat.shape[1] - first).clamp(min=1)
    table = ((reached - first).clamp(min=0) * 255 + span // 2) // span
    return table.gather(1, flat).to(torch.uint8).view_as(images)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images.float()
    return (images.float() * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=1, keepdim=True)


def _bytes(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)


OPERATIONS = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "solarize": _solarize,
    "colour": _colour,
    "posterize": _posterize,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
