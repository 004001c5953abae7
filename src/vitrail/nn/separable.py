"""MobileViT v2's transformer (arXiv 2206.02680): attention that is linear in the number of patches.

Shapes: B images, c channels of an h×w feature map, p×q the patch, P = p·q its places, N = (h/p)·(w/q) patches, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.geometry import Size, fit
from vitrail.nn.initialise import initialise
from vitrail.nn.mlp import FeedForward, linear
from vitrail.nn.residuals import ConvNorm

__all__ = ["SeparableTransformer", "fold", "unfold"]


def unfold(x: Tensor, patch: Size, grid: Size) -> Tensor:
    """(B, D, h, w) → (B, P, N, D): a token for each pixel, by its place in its patch."""
    x = x.unflatten(3, (grid.width, patch.width)).unflatten(2, (grid.height, patch.height))
    return x.permute(0, 3, 5, 2, 4, 1).flatten(3, 4).flatten(1, 2)


def fold(x: Tensor, patch: Size, grid: Size) -> Tensor:
    """(B, P, N, D) → (B, D, h, w)."""
    x = x.unflatten(2, tuple(grid)).unflatten(1, tuple(patch))  # (B, p, q, h/p, w/q, D)
    return x.permute(0, 5, 3, 1, 4, 2).flatten(4, 5).flatten(2, 3)


class ImageNorm(nn.Module):
    """Normalise all values of an image together, then scale and shift each channel: a group norm of one group."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight + self.bias


class SeparableAttention(nn.Module):
    """One score per token; their softmax sums the keys to one context, which multiplies every value."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.qkv = linear(width, 1 + 2 * width)
        self.out = linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        scores, keys, values = self.qkv(x).split([1, self.width, self.width], dim=-1)  # (B, P, N, 1), (B, P, N, D)
        context = (keys * scores.softmax(dim=-2)).sum(dim=-2, keepdim=True)  # (B, P, 1, D)
        return self.out(F.relu(values) * context)


class SeparableBlock(nn.Module):
    """Separable attention and an MLP, each on normalised tokens and added to them."""

    def __init__(self, width: int, mlp_width: int, *, norm_eps: float) -> None:
        super().__init__()
        self.norm1 = ImageNorm(width, norm_eps)
        self.attention = SeparableAttention(width)
        self.norm2 = ImageNorm(width, norm_eps)
        self.mlp = FeedForward(width, mlp_width, activation="silu")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SeparableTransformer(nn.Module):
    """A depthwise convolution, separable blocks over the pixels of equal places, and a projection back to the map."""

    def __init__(self, map_width: int, width: int, *, depth: int, patch: Size, mlp_width: int, norm_eps: float) -> None:
        super().__init__()
        self.patch = patch
        self.local = ConvNorm(map_width, map_width, kernel=3, groups=map_width)
        self.into = nn.Conv2d(map_width, width, 1, bias=False)
        initialise(self.into.weight.data, followed_by="linear")
        self.blocks = nn.ModuleList(SeparableBlock(width, mlp_width, norm_eps=norm_eps) for _ in range(depth))
        self.norm = ImageNorm(width, norm_eps)
        self.back = ConvNorm(width, map_width, activation=False)

    def forward(self, x: Tensor) -> Tensor:
        grid = fit(Size(*x.shape[2:]), self.patch).grid
        tokens = unfold(self.into(self.local(x)), self.patch, grid)
        for block in self.blocks:
            tokens = block(tokens)
        return self.back(fold(self.norm(tokens), self.patch, grid))
