"""The filters of the patch projection, and their principal components: what a model looks for in a patch.

Shapes: D filters of C channels and P×Q pixels, k principal filters; B images of H×W pixels, h×w positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.charts.notebook import Brief
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.mobile import MobileViT
from vitrail.nn.patches import BytePatchEmbed, ConvStem, PatchEmbed
from vitrail.nn.pyramid import PyramidEmbed
from vitrail.nn.remainder import fit_pixels
from vitrail.nn.resnet_stem import ResNetEmbed

__all__ = ["Filters", "PixelProjection", "filter_responses", "projection_filters", "projection_of"]


@dataclass(frozen=True, kw_only=True)
class PixelProjection:
    """A model's first layer, as a convolution over pixels."""

    weight: Tensor
    """(D, C, P, Q)."""
    bias: Tensor | None
    stride: Size
    padding: tuple[int, int]
    """Zeros above and to the left, and below and to the right."""
    stage: str
    """Which convolution or projection this is."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Filters(Brief):
    """The filters of a projection. Every filter is a sum of principal ones, and the first few account for most.

    >>> from vitrail import load
    >>> from vitrail.look import projection_filters
    >>> model = load("default").model()
    >>> projection_filters(model)
    Filters(filters=<float32 96×3×4×4>, principal=<float32 48×3×4×4>, shares=<float32 48>, stage='patch projection')
    """

    filters: Tensor
    """(D, C, P, Q): the weights."""
    principal: Tensor
    """(k, C, P, Q): right singular vectors, strongest first; signs make the largest value positive."""
    shares: Tensor
    """(k,): each principal filter's share of the weights' squared norm."""
    stage: str
    """Which convolution or projection these are."""

    @property
    def effective_rank(self) -> float:
        """The exponential of the shares' entropy: the number of equally strong filters with the same entropy."""
        return float(torch.exp(-torch.special.xlogy(self.shares, self.shares).sum()))


@torch.no_grad()
def projection_filters(model: nn.Module, *, level: int = 0) -> Filters:
    """Return the filters of the first layer; for adaptive patches, those of patch size number `level`.

    >>> from vitrail import load
    >>> from vitrail.look import projection_filters
    >>> model = load("default").model()
    >>> projection_filters(model).filters.shape
    torch.Size([96, 3, 4, 4])
    """
    projection = projection_of(model, level=level)
    weight = projection.weight.detach().to(torch.promote_types(projection.weight.dtype, torch.float32))
    _, strength, vectors = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    energy = strength.square()
    return Filters(
        filters=weight,
        principal=(vectors * largest.sign()).view(-1, *weight.shape[1:]),
        shares=energy / energy.sum(),
        stage=projection.stage,
    )


@torch.no_grad()
def filter_responses(model: nn.Module, image: Tensor, weight: Tensor | None = None, *, level: int = 0) -> Tensor:
    """(B, C, H, W) → (B, D, h, w): the response of every filter at every position, as the model computes it.

    `weight`, (k, C, P, Q), replaces the model's filters, for example by the principal ones.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import filter_responses
    >>> model = load("default").model()
    >>> filter_responses(model, torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 96, 8, 8])
    """
    projection, config = projection_of(model, level=level), getattr(model, "config", None)
    if isinstance(config, ViTConfig):
        image = fit_pixels(image, config.fit(Size(*image.shape[2:])))
    bias = projection.bias if weight is None else None
    weight = projection.weight if weight is None else weight
    return F.conv2d(F.pad(image, projection.padding * 2), weight, bias, tuple(projection.stride))


def projection_of(model: nn.Module, *, level: int = 0) -> PixelProjection:
    """Return a model's first layer; for adaptive patches, the projection of patch size number `level`."""
    embedding = model.stem if isinstance(model, MobileViT) else getattr(model, "embedding", model)
    match embedding:
        case PatchEmbed():
            return _patches(embedding, "patch projection")
        case BytePatchEmbed():
            weight = embedding.weight.unflatten(1, (*embedding.patch, -1)).permute(0, 3, 1, 2)  # (D, C, P, Q)
            stage = "patch projection of bytes"
            return PixelProjection(
                weight=weight, bias=embedding.bias, stride=embedding.patch, padding=(0, 0), stage=stage
            )
        case PyramidEmbed():
            return _patches(embedding.finest, "finest patch projection")
        case AdaptiveEmbed():
            sizes = len(embedding.projections)
            require(0 <= level < sizes, f"level {level} is out of range for {sizes} patch sizes; use 0 to {sizes - 1}")
            projection = embedding.projections[level]
            assert isinstance(projection, PatchEmbed)
            return _patches(projection, f"projection of {projection.patch} patches")
        case ConvStem():
            return _convolution(embedding.layers[0].conv)  # type: ignore[arg-type]
        case ResNetEmbed():
            conv = embedding.stem.conv
            stride = Size(conv.stride, conv.stride)
            stage = "first convolution of the ResNet, standardised"
            weight = conv.standardised()
            return PixelProjection(weight=weight, bias=None, stride=stride, padding=conv.padding, stage=stage)
    if isinstance(model, MobileViT):
        return _convolution(model.stem.conv)
    raise VitrailError(f"{type(model).__name__} has no pixel projection; give a model, or its embedding")


def _patches(embed: PatchEmbed, stage: str) -> PixelProjection:
    stride = embed.stride or embed.patch
    return PixelProjection(weight=embed.weight, bias=embed.bias, stride=stride, padding=(0, 0), stage=stage)


def _convolution(conv: nn.Conv2d) -> PixelProjection:
    stage, around = "first convolution of the stem", int(conv.padding[0])
    stride = Size(*conv.stride)
    return PixelProjection(weight=conv.weight, bias=conv.bias, stride=stride, padding=(around, around), stage=stage)
