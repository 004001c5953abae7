"""Multi-scale inference: the mean of an image's unit vectors at several sizes.

An image is prepared once, at the largest size; the smaller ones are resized from it, on bytes.

Shapes: B images, H×W pixels, C channels, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.vectors.engines.engine import Engine, Features

__all__ = ["MultiScaleEngine", "prepared_for", "scaled_sizes"]


def scaled_sizes(image: Size, patch: Size, scales: Sequence[float]) -> tuple[Size, ...]:
    """Return the image size times each scale, each side rounded to whole patches, at least one.

    >>> scaled_sizes(Size(224, 224), Size(16, 16), (1, 1.5))
    (Size(height=224, width=224), Size(height=336, width=336))
    """
    require(
        len(scales) > 0 and all(0 < scale <= 8 for scale in scales),
        f"scales {tuple(scales)} are not all between 0 and 8; give factors of the model's image, like 1,1.5",
    )
    pairs = zip(image, patch, strict=True)
    sides = [(side, unit) for side, unit in pairs]
    return tuple(Size(*(unit * max(1, round(side * scale / unit)) for side, unit in sides)) for scale in scales)


def prepared_for(preprocessing: Preprocessing, patch: Size, scales: Sequence[float]) -> Preprocessing:
    """Return the preprocessing for a MultiScaleEngine, which takes images at the largest size."""
    return replace(preprocessing, image=max(scaled_sizes(preprocessing.image, patch, scales)))


class MultiScaleEngine:
    """An engine that averages over several sizes of every image, given at the largest."""

    def __init__(self, engine: Engine, sizes: Sequence[Size]) -> None:
        self.engine, self.sizes = engine, tuple(sizes)
        self.name, self.width = engine.name, engine.width

    @torch.inference_mode()
    def vectors(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, C) at the largest size → float32 (B, D), the mean of the unit vectors over all sizes."""
        return _mean(self.engine.vectors(resized(images, size)) for size in self.sizes)

    @torch.inference_mode()
    def features(self, images: Tensor) -> Features:
        """Return the averaged vectors, with the tokens of the largest size."""
        largest = self.engine.features(images)
        others = {size: self.engine.vectors(resized(images, size)) for size in {*self.sizes} - {max(self.sizes)}}
        return largest._replace(vectors=_mean(others.get(size, largest.vectors) for size in self.sizes))


def _mean(vectors: Iterable[Tensor]) -> Tensor:
    return torch.stack([F.normalize(each, dim=1) for each in vectors]).mean(dim=0)


def resized(images: Tensor, size: Size) -> Tensor:
    """Resize uint8 (B, H, W, C), antialiased."""
    if images.shape[1:3] == tuple(size):
        return images
    channels_first = images.permute(0, 3, 1, 2)
    smaller = F.interpolate(channels_first, size=tuple(size), mode="bicubic", antialias=True)
    return smaller.permute(0, 2, 3, 1).contiguous()
