"""How far a model's vectors move when it is adapted, measured on images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.errors import require
from vitrail.images.decode import ImageError, Pixels, decode

__all__ = ["Drift", "ImageDrift", "measure_drift", "prepared"]


@dataclass(frozen=True, kw_only=True)
class ImageDrift:
    """One image: the cosine of its vector before with the one after."""

    image: str
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Cosines of pooled vectors, old model with new, each at its own image size; every image is resized whole.

    Where one of the two has a distillation token, and so a second vector, the first vectors are compared.
    """

    images: tuple[ImageDrift, ...]
    mean: float
    lowest: float
    failed: tuple[str, ...] = ()
    """Files that gave no picture, each with its reason."""


def measure_drift(before: Checkpoint, after: Checkpoint, images: Sequence[Path]) -> Drift:
    """Run both models on the same images. The whole picture is resized to each model's size, so both see the same."""
    require(len(images) > 0, "there are no images to measure on; give a folder that holds some")
    models = [(_vectors_of(checkpoint), checkpoint) for checkpoint in (before, after)]
    found, failed = [], []
    for path in images:
        try:
            old, new = (vector(prepared(_pixels(path, checkpoint), checkpoint)) for vector, checkpoint in models)
        except ImageError as error:
            failed.append(str(error))
            continue
        size = min(len(old), len(new))
        found.append(ImageDrift(image=path.name, cosine=F.cosine_similarity(old[:size], new[:size], dim=0).item()))
    require(len(found) > 0, f"none of {len(images)} images could be read; the first: {''.join(failed[:1])}")
    cosines = [each.cosine for each in found]
    return Drift(images=tuple(found), mean=sum(cosines) / len(cosines), lowest=min(cosines), failed=tuple(failed))


def _vectors_of(checkpoint: Checkpoint):
    model = checkpoint.model(dtype=torch.float32)

    @torch.inference_mode()
    def vector(pixels: Tensor) -> Tensor:
        return model.vector(pixels).flatten().double()

    return vector


def _pixels(path: Path, checkpoint: Checkpoint) -> Pixels:
    channels = checkpoint.config.channels
    require(
        channels in (1, 3),
        f"{channels} channels cannot be decoded from pictures; measure drift on a model of 1 or 3",
    )
    return decode(path, channels=channels)  # type: ignore[arg-type]


def prepared(pixels: Pixels, checkpoint: Checkpoint) -> Tensor:
    """uint8 (H, W, C) → (1, C, H, W), resized whole to the config's image and normalised."""
    preprocessing = checkpoint.preprocessing
    image = torch.tensor(pixels).permute(2, 0, 1)[None].float() / 255
    image = F.interpolate(image, size=tuple(checkpoint.config.image), mode="bicubic", antialias=True).clamp(0, 1)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    return (image - mean) / std
