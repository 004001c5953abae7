"""A residual block: attention, then MLP, each with a norm, optional LayerScale and stochastic depth.

Shapes: B images, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.config import NormKind, NormPlace
from vitrail.nn.attention import Attention
from vitrail.nn.layout import Layout
from vitrail.nn.norm import build_norm
from vitrail.nn.rotary import Rotation

__all__ = ["Block", "drop_path"]


class Block(nn.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)); with the norms after, x + norm1(attention(x)) and so on."""

    def __init__(
        self,
        width: int,
        *,
        attention: Attention,
        mlp: nn.Module,
        norm: NormKind = "layer",
        norm_eps: float = 1e-6,
        place: NormPlace = "before",
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = build_norm(norm, width, norm_eps)
        self.attention = attention
        self.scale1 = None if layer_scale is None else nn.Parameter(torch.full((width,), layer_scale))
        self.norm2 = build_norm(norm, width, norm_eps)
        self.mlp = mlp
        self.scale2 = None if layer_scale is None else nn.Parameter(torch.full((width,), layer_scale))
        self.place: NormPlace = place
        self.drop_path = drop_path

    def forward(self, x: Tensor, layout: Layout, position: Rotation | Tensor | None = None) -> Tensor:
        if self.place == "after":
            x = self._add(x, self.norm1(self.attention(x, layout, position)), self.scale1)
            return self._add(x, self.norm2(self.mlp(x)), self.scale2)
        x = self._add(x, self.attention(self.norm1(x), layout, position), self.scale1)
        return self._add(x, self.mlp(self.norm2(x)), self.scale2)

    def _add(self, x: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
        if scale is not None:
            branch = branch * scale
        return x + (drop_path(branch, self.drop_path) if self.training else branch)


def drop_path(branch: Tensor, rate: float) -> Tensor:
    """Stochastic depth: drop the branch for whole images, and scale the others to keep the mean."""
    if rate == 0:
        return branch
    keep = branch.new_empty(branch.shape[0], 1, 1).bernoulli_(1 - rate)
    return branch * (keep / (1 - rate))
