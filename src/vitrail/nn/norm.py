"""Norms: each token is centred and scaled by its deviation, or scaled by its root mean square alone."""

from __future__ import annotations

from torch import nn

from vitrail.config import NormKind

__all__ = ["Norm", "build_norm"]

Norm = nn.LayerNorm | nn.RMSNorm


def build_norm(kind: NormKind, width: int, eps: float) -> Norm:
    return nn.LayerNorm(width, eps=eps) if kind == "layer" else nn.RMSNorm(width, eps=eps)
