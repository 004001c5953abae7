"""Token merging: patches whose tokens are alike become one, so that an image has as many tokens as it needs.

After the attention of every block but the first and the last, patches are split into two alternating sets (ToMe, arXiv
2210.09461), and each of the first is paired with the nearest one of the second. Pairs nearer than a threshold become
their mean, weighted by the patches that each represents. The distance is one minus the correlation of the two tokens'
values, times the harmonic mean of the patches that they represent: what represents many must be the more alike. How
many tokens are left depends on the image, so images are packed end to end. Looking for pairs costs a tenth of a block:
an image in which few are found is left alone in the next blocks.

A token of s patches is counted s times in attention, and rotary positions rotate it by the mean of their places. Prefix
tokens are never merged. After the last block, every patch gets the token that represents it, so that pooling and
layouts are unchanged.

Shapes: B images, R tokens of all of them, n patches left of N, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from vitrail.vectors.engines.lean import Group, LeanBlock

__all__ = ["Merged", "MergingEncoder", "check_mergeable", "merge_patches"]

FEW = 0.02
"""The share of its patches that an image must lose in a block for looking to be worth its time."""
TINY = 1e-24
"""Below this, a token's values have no variance, and it is like no other."""


@dataclass(frozen=True)
class Merged:
    """Which tokens represent the patches of an image."""

    sizes: Tensor
    """(n,): how many patches each token represents."""
    owner: Tensor
    """(N,): which of the n tokens represents each patch."""

    def placed(self, layout: Layout) -> Layout:
        """Return the layout with every token at the mean place of the patches that it represents."""
        centres = layout.centres(self.owner.device)  # (N, 2)
        total = centres.new_zeros(len(self.sizes), 2).index_add_(0, self.owner, centres)
        places = total / self.sizes[:, None]
        return replace(layout, rectangles=torch.cat([places, torch.ones_like(places)], dim=-1)[None])


def merge_patches(patches: Tensor, now: Merged, threshold: float) -> tuple[Tensor, Merged]:
    """Merge pairs of the patches (n, D) that are nearer than the threshold."""
    if len(patches) < 2:
        return patches, now
    direction = F.layer_norm(patches, patches.shape[-1:], eps=TINY)  # (n, D), whose products are D times a correlation
    first, second = now.sizes[::2], now.sizes[1::2]
    mean = 2 * first[:, None] * second / (first[:, None] + second)
    distance = (direction[::2] @ direction[1::2].mT).div_(-patches.shape[-1]).add_(1).mul_(mean)  # (⌈n/2⌉, ⌊n/2⌋)
    nearest, partner = distance.min(dim=-1)
    joins = nearest < threshold
    moved, kept = joins.nonzero()[:, 0], (~joins).nonzero()[:, 0]
    to = partner[moved]
    sizes = second.index_add(0, to, first[moved])
    left = patches.new_empty(len(kept) + len(second), patches.shape[-1])
    torch.index_select(patches, 0, 2 * kept, out=left[: len(kept)])
    right = torch.mul(patches[1::2], second[:, None], out=left[len(kept) :])
    right.index_add_(0, to, patches[2 * moved] * first[moved, None]).div_(sizes[:, None])
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

    def learn(self, before: int, after: int) -> None:
        self.fruitless = self.fruitless + 1 if after > (1 - FEW) * before else 0
        self.resting = self.fruitless


class MergingEncoder:
    """All blocks in one call; all but the first and the last may merge patches after their attention."""

    def __init__(self, blocks: Sequence[LeanBlock], threshold: float, position: nn.Module | None) -> None:
        self.blocks, self.threshold, self.position = blocks, threshold, position
        inside = (position, *(block.attention.position for block in blocks))
        self.uses_places = any(isinstance(each, AttentionPosition) for each in inside)

    def __call__(self, x: Tensor, layout: Layout, position: Rotation | Tensor | None) -> Tensor:
        batch, count, width = x.shape
        patches = count - layout.prefix
        images = [Merged(x.new_ones(patches), torch.arange(patches, device=x.device))] * batch
        patience = [_Patience() for _ in images]
        groups: Sequence[Group] = [Group(count=batch, layout=layout, tokens=count, position=position)]
        x = x.flatten(0, 1)  # (R, D)
        for index, block in enumerate(self.blocks):
            x, groups = block.attended(x, groups)
            if 0 < index < len(self.blocks) - 1:
                x, images = self._merged(x, images, patience, layout.prefix)
                groups = [self._group(image, layout, x) for image in images]
            x = block.with_mlp(x)
        if self.blocks[-1].keep is not None:
            return x.view(batch, -1, width)
        rows = zip(_of_images(x, images, layout.prefix), images, strict=True)
        return torch.stack([torch.cat([before, patches[image.owner]]) for (before, patches), image in rows])

    def _merged(
        self, x: Tensor, images: Sequence[Merged], patience: Sequence[_Patience], prefix: int
    ) -> tuple[Tensor, list[Merged]]:
        rows, merged = list[Tensor](), list[Merged]()
        parts = zip(_of_images(x, images, prefix), images, patience, strict=True)
        for (before, patches), image, own in parts:
            left, now = patches, image
            if own.looks():
                left, now = merge_patches(patches, image, self.threshold)
                own.learn(len(patches), len(left))
            rows += [before, left]
            merged.append(now)
        return torch.cat(rows), merged

    def _group(self, image: Merged, layout: Layout, x: Tensor) -> Group:
        layout = image.placed(layout) if self.uses_places else layout
        counted = F.pad(image.sizes.log(), (layout.prefix, 0))[None, None, None]  # (1, 1, 1, T)
        tokens, position = counted.shape[-1], within(self.position, layout, x)
        return Group(count=1, layout=layout, tokens=tokens, position=position, counted=counted)


def _of_images(x: Tensor, images: Sequence[Merged], prefix: int) -> Iterator[Sequence[Tensor]]:
    """(R, D) → the prefix and the patches of every image."""
    for part in x.split([prefix + len(image.sizes) for image in images]):
        yield part.tensor_split([prefix])


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
