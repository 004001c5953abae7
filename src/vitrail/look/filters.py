"""The projection's filters, and the few that the rest are made of: what a model looks for in a patch.

Shapes: D filters of C channels and P×Q pixels, k principal ones; B images of H×W pixels, h×w places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.mobile import MobileViT
from vitrail.nn.patches import BytePatchEmbed, ConvStem, PatchEmbed
from vitrail.nn.pyramid import PyramidEmbed
from vitrail.nn.remainder import fit_pixels

__all__ = ["Filters", "Projection", "filter_responses", "projection_filters", "projection_of"]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What meets the pixels first, as a convolution."""

    weight: Tensor
    """(D, C, P, Q)."""
    bias: Tensor | None
    stride: Size
    padding: int
    stage: str
    """Which convolution or projection this is."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """A projection as pictures. Every filter is a sum of the principal ones; the first few carry most of it."""

    filters: Tensor
    """(D, C, P, Q): the weights themselves."""
    principal: Tensor
    """(k, C, P, Q): the right singular vectors, of norm 1, strongest first; the largest value is positive."""
    shares: Tensor
    """(k,): of the weights' squared norm, what each principal filter carries."""
    stage: str
    """Which convolution or projection these are."""

    @property
    def effective_rank(self) -> float:
        """How many filters of equal strength would spread as widely: exp of the shares' entropy."""
        return float(torch.exp(-torch.special.xlogy(self.shares, self.shares).sum()))


@torch.no_grad()
def projection_filters(model: nn.Module, *, level: int = 0) -> Filters:
    """The filters that meet the pixels: of a stem the first convolution, of adaptive patches those of size `level`."""
    found = projection_of(model, level=level)
    weight = found.weight.detach().to(torch.promote_types(found.weight.dtype, torch.float32))
    _, strength, vectors = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    energy = strength.square()
    return Filters(
        filters=weight,
        principal=(vectors * largest.sign()).view(-1, *weight.shape[1:]),
        shares=energy / energy.sum(),
        stage=found.stage,
    )


@torch.no_grad()
def filter_responses(model: nn.Module, image: Tensor, weight: Tensor | None = None, *, level: int = 0) -> Tensor:
    """(B, C, H, W) → (B, D, h, w): what every filter answers at every place, as the model computes it.

    With `weight`, (k, C, P, Q), the answers of other filters at the same places: the principal ones, say.
    """
    found, config = projection_of(model, level=level), getattr(model, "config", None)
    if isinstance(config, ViTConfig):
        image = fit_pixels(image, config.fit(Size(*image.shape[2:])))
    bias = found.bias if weight is None else None
    return F.conv2d(image, found.weight if weight is None else weight, bias, tuple(found.stride), found.padding)


def projection_of(model: nn.Module, *, level: int = 0) -> Projection:
    """A model's first convolution: of a stem the first of several, of adaptive patches that of size `level`."""
    embedding = model.stem if isinstance(model, MobileViT) else getattr(model, "embedding", model)
    match embedding:
        case PatchEmbed():
            return _patches(embedding, "patch projection")
        case BytePatchEmbed():
            weight = embedding.weight.unflatten(1, (*embedding.patch, -1)).permute(0, 3, 1, 2)  # (D, C, P, Q)
            stage = "patch projection of bytes"
            return Projection(weight=weight, bias=embedding.bias, stride=embedding.patch, padding=0, stage=stage)
        case PyramidEmbed():
            return _patches(embedding.finest, "finest patch projection")
        case AdaptiveEmbed():
            sizes = len(embedding.projections)
            require(0 <= level < sizes, f"level {level} is not among {sizes} patch sizes; use 0 to {sizes - 1}")
            projection = embedding.projections[level]
            assert isinstance(projection, PatchEmbed)
            return _patches(projection, f"projection of {projection.patch} patches")
        case ConvStem():
            return _halving(embedding.layers[0].conv)  # type: ignore[arg-type]
    if isinstance(model, MobileViT):
        return _halving(model.stem.conv)
    raise VitrailError(f"{type(model).__name__} has no projection of pixels; give a model, or its embedding")


def _patches(embed: PatchEmbed, stage: str) -> Projection:
    return Projection(weight=embed.weight, bias=embed.bias, stride=embed.stride or embed.patch, padding=0, stage=stage)


def _halving(conv: nn.Conv2d) -> Projection:
    stage = "first convolution of the stem"
    return Projection(weight=conv.weight, bias=conv.bias, stride=Size(2, 2), padding=1, stage=stage)
