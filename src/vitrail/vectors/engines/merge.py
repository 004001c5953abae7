"""Token merging (ToMe, arXiv 2210.09461): blocks merge the pairs of patches whose keys are most similar.

The first third of the blocks merges nothing: on a trained DINOv2-S/14, what is merged there costs most of the cosine.

Patches are split into two alternating sets; each patch of the first is paired with the most similar one of the second,
and the r best pairs are averaged, weighted by the patches that each token represents. A token of s patches is counted
s times in attention, and rotary positions rotate it by the mean of their places. Prefix tokens are never merged. After
the last block, every patch gets the token that represents it, so that pooling and layouts are unchanged.

Shapes: B images, T tokens, n patches left of N, D width, h heads, d = D/h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.errors import require
from vitrail.nn.attention import within
from vitrail.nn.layout import Layout
from vitrail.nn.positions import AttentionPosition
from vitrail.nn.rotary import Rotation
from vitrail.nn.vit import ViT
from vitrail.vectors.engines.lean import LeanBlock

__all__ = ["Merged", "MergingEncoder", "check_mergeable", "first_merging", "merge_patches"]


def first_merging(depth: int) -> int:
    """Return the first block, counted from 0, that merges tokens.

    >>> first_merging(12)
    4
    """
    return depth // 3


@dataclass(frozen=True)
class Merged:
    """The merged patches of a sequence."""

    patches: Tensor
    """(B, n, D)"""
    sizes: Tensor
    """(B, n): how many patches each token represents."""
    owner: Tensor
    """(B, N): which of the n tokens represents each original patch."""

    def placed(self, layout: Layout) -> Layout:
        """Return the layout with every token at the mean place of the patches that it represents."""
        centres = layout.centres(self.owner.device).expand(len(self.owner), -1, -1)  # (B, N, 2)
        total = centres.new_zeros(*self.sizes.shape, 2).scatter_add(
            1, self.owner[..., None].expand_as(centres), centres
        )
        places = total / self.sizes[..., None]
        return replace(layout, rectangles=torch.cat([places, torch.ones_like(places)], dim=-1))


def merge_patches(now: Merged, likeness: Tensor, r: int) -> Merged:
    """Merge at most r pairs, by the cosine of `likeness` (B, n, d)."""
    patches, sizes = now.patches, now.sizes
    count = patches.shape[1]
    r = min(r, count // 2)
    if r == 0:
        return now
    direction = F.normalize(likeness, dim=-1)
    score, partner = (direction[:, ::2] @ direction[:, 1::2].mT).max(dim=-1)  # (B, ⌈n/2⌉)
    order = score.argsort(dim=-1, descending=True, stable=True)
    joined, kept = order[:, :r], order[:, r:].sort(dim=-1).values
    to = partner.gather(1, joined)  # (B, r): indices in the second set

    def hands(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = x[:, ::2], x[:, 1::2]
        return _rows(first, kept), _rows(first, joined), second

    weighted = patches * sizes[..., None]
    left, moving, right = hands(weighted)
    right = right.scatter_add(1, to[..., None].expand_as(moving), moving)
    size_left, size_moving, size_right = hands(sizes[..., None])
    size_right = size_right.scatter_add(1, to[..., None], size_moving)
    new_sizes = torch.cat([size_left, size_right], dim=1)  # (B, n − r, 1)

    place = torch.empty(patches.shape[:2], dtype=torch.long)
    first = torch.empty_like(score, dtype=torch.long)
    first.scatter_(1, kept, torch.arange(kept.shape[1]).expand_as(kept))
    first.scatter_(1, joined, kept.shape[1] + to)
    place[:, ::2] = first
    place[:, 1::2] = kept.shape[1] + torch.arange(count // 2)
    return Merged(
        patches=torch.cat([left, right], dim=1) / new_sizes,
        sizes=new_sizes[..., 0],
        owner=place.gather(1, now.owner),
    )


class MergingEncoder:
    """All blocks in one call: r pairs are merged after the attention of each block from `first` on but the last."""

    def __init__(self, blocks: list[LeanBlock], r: int, position: nn.Module | None) -> None:
        self.blocks, self.r, self.position = blocks, r, position
        self.first = first_merging(len(blocks))

    def __call__(self, x: Tensor, layout: Layout, position: Rotation | Tensor | None) -> Tensor:
        for block in self.blocks[: self.first]:
            x = block(x, layout, position)
        batch, count, _ = x.shape
        patches = count - layout.prefix
        owner = torch.arange(patches).expand(batch, -1)
        now = Merged(patches=x[:, layout.prefix :], sizes=x.new_ones(batch, patches), owner=owner)
        for block in self.blocks[self.first :]:
            h = block.norm1(x)
            q, k, v = block.heads(block.project(h, h[:, : block.keep]))
            likeness = k.mean(dim=1)[:, layout.prefix :]
            if isinstance(block.attention.position or self.position, AttentionPosition):
                places = now.placed(layout)
                q, k, _ = block.attention.placed(q, k, places, within(self.position, places, x))
            counted = F.pad(now.sizes.log(), (layout.prefix, 0))[:, None, None]  # (B, 1, 1, T)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=counted)
            x = x[:, : block.keep] + block.out(block.attention.joined(mixed))
            if block is not self.blocks[-1]:
                now = Merged(patches=x[:, layout.prefix :], sizes=now.sizes, owner=now.owner)
                now = merge_patches(now, likeness, self.r)
                x = torch.cat([x[:, : layout.prefix], now.patches], dim=1)
            x = block.with_mlp(x)
        if self.blocks[-1].keep is not None:
            return x
        return torch.cat([x[:, : layout.prefix], _rows(x[:, layout.prefix :], now.owner)], dim=1)


def check_mergeable(model: ViT) -> None:
    """Raise VitrailError if attention needs a grid: merged tokens have none."""
    attention, position = model.config.attention, model.config.position
    require(
        isinstance(attention, parts.FullAttention),
        f"{type(attention).__name__} needs a grid, which merging removes; use merge 0",
    )
    require(
        position.inside is None or position.inside.acts_on != "scores",
        f"{type(position).__name__} has a number per pair of cells, and a merged token has several; use merge 0",
    )
    require(
        not isinstance(model.config.embedding, parts.Adaptive),
        "adaptive patches already have several sizes; use merge 0",
    )


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """(B, n, D) at (B, m) → (B, m, D)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
