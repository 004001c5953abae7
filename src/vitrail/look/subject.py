"""What is looked at: a photograph as a model sees it, and as people want to see it.

Shapes: C channels, H×W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.decode import Pixels
from vitrail.look.draw.overlay import Photo
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.remainder import fit_pixels
from vitrail.nn.vit import ViT

__all__ = ["Subject", "subject_of"]

SHOWN = 1024
"""Pixels of the longer side of a photograph on the page."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and an image for it, with the same view as a photograph."""

    model: ViT | PyramidViT | MobileViT
    image: Tensor
    """(1, C, H, W), normalised."""
    pixels: Pixels
    """(H, W, 3): the same before it was normalised, remainder dealt with: what the patches are cut from."""
    photo: Photo
    words: str
    """Which model, with which weights, on what image: for the line under a title."""


def subject_of(
    model: ViT | PyramidViT | MobileViT, pixels: Pixels, preprocessing: Preprocessing, *, words: str
) -> Subject:
    """Cut and resize uint8 (H, W, 1 or 3) to the size that `preprocessing` names, and normalise.

    A photograph of another shape gives its middle, as large as it goes; only a model that was trained on squashed
    images gets the whole, squashed.
    """
    channels, size = model.config.channels, preprocessing.image
    require(
        len(preprocessing.mean) == channels == pixels.shape[2],
        f"the model takes {channels} channels, the image has {pixels.shape[2]} and its mean {len(preprocessing.mean)}; "
        "give one of each per channel",
    )
    view = pixels if preprocessing.resize == "squash" else _middle(pixels, size)
    seen = _resized(view, size, preprocessing.interpolation)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    image = ((torch.from_numpy(seen).permute(2, 0, 1) / 255 - mean) / std)[None]
    scale = min(1.0, SHOWN / max(view.shape[:2]))
    shown = _resized(view, Size(*(max(1, round(side * scale)) for side in view.shape[:2])), "lanczos")
    if isinstance(model.config, ViTConfig) and (to := model.config.fit(size)).fitted != size:
        fitted = fit_pixels(torch.from_numpy(seen).permute(2, 0, 1)[None].float(), to)[0]
        shown = seen = fitted.clamp(0, 255).byte().permute(1, 2, 0).numpy()
        size = to.fitted
    if channels == 1:
        shown, seen = np.repeat(shown, 3, axis=2), np.repeat(seen, 3, axis=2)
    image = image.to(next(model.parameters()))
    return Subject(model=model, image=image, pixels=seen, photo=Photo(pixels=shown, seen=size), words=words)


def _middle(pixels: Pixels, size: Size) -> Pixels:
    height, width = pixels.shape[:2]
    scale = min(height / size.height, width / size.width)
    rows, columns = max(1, round(size.height * scale)), max(1, round(size.width * scale))
    top, left = (height - rows) // 2, (width - columns) // 2
    return pixels[top : top + rows, left : left + columns]


def _resized(pixels: Pixels, size: Size, interpolation: str) -> Pixels:
    if pixels.shape[:2] == tuple(size):
        return np.ascontiguousarray(pixels)
    method = Image.Resampling[interpolation.upper()]
    flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    resized = Image.fromarray(np.ascontiguousarray(flat)).resize((size.width, size.height), method)
    return np.array(resized).reshape(*size, pixels.shape[2])
