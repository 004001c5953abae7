"""A ResNet before the patches of a hybrid ViT (arXiv 2010.11929), with the layers of BiT (arXiv 1912.11370).

Shapes: B images, C channels, H×W pixels, c channels of a map, h×w grid, N = h·w patches, D width.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.geometry import Size, fit
from vitrail.nn.initialise import initialise
from vitrail.nn.layout import Layout
from vitrail.nn.patches import project_cells
from vitrail.parts import ResNetStem

__all__ = ["ResNetEmbed", "StandardisedConv"]


class StandardisedConv(nn.Module):
    """A convolution without bias whose filters are standardised in every pass: mean 0, variance 1 (arXiv 1903.10520).

    Padding is TensorFlow's "same": what does not spread evenly over both sides goes to the right and below.
    """

    EPS = 1e-8

    def __init__(self, before: int, after: int, *, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(after, before, kernel, kernel))
        self.stride = stride
        around = max(0, kernel - stride)  # sides are multiples of the stride
        self.padding = around // 2, around - around // 2
        initialise(self.weight.data, followed_by="relu")

    def forward(self, x: Tensor) -> Tensor:
        before, after = self.padding
        if before != after:
            x, before = F.pad(x, (before, after, before, after)), 0
        return F.conv2d(x, self.standardised(), stride=self.stride, padding=before)

    def standardised(self) -> Tensor:
        """The filters that are applied, (D, C, P, Q)."""
        flat = self.weight.flatten(1).unsqueeze(0)  # (1, D, C·P·Q)
        return F.batch_norm(flat, None, None, training=True, eps=self.EPS).view_as(self.weight)


class _ConvNorm(nn.Module):
    """A standardised convolution, group norm and, by default, ReLU."""

    def __init__(
        self, before: int, after: int, groups: int, *, kernel: int = 1, stride: int = 1, activation: bool = True
    ) -> None:
        super().__init__()
        self.conv = StandardisedConv(before, after, kernel=kernel, stride=stride)
        self.norm = nn.GroupNorm(groups, after)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu(x) if self.activation else x


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, a shortcut, then ReLU; the first of a stage has a 1×1 convolution there too."""

    def __init__(self, before: int, after: int, groups: int, *, stride: int, first: bool) -> None:
        super().__init__()
        inner = after // 4
        self.shortcut = _ConvNorm(before, after, groups, stride=stride, activation=False) if first else None
        self.reduce = _ConvNorm(before, inner, groups)
        self.mix = _ConvNorm(inner, inner, groups, kernel=3, stride=stride)
        self.expand = _ConvNorm(inner, after, groups, activation=False)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.expand(self.mix(self.reduce(x)))
        return F.relu(branch + (x if self.shortcut is None else self.shortcut(x)))


class ResNetEmbed(nn.Module):
    """(B, C, H, W) → map (B, c, h·cells, w·cells) → tokens (B, N, D)."""

    def __init__(self, spec: ResNetStem, width: int, *, channels: int = 3) -> None:
        super().__init__()
        self.patch = spec.patch
        self.stem = _ConvNorm(channels, spec.width, spec.groups, kernel=7, stride=2)
        self.stages = nn.ModuleList(
            nn.ModuleList(
                Bottleneck(after if i else before, after, spec.groups, stride=2 if s and not i else 1, first=not i)
                for i in range(depth)
            )
            for s, (depth, (before, after)) in enumerate(zip(spec.depths, pairwise(spec.widths), strict=True))
        )
        self.projection = project_cells(spec.widths[-1], width, spec.cells)

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        assert inside is None  # its norms are over whole maps, so that a config refuses padding
        grid = fit(Size(*image.shape[2:]), self.patch).grid
        # with ceil_mode the last window hangs over the edge, as TensorFlow pads it
        x = F.max_pool2d(self.stem(image), 3, stride=2, ceil_mode=True)
        for stage in self.stages:
            for block in stage:  # type: ignore[union-attr]
                x = block(x)
        return self.projection(x).flatten(2).mT, Layout(grid=grid, frame=grid)
