"""Token merging: patches whose tokens are alike become one, so that an image has as many tokens as it needs.

After the attention of every block but the first and the last, patches are split into two alternating sets (ToMe, arXiv
2210.09461), and each of the first is paired with the nearest one of the second. Pairs nearer than a threshold become
their mean, weighted by the patches that each represents. The distance is one minus the correlation of the two tokens'
values, times the harmonic mean of the patches that they represent: what represents many must be the more alike. How
many tokens are left depends on the image, so images are packed end to end. Looking for pairs has its cost: an image in
which few are found is left alone in the next blocks. The nearest pairs go first, until a share of the patches is left.

A mean is shorter than the vectors that it is the mean of, so that what the blocks add to it would count for more: it is
stretched until its values deviate from their mean as those of the two tokens do on average (Token Fusion, arXiv
2312.01026, keeps norms likewise).

A token of s patches is counted s times in attention, and rotary positions rotate it by the mean of their places. Prefix
tokens are never merged. After the last block, every patch gets the token that represents it, so that pooling and
layouts are unchanged.

Shapes: B images, R tokens of all of them, n patches left of N, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitrail import parts
from vitrail.errors import require
from vitrail.nn.attention import within
from vitrail.nn.layout import Layout
from vitrail.nn.positions import AttentionPosition
from vitrail.nn.rotary import Rotation
from vitrail.nn.vit import ViT
from vitrail.vectors.engines.lean import Group, LeanBlock, of_groups
from vitrail.vectors.engines.merged import Merged

__all__ = ["MergingEncoder", "check_mergeable", "merge_patches"]

LEAST = 0.4
"""The share of its patches that an image keeps: a sky would keep a tenth, and lose more cosine than all others."""
LOOK = 0.08
"""What looking for pairs and joining them costs, in blocks: an image must save more than that in the blocks to come."""
TINY = 1e-24
"""Below this, a token's values have no variance, and it is like no other."""


def merge_patches(patches: Tensor, now: Merged, threshold: float) -> tuple[Tensor, Merged]:
    """Merge pairs of the patches (n, D) that are nearer than the threshold, the nearest first, until `LEAST` are left.

    Without a pair, return the same objects.
    """
    room = len(patches) - math.ceil(LEAST * len(now.owner))
    if room < 1 or len(patches) < 2:
        return patches, now
    width = patches.shape[-1]
    # directions (n, D), whose products are D times a correlation, and one over the deviations (n, 1)
    direction, _, inverse = torch.native_layer_norm(patches, [width], None, None, TINY)
    first, second = now.sizes[::2], now.sizes[1::2]
    mean = 2 * first[:, None] * second / (first[:, None] + second)
    distance = (direction[::2] @ direction[1::2].mT).div_(-width).add_(1).mul_(mean)  # (⌈n/2⌉, ⌊n/2⌋)
    nearest, partner = distance.min(dim=-1)
    joins = nearest < threshold
    if room < len(joins) and joins.sum() > room:
        joins = torch.zeros_like(joins).index_fill(0, nearest.topk(room, largest=False).indices, True)
    moved, kept = joins.nonzero()[:, 0], (~joins).nonzero()[:, 0]
    if not len(moved):
        return patches, now
    to, added = partner[moved], first[moved]
    sizes = second.index_add(0, to, added)
    left = patches.new_empty(len(kept) + len(second), width)
    torch.index_select(patches, 0, 2 * kept, out=left[: len(kept)])
    right = torch.mul(patches[1::2], second[:, None], out=left[len(kept) :])
    right.index_add_(0, to, patches[2 * moved] * added[:, None]).div_(sizes[:, None])
    deviation = inverse.flatten().reciprocal().to(sizes.dtype)
    wanted = (deviation[1::2] * second).index_add(0, to, deviation[2 * moved] * added) / sizes
    right.mul_((wanted / right.std(dim=-1, correction=0).clamp_min(TINY**0.5))[:, None])
    place = torch.empty_like(now.sizes, dtype=torch.long)
    place[::2] = len(kept) + partner
    place[2 * kept] = torch.arange(len(kept), device=place.device)
    place[1::2] = len(kept) + torch.arange(len(second), device=place.device)
    return left, Merged(sizes=torch.cat([first[kept], sizes]), owner=place[now.owner])


@dataclass
class _Patience:
    """Which blocks look for pairs in an image: after the n-th in a row that finds few, n blocks don't."""

    fruitless: int = 0
    resting: int = 0

    def looks(self) -> bool:
        self.resting -= 1
        return self.resting < 0

    def learn(self, lost: float, blocks: int) -> None:
        """Learn that a share of an image's patches was lost, and is saved in so many blocks."""
        self.fruitless = 0 if lost * blocks > LOOK else self.fruitless + 1
        self.resting = self.fruitless


class MergingEncoder:
    """All blocks in one call; all but the first and the last may merge patches after their attention."""

    def __init__(self, blocks: Sequence[LeanBlock], threshold: float, position: nn.Module | None) -> None:
        self.blocks, self.threshold, self.position = blocks, threshold, position
        inside = (position, *(block.attention.position for block in blocks))
        self.uses_places = any(isinstance(each, AttentionPosition) for each in inside)

    def __call__(self, x: Tensor, layout: Layout, position: Rotation | Tensor | None) -> Tensor:
        require(
            layout.rectangles is None,
            "patches of several sizes differ in number from image to image, and are merged packed; use AdaptiveEngine",
        )
        batch, count, _ = x.shape
        x, groups = self.packed(x.flatten(0, 1), [Group(count=batch, layout=layout, tokens=count, position=position)])
        return torch.cat([group.every_patch(part) for part, group in of_groups(x, groups)])

    def packed(self, x: Tensor, groups: Sequence[Group]) -> tuple[Tensor, Sequence[Group]]:
        """Packed tokens (R, D) → those after the last block, with their groups."""
        patience = [_Patience() for group in groups for _ in range(group.count)]
        for index, block in enumerate(self.blocks):
            x, groups = block.attended(x, groups)
            if 0 < index < len(self.blocks) - 1:
                blocks = len(self.blocks) - 1 - index
                parts, groups = zip(*self._merged(x, groups, patience, blocks), strict=True)
                x = torch.cat(parts)
            x = block.with_mlp(x)
        return x, groups

    def _merged(
        self, x: Tensor, groups: Sequence[Group], patience: Sequence[_Patience], blocks: int
    ) -> Iterator[tuple[Tensor, Group]]:
        """Yield the tokens of every group, (R, D): the same if none were merged, otherwise image by image.

        `blocks` come after this one.
        """
        each = iter(patience)
        for part, group in of_groups(x, groups):
            prefix = group.layout.prefix
            now = group.merged or Merged.alone(group.tokens - prefix, x)
            found = [self._looked(image[prefix:], now, next(each), blocks) for image in part]
            if all(merged is now for _, merged in found):
                yield part.flatten(0, 1), group
                continue
            for image, (left, merged) in zip(part, found, strict=True):
                yield torch.cat([image[:prefix], left]), self._group(merged, group.layout, x)

    def _looked(self, patches: Tensor, now: Merged, own: _Patience, blocks: int) -> tuple[Tensor, Merged]:
        if not own.looks():
            return patches, now
        left, merged = merge_patches(patches, now, self.threshold)
        own.learn(1 - len(left) / len(patches), blocks)
        return left, merged

    def _group(self, merged: Merged, layout: Layout, x: Tensor) -> Group:
        regular = replace(layout, rectangles=None)
        layout = merged.placed(regular) if self.uses_places else regular
        position = within(self.position, layout, x)
        return Group(count=1, layout=layout, tokens=layout.prefix + len(merged.sizes), position=position, merged=merged)


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
