"""Prefix tokens, which precede the patches: CLS, distillation, registers, in this order.

Shapes: B images, N patches, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail import parts
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout

__all__ = ["Prefix"]


class Prefix(nn.Module):
    """(B, N, D) → (B, prefix + N, D). Each prefix token is a learned vector, the same for every image."""

    def __init__(self, spec: parts.Prefix, width: int) -> None:
        super().__init__()
        self.cls = _tokens(int(spec.cls), width)
        self.distillation = _tokens(int(spec.distillation), width)
        self.registers = _tokens(spec.registers, width)
        self.count = spec.count

    def forward(self, tokens: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        kept = [part for part in (self.cls, self.distillation, self.registers) if part is not None]
        if not kept:
            return tokens, layout
        before = [part.expand(tokens.shape[0], -1, -1) for part in kept]
        return torch.cat([*before, tokens], dim=1), layout.with_prefix(self.count)


def _tokens(count: int, width: int) -> nn.Parameter | None:
    if not count:
        return None
    tokens = nn.Parameter(torch.empty(1, count, width))
    initialise_table(tokens.data)
    return tokens
