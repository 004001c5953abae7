"""The projection's filters, and the few that the rest are made of: what a model looks for in a patch.

Shapes: D filters of C channels and P×Q pixels, k principal ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError, require
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.mobile import MobileViT
from vitrail.nn.patches import BytePatchEmbed, ConvStem, PatchEmbed
from vitrail.nn.pyramid import PyramidEmbed

__all__ = ["Filters", "projection_filters"]


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
    weight, stage = _weight(model, level)
    weight = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    _, strength, vectors = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    energy = strength.square()
    return Filters(
        filters=weight,
        principal=(vectors * largest.sign()).view(-1, *weight.shape[1:]),
        shares=energy / energy.sum(),
        stage=stage,
    )


def _weight(model: nn.Module, level: int) -> tuple[Tensor, str]:
    embedding = model.stem if isinstance(model, MobileViT) else getattr(model, "embedding", model)
    match embedding:
        case PatchEmbed():
            return embedding.weight, "patch projection"
        case BytePatchEmbed():
            weight = embedding.weight.unflatten(1, (*embedding.patch, -1))  # (D, P, Q, C)
            return weight.permute(0, 3, 1, 2), "patch projection of bytes"
        case PyramidEmbed():
            return embedding.finest.weight, "finest patch projection"
        case AdaptiveEmbed():
            sizes = len(embedding.projections)
            require(0 <= level < sizes, f"level {level} is not among {sizes} patch sizes; use 0 to {sizes - 1}")
            projection = embedding.projections[level]
            assert isinstance(projection, PatchEmbed)
            return projection.weight, f"projection of {projection.patch} patches"
        case ConvStem():
            return embedding.layers[0].conv.weight, "first convolution of the stem"  # type: ignore[union-attr,return-value]
    if isinstance(model, MobileViT):
        return model.stem.conv.weight, "first convolution of the stem"
    raise VitrailError(f"{type(model).__name__} has no projection of pixels; give a model, or its embedding")
