"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) between neighbours in the batch.

Images 2k and 2k + 1 are partners, so that a batch is mixed in the same way for any number of processes and
micro-batches.

Shapes: B images, C channels, H×W pixels, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.training.random import generator

__all__ = ["Mixing", "draw_mixing", "mix", "soft_labels"]

Mixing = tuple[Tensor, Tensor]
"""(pairs, 5): the partner's share, and top, left, bottom, right of its box as fractions; (pairs,): whether to cut."""


def draw_mixing(pairs: int, *, mixup: float, cutmix: float, seed: int, step: int) -> Mixing:
    """Draw how each pair of the whole batch is mixed."""
    random = generator("mix", seed, step)
    cut = torch.from_numpy(random.random(pairs) < (cutmix > 0) / ((mixup > 0) + (cutmix > 0)))
    blend = torch.from_numpy(random.beta(mixup, mixup, pairs) if mixup else random.random(pairs))
    cutting = torch.from_numpy(random.beta(cutmix, cutmix, pairs) if cutmix else random.random(pairs))
    place = torch.from_numpy(random.random((pairs, 2)))
    share = torch.where(cut, cutting, blend)
    side = share.sqrt()[:, None]
    corner = place * (1 - side)
    return torch.cat([share[:, None], corner, corner + side], dim=1), cut


def mix(images: Tensor, targets: Tensor, mixing: Mixing) -> tuple[Tensor, Tensor]:
    """Mix every image (B, C, H, W) and label (B, K) with its partner's; an odd last one is unchanged."""
    boxes, cut = (part[: len(images) // 2].repeat_interleave(2, dim=0) for part in mixing)
    count = len(boxes)
    partner = torch.arange(count) ^ 1
    height, width = images.shape[2:]
    top, left, bottom, right = (boxes[:, 1:] * torch.tensor([height, width, height, width])).round().unbind(1)
    rows, columns = torch.arange(height), torch.arange(width)
    inside = ((rows >= top[:, None]) & (rows < bottom[:, None]))[:, :, None] & (
        (columns >= left[:, None]) & (columns < right[:, None])
    )[:, None, :]  # (B, H, W)
    share = torch.where(cut, inside.double().mean(dim=(1, 2)), boxes[:, 0])  # boxes are rounded to pixels: count them
    weight = torch.where(cut[:, None, None], inside.double(), share[:, None, None]).to(images.dtype)[:, None]
    share = share.to(targets.dtype)[:, None]
    mixed = images[:count] * (1 - weight) + images[:count][partner] * weight
    labels = targets[:count] * (1 - share) + targets[:count][partner] * share
    return torch.cat([mixed, images[count:]]), torch.cat([labels, targets[count:]])


def soft_labels(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """(B,) → (B, K): 1 − smoothing on the label, the rest uniform over all classes."""
    off = smoothing / classes
    targets = torch.full((len(labels), classes), off)
    return targets.scatter_(1, labels[:, None], 1 - smoothing + off)
