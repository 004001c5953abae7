"""The neck: tokens → feature maps of another width, as SAM's mask decoder reads them.

Shapes: B images, N patches on an h×w grid, D width, C the neck's width.
"""

from __future__ import annotations

from torch import Tensor, nn

from vitrail.config import NormKind
from vitrail.nn.initialise import initialise
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import linear
from vitrail.nn.norm import build_norm

__all__ = ["ConvNeck"]


class ConvNeck(nn.Module):
    """A projection and a 3×3 convolution, each followed by a norm: (B, N, D) → (B, N, C)."""

    def __init__(self, before: int, after: int, *, norm: NormKind = "layer", norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.project = linear(before, after, bias=False)
        self.norm1 = build_norm(norm, after, norm_eps)
        self.conv = nn.Conv2d(after, after, 3, padding=1, bias=False)
        initialise(self.conv.weight.data, followed_by="linear")
        self.norm2 = build_norm(norm, after, norm_eps)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x = self.norm1(self.project(x))  # (B, N, C)
        x = self.conv(x.mT.unflatten(2, tuple(layout.grid)))  # (B, C, h, w)
        return self.norm2(x.flatten(2).mT)
