"""Distil features without labels: a model's patch tokens and pooled vector are compared with a teacher's.

Tokens are compared one by one if both grids are the same; otherwise both are averaged over the cells of the coarser
grid, axis by axis. Patches of several sizes stand on every cell that they cover.

Shapes: B images, C channels, H×W pixels, D width, h×w grid, V width of the vector.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.nn.adaptive import to_dense
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["FeatureObjective", "Features", "Model", "common_grid", "features_of"]

Model = ViT | PyramidViT | MobileViT


class Features(NamedTuple):
    """What is compared of a batch."""

    patches: Tensor
    """(B, D, h, w)"""
    vector: Tensor
    """(B, V); the mean of both vectors of a distilled model."""


def features_of(model: ViT, images: Tensor) -> Features:
    """(B, C, H, W) → the model's output tokens on their grid, and its pooled vector."""
    tokens, layout = model.features(images)
    vector = model.pooled(tokens, layout)
    return Features(
        to_dense(tokens[:, layout.prefix :], layout).float(), (vector.mean(1) if vector.ndim == 3 else vector).float()
    )


def common_grid(one: Features, other: Features) -> tuple[Features, Features]:
    """Average the patches of both over the cells of the coarser grid, axis by axis; equal grids are left alone."""
    grid = Size(*(min(sides) for sides in zip(one.patches.shape[2:], other.patches.shape[2:], strict=True)))
    first, second = (
        each
        if tuple(each.patches.shape[2:]) == tuple(grid)
        else each._replace(patches=F.interpolate(each.patches, size=tuple(grid), mode="area"))
        for each in (one, other)
    )
    return first, second


class FeatureObjective(nn.Module):
    """A ViT and its distance from a teacher's features; only `model` is saved."""

    def __init__(self, model: Model, teacher: Model) -> None:
        super().__init__()
        for each in (model, teacher):
            require(
                isinstance(each, ViT),
                f"{type(each).__name__} has no patch tokens on one grid; distil features instead of patches",
            )
        self.model = model
        self._teacher = (teacher,)  # in a tuple, so that it is not a submodule

    def forward(self, images: Tensor, views: Tensor, patch: Size | None = None) -> tuple[Tensor, Tensor]:
        """The images as the model takes them, and as the teacher does → the mean loss, and the vectors' cosine.

        The loss is half the squared distance, relative to the teacher's squared norm, of patches and of vectors:
        1 − cosine where the norms are equal.
        """
        require(patch is None, f"patch {patch} cannot be drawn while patches are distilled; leave patches out")
        (teacher,) = self._teacher
        with torch.no_grad():
            taught = features_of(teacher, views)  # type: ignore[arg-type]
        own, taught = common_grid(features_of(self.model, images), taught)  # type: ignore[arg-type]
        loss = _distance(own.patches, taught.patches)
        if own.vector.shape != taught.vector.shape:  # pooled to another width: there is nothing to compare
            return loss, loss.new_ones(())
        cosine = F.cosine_similarity(own.vector, taught.vector).mean().detach()
        return (loss + _distance(own.vector, taught.vector)) / 2, cosine

    def logits(self, images: Tensor) -> Tensor:
        """Return the model's logits through this module, whose hooks gather sharded weights."""
        return self.model(images)


def _distance(own: Tensor, taught: Tensor) -> Tensor:
    scale = taught.square().sum(1).clamp_min(torch.finfo(taught.dtype).tiny)
    return ((own - taught).square().sum(1) / (2 * scale)).mean()
