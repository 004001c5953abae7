"""An image to look at: the model's input, and the same part of the photograph at display resolution.

Shapes: C channels, H×W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.charts.notebook import Brief
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
"""Pixels of the longer side of a displayed photograph."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Subject(Brief):
    """A model, its input image, and a photograph of the same part for display."""

    model: ViT | PyramidViT | MobileViT
    image: Tensor
    """(1, C, H, W), normalised."""
    pixels: Pixels
    """(H, W, 3): the image before normalisation, fitted to whole patches."""
    photo: Photo
    words: str
    """Names the model, its weights and the image, for a subtitle."""


def subject_of(
    model: ViT | PyramidViT | MobileViT, pixels: Pixels, preprocessing: Preprocessing, *, words: str
) -> Subject:
    """Preprocess uint8 (H, W, 1 or 3) for the model, and crop the same part of the photograph for display."""
    model.config.require_still("looking")
    size = preprocessing.image
    require(
        preprocessing.channels == model.config.channels,
        f"the model takes {model.config.channels} channels, and its mean has {preprocessing.channels}; "
        "give one per channel",
    )
    seen = preprocessing.pixels(pixels, exact=True).pixels
    image = preprocessing.normalise(torch.from_numpy(seen).permute(2, 0, 1)[None])
    top, left, height, width = preprocessing.part_of(Size(*pixels.shape[:2]))
    scale = min(1.0, SHOWN / max(height, width))
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    box = (left, top, min(left + width, picture.width), min(top + height, picture.height))
    larger = max(1, round(width * scale)), max(1, round(height * scale))
    picture = picture.convert("L" if seen.shape[2] == 1 else "RGB").resize(larger, Image.Resampling.LANCZOS, box=box)
    shown = np.array(picture.convert("RGB"))
    if isinstance(model.config, ViTConfig) and (to := model.config.fit(size)).fitted != size:
        fitted = fit_pixels(torch.from_numpy(seen).permute(2, 0, 1)[None].float(), to)[0]
        shown = seen = fitted.clamp(0, 255).byte().permute(1, 2, 0).numpy()
        size = to.fitted
    if seen.shape[2] == 1:
        shown, seen = (np.repeat(each, 3, axis=2) if each.shape[2] == 1 else each for each in (shown, seen))
    image = image.to(next(model.parameters()))
    return Subject(model=model, image=image, pixels=seen, photo=Photo(pixels=shown, seen=size), words=words)
