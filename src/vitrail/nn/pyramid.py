"""Pyramids of token grids: fine patches are merged 2×2 into coarser and wider grids.

`PyramidEmbed` is an embedding for a plain encoder; `PyramidViT` has windowed attention at every level, as Swin
(arXiv 2103.14030).

Shapes: B images, C channels, H×W pixels, h×w grid, N = h·w tokens, D width.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from vitrail import parts
from vitrail.config import PyramidConfig
from vitrail.geometry import Size, fit
from vitrail.nn.attention import Attention
from vitrail.nn.block import Block
from vitrail.nn.image import check_image
from vitrail.nn.intermediates import Intermediates
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import FeedForward, linear
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.relative import RelativeTable
from vitrail.nn.windowed_attention import WindowedMix

__all__ = ["PatchMerge", "PyramidEmbed", "PyramidViT"]


class PatchMerge(nn.Module):
    """Concatenate 2×2 tokens, normalise and project them: half the grid, another width."""

    def __init__(self, before: int, after: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * before, eps=norm_eps)
        self.reduce = linear(4 * before, after, bias=False)

    def forward(self, x: Tensor, grid: Size) -> tuple[Tensor, Size]:
        """(B, h·w, D) → (B, h/2·w/2, D'), and the new grid."""
        half = fit(grid, Size(2, 2)).grid
        x = x.unflatten(1, (half.height, 2, half.width, 2))
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # Swin's order: columns of the 2×2 before rows
        return self.reduce(self.norm(x)), half


class PyramidEmbed(nn.Module):
    """Patches of the finest size, then merges up to the encoder's width; the last level is the output."""

    def __init__(self, spec: parts.Hierarchical, width: int, *, channels: int = 3) -> None:
        super().__init__()
        self.patch = spec.patch
        widths = (*spec.widths, width)
        self.finest = PatchEmbed(spec.finest, widths[0], channels=channels)
        self.merges = nn.ModuleList(PatchMerge(before, after) for before, after in pairwise(widths))

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → tokens of the last level; `inside` (B, h, w) is true for cells of the image, not padding."""
        tokens, grid = self.levels(image)[-1]
        return tokens, Layout(grid=grid, frame=grid, mask=None if inside is None else inside.flatten(1))

    def levels(self, image: Tensor) -> list[tuple[Tensor, Size]]:
        """(B, C, H, W) → tokens (B, N, D) and grid of every level, finest first."""
        fit(Size(*image.shape[2:]), self.patch)
        tokens, layout = self.finest(image)
        levels = [(tokens, layout.grid)]
        for merge in self.merges:
            levels.append(merge(*levels[-1]))
        return levels


class PyramidViT(nn.Module, Intermediates):
    """Stages of windowed blocks with merges between them, a norm, mean pooling and a head.

    >>> import torch
    >>> PyramidViT(PyramidConfig(image="64x96"))(torch.zeros(1, 3, 64, 96)).shape
    torch.Size([1, 1000])
    """

    def __init__(self, config: PyramidConfig) -> None:
        super().__init__()
        self.config = config
        first, last = config.stages[0].width, config.stages[-1].width
        self.embedding = PatchEmbed(config.patch, first, channels=config.channels)
        self.embedding_norm = nn.LayerNorm(first, eps=config.norm_eps)
        self.stages = nn.ModuleList(Stage(config, level) for level in range(len(config.stages)))
        self.norm = nn.LayerNorm(last, eps=config.norm_eps)
        self.head = linear(last, config.classes) if config.classes else None

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) → logits (B, classes), or the vector (B, D) of a model without a head."""
        vector = self.vector(image)
        return vector if self.head is None else self.head(vector)

    def vector(self, image: Tensor) -> Tensor:
        """(B, C, H, W) → (B, D)."""
        return self.features(image)[0].mean(dim=1)

    def features(self, image: Tensor) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → the last stage's tokens (B, N, D), normalised, and their layout."""
        tokens, grid = self.levels(image)[-1]
        return self.norm(tokens), Layout(grid=grid, frame=grid)

    def count_layers(self) -> int:
        return len(self.stages)

    def layer_features(self, image: Tensor, layers: frozenset[int], *, norm: bool) -> dict[int, tuple[Tensor, Layout]]:
        levels = {index: level for index, level in enumerate(self.levels(image)) if index in layers}
        last = len(self.stages) - 1
        return {
            index: (self.norm(x) if norm and index == last else x, Layout(grid=grid, frame=grid))
            for index, (x, grid) in levels.items()
        }

    def levels(self, image: Tensor) -> list[tuple[Tensor, Size]]:
        """(B, C, H, W) → tokens (B, N, D) before the final norm, and grid, of every stage, finest first."""
        check_image(image, self.config.channels)
        self.config.check(Size(*image.shape[2:]))
        tokens, layout = self.embedding(image)
        x, grid, levels = self.embedding_norm(tokens), layout.grid, []
        for stage in self.stages:
            x, grid = stage(x, grid)
            levels.append((x, grid))
        return levels


class Stage(nn.Module):
    """A merge (except in the first stage), then blocks; every other block shifts its windows."""

    def __init__(self, config: PyramidConfig, level: int) -> None:
        super().__init__()
        spec, grid = config.stages[level], config.grids[level]
        before = config.stages[level - 1].width
        self.merge = PatchMerge(before, spec.width, norm_eps=config.norm_eps) if level else None
        window = Size(min(config.window.height, grid.height), min(config.window.width, grid.width))
        zeros = config.window_padding == "zeros"
        earlier = sum(stage.depth for stage in config.stages[:level])
        total = sum(stage.depth for stage in config.stages)
        self.blocks = nn.ModuleList(
            Block(
                spec.width,
                attention=Attention(
                    spec.width,
                    spec.num_heads,
                    mix=WindowedMix(window, shifted=index % 2 == 1, zeros_for=grid if zeros else None),
                    dropout=config.dropout,
                    attention_dropout=config.attention_dropout,
                    position=RelativeTable(
                        window, spec.num_heads, window_padding=config.window_padding, convention="timm"
                    ),
                ),
                mlp=FeedForward(spec.width, config.mlp_ratio * spec.width, dropout=config.dropout),
                norm_eps=config.norm_eps,
                drop_path=config.drop_path * (earlier + index) / max(1, total - 1),
            )
            for index in range(spec.depth)
        )

    def forward(self, x: Tensor, grid: Size) -> tuple[Tensor, Size]:
        if self.merge is not None:
            x, grid = self.merge(x, grid)
        layout = Layout(grid=grid, frame=grid)
        for block in self.blocks:
            x = block(x, layout)
        return x, grid
