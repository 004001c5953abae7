"""Which token represents which patch, where an image has fewer tokens than patches.

Shapes: B images, N patches, n tokens that represent them, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout

__all__ = ["Merged"]


@dataclass(frozen=True)
class Merged:
    """Which tokens represent the patches of an image: after merging, or because some patches are larger."""

    sizes: Tensor
    """(n,): how many patches each token represents."""
    owner: Tensor
    """(N,): which of the n tokens represents each patch."""

    @classmethod
    def alone(cls, count: int, like: Tensor) -> Merged:
        """Every patch has a token of its own."""
        return cls(like.new_ones(count), torch.arange(count, device=like.device))

    @classmethod
    def of(cls, layout: Layout) -> Merged:
        """A large patch of one image represents the cells that it covers."""
        assert layout.rectangles is not None
        areas = layout.rectangles[0, :, 2:].prod(dim=-1).float()
        numbers = torch.arange(len(areas), device=areas.device, dtype=torch.float32)
        return cls(areas, to_dense(numbers[None, :, None], layout).flatten().long())

    def placed(self, layout: Layout) -> Layout:
        """Return the layout with every token at the mean place of the patches that it represents."""
        centres = layout.centres(self.owner.device)  # (N, 2)
        total = centres.new_zeros(len(self.sizes), 2).index_add_(0, self.owner, centres)
        places = total / self.sizes[:, None]
        return replace(layout, rectangles=torch.cat([places, torch.ones_like(places)], dim=-1)[None])

    def spread(self, tokens: Tensor, prefix: int) -> Tensor:
        """(B, prefix + n, D) → (B, prefix + N, D): every patch gets the token that represents it."""
        return torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, self.owner]], dim=1)
