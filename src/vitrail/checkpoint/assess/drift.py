"""How far a model's vectors move when it is adapted, measured on images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.errors import require
from vitrail.images.decode import ImageError

__all__ = ["Drift", "ImageDrift", "Watch", "measure_drift"]

Watch = Callable[[int, int], None]
"""Told how many images are done, of how many."""


@dataclass(frozen=True, kw_only=True)
class ImageDrift:
    """The cosine between one image's vectors before and after."""

    image: str
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Cosines of pooled vectors, old model with new, each at its own image size; every image is resized whole, and
    repeated for a model of clips.

    Where one of the two has a distillation token, and so a second vector, the first vectors are compared.
    """

    images: tuple[ImageDrift, ...]
    mean: float
    lowest: float
    failed: tuple[str, ...] = ()
    """Files that could not be decoded, each with its error."""


def measure_drift(
    before: Checkpoint, after: Checkpoint, images: Sequence[Path], *, watch: Watch = lambda done, total: None
) -> Drift:
    """Run both models on the same images, each resized whole to the model's size, so that both see the same."""
    require(len(images) > 0, "there are no images to measure on; give a folder that holds some")
    models = [_vectors_of(checkpoint) for checkpoint in (before, after)]
    found, failed = [], []
    for done, path in enumerate(images):
        watch(done, len(images))
        try:
            old, new = (vector(path) for vector in models)
        except ImageError as error:
            failed.append(str(error))
            continue
        size = min(len(old), len(new))
        found.append(ImageDrift(image=path.name, cosine=F.cosine_similarity(old[:size], new[:size], dim=0).item()))
    require(len(found) > 0, f"none of {len(images)} images could be read; the first: {''.join(failed[:1])}")
    cosines = [each.cosine for each in found]
    return Drift(images=tuple(found), mean=sum(cosines) / len(cosines), lowest=min(cosines), failed=tuple(failed))


def _vectors_of(checkpoint: Checkpoint):
    model, steps = checkpoint.model(dtype=torch.float32), checkpoint.preprocessing.squashed(checkpoint.config.image)

    @torch.inference_mode()
    def vector(image: Path) -> Tensor:
        pixels, frames = steps(image), checkpoint.config.frames
        pixels = pixels if frames == 1 else pixels.expand(frames, -1, -1, -1)[None]  # a clip of equal frames
        return model.vector(pixels).flatten().double()

    return vector
