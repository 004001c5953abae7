"""Two vision towers of one image, joined into the tokens of a language model: DeepSeek-VL (arXiv 2403.05525).

Shapes: B images, n patches of the low tower on an r×c grid, D its width; N patches of the high tower on an h×w grid,
E its width, C its neck's; W the language model's width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import TwoBranches
from vitrail.geometry import Size
from vitrail.nn.attention import within
from vitrail.nn.initialise import initialise
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import linear
from vitrail.nn.neck import ConvNeck
from vitrail.nn.vit import ViT

__all__ = ["BranchMerging", "TwoBranchEncoder"]


class BranchMerging(nn.Module):
    """Tokens of the low tower, and the high tower's, shrunk to its grid → (B, n, W)."""

    def __init__(self, spec: TwoBranches) -> None:
        super().__init__()
        assert spec.high.neck is not None
        channels, half = spec.high.neck.width, spec.merger.width // 2
        self.grid = spec.low.grid
        self.neck = ConvNeck(spec.high.width, channels, norm_eps=spec.merger.norm_eps)
        self.conv1 = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(2 * channels, 4 * channels, 3, stride=2, padding=1, bias=False)
        for conv in (self.conv1, self.conv2):
            initialise(conv.weight.data, followed_by="linear")
        self.alpha = nn.Parameter(torch.zeros(1))
        self.high = linear(4 * channels, half)
        self.low = linear(spec.low.width, half)
        self.out = linear(spec.merger.width, spec.merger.width)

    def forward(self, low: Tensor, last: Tensor, early: Tensor, layout: Layout) -> Tensor:
        """`last` (B, N, C) is behind the high tower's neck, `early` (B, N, E) after its first full block."""
        fine = self._shrunk(last, layout) + self._shrunk(self.neck(early, layout), layout) * self.alpha
        joined = torch.cat([self.high(fine), self.low(low)], dim=-1)
        return self.out(F.gelu(joined))

    def _shrunk(self, x: Tensor, layout: Layout) -> Tensor:
        """(B, N, C) → (B, n, 4C): resized to four times the low grid, then halved twice."""
        four = Size(4 * self.grid.height, 4 * self.grid.width)
        x = F.interpolate(x.mT.unflatten(2, tuple(layout.grid)), size=tuple(four), mode="bilinear")  # (B, C, 4r, 4c)
        return self.conv2(self.conv1(x)).flatten(2).mT


class TwoBranchEncoder(nn.Module):
    """Two images of different sizes → the tokens of a language model (B, n, W)."""

    def __init__(self, spec: TwoBranches) -> None:
        super().__init__()
        self.config, self.early = spec, spec.early
        self.low, self.high, self.merger = ViT(spec.low), ViT(spec.high), BranchMerging(spec)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        tokens, _ = self.low.features(low)
        early, last, layout = self._fine(high)
        return self.merger(tokens, last, early, layout)

    def _fine(self, image: Tensor) -> tuple[Tensor, Tensor, Layout]:
        """Return the high tower's tokens after its first full block, its last ones, and their layout."""
        x, layout = self.high.embed(image)
        if self.high.embedding_norm is not None:
            x = self.high.embedding_norm(x)
        position, kept = within(self.high.position, layout, x), []
        for index, block in enumerate(self.high.blocks):
            x = block(x, layout, position)
            if index == self.early:
                kept.append(x)
        return kept[0], self.high.normed(x, layout), layout
