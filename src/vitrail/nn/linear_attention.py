"""Linear attention: a kernel replaces the softmax, so keys and values are summed only once.

Shapes: B images, h heads, T tokens, d values per head.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vitrail.nn.layout import Layout
from vitrail.nn.query_bias import Bias

__all__ = ["LinearMix", "feature_map"]


def feature_map(x: Tensor) -> Tensor:
    """φ = elu + 1: positive, as a similarity must be."""
    return F.elu(x) + 1


class LinearMix:
    """φ(Q)(φ(K)ᵀV), divided by φ(Q)·Σφ(K)."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None, dropout: float) -> Tensor:
        q, k = feature_map(q), feature_map(k)
        if layout.mask is not None:
            k = k * layout.mask[:, None, :, None]
        total = k.sum(dim=2, keepdim=True).mT  # (B, h, d, 1)
        return q @ (k.mT @ v) / (q @ total)
