"""Tokens → one vector per image.

Shapes: B images, T tokens of which the first are the prefix, D width, h heads, d = D/h.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.config import NormKind
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import FeedForward, linear
from vitrail.nn.norm import build_norm

__all__ = ["AttentionPooling", "ClsPooling", "MaxPooling", "MeanPooling", "build_pool", "one_vector"]


class ClsPooling(nn.Module):
    """The first token: (B, T, D) → (B, D)."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return x[:, 0]


class ClsAndDistillationPooling(nn.Module):
    """The first two tokens: (B, T, D) → (B, 2, D)."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return x[:, :2]


class MeanPooling(nn.Module):
    """The mean of the patches, without padding."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        patches = x[:, layout.prefix :]
        if layout.patch_mask is None:
            return patches.mean(dim=1)
        real = layout.patch_mask[:, :, None]
        return patches.where(real, 0).sum(dim=1) / real.sum(dim=1)


class MaxPooling(nn.Module):
    """The maximum of the patches per channel, without padding."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        patches = x[:, layout.prefix :]
        if layout.patch_mask is not None:
            patches = patches.where(layout.patch_mask[:, :, None], -math.inf)
        return patches.amax(dim=1)


class ClsMeanPooling(nn.Module):
    """The CLS token concatenated with the mean of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cls, self.mean = ClsPooling(), MeanPooling()

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return torch.cat([self.cls(x, layout), self.mean(x, layout)], dim=1)  # (B, 2·D)


class AttentionPooling(nn.Module):
    """One learned query attends to the patches and, with `spec.prefix`, to the prefix; then a residual MLP."""

    def __init__(self, width: int, spec: parts.AttentionPool, *, norm: NormKind, norm_eps: float) -> None:
        super().__init__()
        self.num_heads, self.prefix = spec.num_heads, spec.prefix
        self.query = nn.Parameter(torch.empty(1, 1, width))
        initialise_table(self.query.data)
        self.q = linear(width, width)
        self.kv = linear(width, 2 * width)
        self.out = linear(width, width)
        self.norm = build_norm(norm, width, norm_eps)
        self.mlp = FeedForward(width, spec.mlp_width, activation=spec.activation)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        mask = layout.mask if self.prefix else layout.patch_mask
        x = x if self.prefix else x[:, layout.prefix :].contiguous()  # (B, T, D) → (B, N, D)
        q = self.q(self.query).expand(x.shape[0], -1, -1)
        q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, h, 1, d)
        k, v = self.kv(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, N, d)
        keys = None if mask is None else mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
        x = self.out(mixed.transpose(1, 2).flatten(2))  # (B, 1, D)
        x = x + self.mlp(self.norm(x))
        return x[:, 0]


def build_pool(
    spec: parts.Pool, width: int, *, distillation: bool, norm_eps: float, norm: NormKind = "layer"
) -> nn.Module:
    match spec:
        case parts.ClsPool():
            return ClsAndDistillationPooling() if distillation else ClsPooling()
        case parts.MeanPool():
            return MeanPooling()
        case parts.MaxPool():
            return MaxPooling()
        case parts.ClsMeanPool():
            return ClsMeanPooling()
        case parts.AttentionPool():
            return AttentionPooling(width, spec, norm=norm, norm_eps=norm_eps)


def one_vector(vector: Tensor) -> Tensor:
    """Average the two vectors of a distilled model, (B, 2, D), as its heads' logits are averaged."""
    return vector.mean(dim=1) if vector.ndim == 3 else vector
