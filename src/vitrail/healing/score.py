"""How near a model's features are to the original's, on images that it was not healed with.

Shapes: B images, C channels, H×W pixels, D width, h×w grid, V width of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import resize, with_channels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.data.source import Source
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.decode import ImageError, Pixels
from vitrail.nn.vit import ViT
from vitrail.training.feature_loss import Model, common_grid, features_of

__all__ = ["Judge", "Score", "centre_view"]

AT_ONCE = 4
NEAREST = 5
"""Neighbours of an image that are compared."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Agreement with the original: cosines, and shared neighbours."""

    patches: float
    """Mean cosine of patch tokens."""
    vectors: float | None
    """Mean cosine of pooled vectors; None if they have another width."""
    lowest: float | None
    """Lowest cosine of a pooled vector."""
    neighbours: float | None
    """Share of the nearest images by vector that are the original's, too; None with too few images."""

    @property
    def error(self) -> float:
        """The mean of 1 − cosine over patches and vectors, which healing lowers; infinite if that is not a number."""
        values = [self.patches] if self.vectors is None else [self.patches, self.vectors]
        error = 1 - sum(values) / len(values)
        return error if math.isfinite(error) else math.inf


class Judge:
    """Images at both views, with the original's features of them."""

    def __init__(self, source: Source, own: Preprocessing, original: Checkpoint) -> None:
        model = original.model(dtype=torch.float32)
        assert isinstance(model, ViT)
        self.images, self.damaged = [], []
        taught = []
        for pixels in self._pixels(source):
            self.images.append(centre_view(pixels, own, own.image))
            taught.append(centre_view(pixels, original.preprocessing, own.image))
        require(
            len(self.images) >= 2,
            f"{len(self.images)} of {len(source)} images could be read, and 2 are needed; the first: "
            f"{''.join(self.damaged[:1])}",
        )
        self.own, self.original = own, original.preprocessing
        with torch.inference_mode():
            views = self.original.normalise(torch.stack(taught))
            self.taught = [features_of(model, part) for part in views.split(AT_ONCE)]

    def _pixels(self, source: Source) -> Iterator[Pixels]:
        for index in range(len(source)):
            try:
                yield source[index][0]
            except ImageError as error:
                self.damaged.append(str(error))

    @torch.inference_mode()
    def __call__(self, model: Model) -> Score:
        """Score a model, in evaluation mode."""
        assert isinstance(model, ViT)
        training = model.training
        model.eval()
        cosines, own, theirs = [], [], []
        images = self.own.normalise(torch.stack(self.images))
        for part, taught in zip(images.split(AT_ONCE), self.taught, strict=True):
            one, other = common_grid(features_of(model, part), taught)
            cosines.append(F.cosine_similarity(one.patches.double(), other.patches.double()).flatten(1).mean(1))
            own.append(one.vector)
            theirs.append(other.vector)
        model.train(training)
        return _score(torch.cat(cosines), torch.cat(own), torch.cat(theirs))


def _score(patches: Tensor, own: Tensor, theirs: Tensor) -> Score:
    if own.shape != theirs.shape:
        return Score(patches=patches.mean().item(), vectors=None, lowest=None, neighbours=None)
    vectors = F.cosine_similarity(own.double(), theirs.double())
    return Score(
        patches=patches.mean().item(),
        vectors=vectors.mean().item(),
        lowest=vectors.min().item(),
        neighbours=_shared(own, theirs) if len(own) > 2 * NEAREST else None,
    )


def _shared(own: Tensor, theirs: Tensor) -> float:
    """Return the mean share of an image's nearest images that are the same by both sets of vectors."""
    found = []
    for vectors in (own, theirs):
        unit = F.normalize(vectors.double(), dim=1)
        found.append((unit @ unit.T).fill_diagonal_(-2).topk(NEAREST, dim=1).indices)
    return (found[0][:, :, None] == found[1][:, None]).any(2).double().mean().item()


def centre_view(pixels: Pixels, steps: Preprocessing, shape: Size) -> Tensor:
    """Resize the largest part in the middle that has the aspect of `shape` to `steps.image`: uint8 (C, H, W)."""
    height, width = pixels.shape[:2]
    scale = min(height / shape.height, width / shape.width)
    part = Size(max(1, round(shape.height * scale)), max(1, round(shape.width * scale)))
    top, left = (height - part.height) // 2, (width - part.width) // 2
    cut = resize(pixels[top : top + part.height, left : left + part.width], steps.image)
    return torch.from_numpy(np.ascontiguousarray(with_channels(cut, steps.channels))).permute(2, 0, 1)
