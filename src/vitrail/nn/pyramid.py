"""Pyramids of token grids: fine grids are merged into coarser and wider ones.

`PyramidEmbed` is an embedding for a plain encoder; `PyramidViT` has blocks at every level, as Swin (arXiv 2103.14030),
PiT (arXiv 2103.16302) and Hiera (arXiv 2306.00989), whose merging is a block of its own (`query_pool.py`).

Shapes: B images, C channels, H×W pixels, h×w grid, N = h·w patches, T tokens with p of the prefix, D width.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from vitrail import parts
from vitrail.config import NormPlace, PyramidConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, fit, halved
from vitrail.nn.attention import Attention, build_mix
from vitrail.nn.block import Block
from vitrail.nn.head import Classifier, build_head
from vitrail.nn.image import check_image
from vitrail.nn.initialise import initialise
from vitrail.nn.intermediates import Intermediates
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import FeedForward, linear
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.pool import build_pool
from vitrail.nn.positions import LearnedTable
from vitrail.nn.prefix import Prefix
from vitrail.nn.query_pool import PooledAttention, PoolingBlock, TiledTables
from vitrail.nn.relative import OffsetMlp, RelativeTable

__all__ = ["GridPool", "PatchMerge", "PyramidEmbed", "PyramidViT"]


class PatchMerge(nn.Module):
    """Concatenate 2×2 tokens, normalise and project them, or project and normalise: half the grid, another width."""

    def __init__(self, before: int, after: int, *, place: NormPlace = "before", norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.place: NormPlace = place
        self.norm = nn.LayerNorm(4 * before if place == "before" else after, eps=norm_eps)
        self.reduce = linear(4 * before, after, bias=False)

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """(B, h·w, D) → (B, h/2·w/2, D'), and the new layout."""
        half = fit(layout.grid, Size(2, 2)).grid
        x = x.unflatten(1, (half.height, 2, half.width, 2))
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # Swin's order: columns of the 2×2 before rows
        x = self.reduce(self.norm(x)) if self.place == "before" else self.norm(self.reduce(x))
        return x, replace(layout, grid=half, frame=half)


class GridPool(nn.Module):
    """A depthwise 3×3 convolution of stride 2 over the patches, and a linear layer for the prefix: half the grid."""

    def __init__(self, before: int, after: int, *, prefix: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride=2, padding=1, groups=before)
        initialise(self.conv.weight.data, followed_by="linear")
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]
        self.prefix = linear(before, after) if prefix else None

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """(B, p + h·w, D) → (B, p + h/2·w/2, D'), sides rounded up, and the new layout."""
        before, patches = x.split([layout.prefix, layout.grid.area], dim=1)
        pooled = self.conv(patches.mT.unflatten(2, tuple(layout.grid)))  # (B, D, h, w) → (B, D', h/2, w/2)
        tokens, half = pooled.flatten(2).mT, halved(layout.grid)
        if self.prefix is not None:
            tokens = torch.cat([self.prefix(before.contiguous()), tokens], dim=1)
        return tokens, replace(layout, grid=half, frame=half)


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
        tokens, layout = self.levels(image)[-1]
        return tokens, replace(layout, mask=None if inside is None else inside.flatten(1))

    def levels(self, image: Tensor) -> list[tuple[Tensor, Layout]]:
        """(B, C, H, W) → tokens (B, N, D) and layout of every level, finest first."""
        fit(Size(*image.shape[2:]), self.patch)
        levels = [self.finest(image)]
        for merge in self.merges:
            levels.append(merge(*levels[-1]))
        return levels


class PyramidViT(nn.Module, Intermediates, Classifier):
    """Patches, prefix and positions; stages of blocks with merges between them; a norm, a pool and a head.

    >>> PyramidViT(PyramidConfig(image="64x96"))(torch.zeros(1, 3, 64, 96)).shape
    torch.Size([1, 1000])
    """

    def __init__(self, config: PyramidConfig) -> None:
        super().__init__()
        self.config = config
        first, last, eps = config.stages[0].width, config.stages[-1].width, config.norm_eps
        patches, distilled = config.embedding, config.prefix.distillation
        self.embedding = PatchEmbed(
            patches.patch,
            first,
            channels=config.channels,
            stride=patches.stride,
            bias=patches.bias,
            padding=patches.padding,
        )
        self.prefix = Prefix(config.prefix, first)
        self.position = _build_table(config)
        self.embedding_norm = nn.LayerNorm(first, eps=eps) if config.embedding_norm else None
        self.stages = nn.ModuleList(Stage(config, level) for level in range(len(config.stages)))
        self.norm = nn.LayerNorm(last, eps=eps) if config.final_norm != "none" else None
        self.pool = build_pool(config.pool, last, distillation=distilled, norm_eps=eps)
        self.head = build_head(last, config.classes)
        self.distillation_head = build_head(last, config.classes if distilled else 0)

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) → logits (B, classes), or the vector (B, D) of a model without a head."""
        return self.classify(self.vector(image))

    def vector(self, image: Tensor) -> Tensor:
        """(B, C, H, W) → (B, D); (B, 2, D) with a distillation token."""
        return self.pooled(*self.features(image))

    def pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """`features` → `vector`."""
        x = self.pool(x, layout)
        return self.norm(x) if self.norm is not None and self.config.final_norm == "pooled" else x

    def features(self, image: Tensor) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → the last stage's tokens (B, T, D), normalised if the model does so, and their layout."""
        tokens, layout = self.levels(image)[-1]
        normed = self.norm is not None and self.config.final_norm == "tokens"
        return self.norm(tokens) if normed and self.norm is not None else tokens, layout

    def count_layers(self) -> int:
        return len(self.stages)

    def layer_features(self, image: Tensor, layers: frozenset[int], *, norm: bool) -> dict[int, tuple[Tensor, Layout]]:
        if norm and self.norm is None:
            raise VitrailError("norm=True has no final norm to apply in this model; use norm=False")
        levels = {index: level for index, level in enumerate(self.levels(image)) if index in layers}
        ending = self.norm if norm else None
        last = len(self.stages) - 1
        return {index: (ending(x) if ending and index == last else x, layout) for index, (x, layout) in levels.items()}

    def levels(self, image: Tensor) -> list[tuple[Tensor, Layout]]:
        """(B, C, H, W) → tokens (B, T, D) before the final norm, and layout, of every stage, finest first."""
        x, layout = self.embed(image)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        levels = []
        for stage in self.stages:
            x, layout = stage(x, layout)
            levels.append((x, layout))
        return levels

    def embed(self, image: Tensor) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → patches, prefix and positions (B, T, D) on the first grid, and their layout."""
        check_image(image, self.config.channels)
        self.config.check(Size(*image.shape[2:]))
        x, layout = self.prefix(*self.embedding(image))
        return x if self.position is None else self.position(x, layout), layout


def _build_table(config: PyramidConfig) -> LearnedTable | TiledTables | None:
    spec, attention = config.position, config.attention_at(0)
    if isinstance(spec, parts.TiledTable) and isinstance(attention, parts.WindowedAttention):
        return TiledTables(spec.background, attention.window, config.stages[0].width)
    if not isinstance(spec, parts.Learned):
        return None
    rows = spec.prefix_rows(config.prefix)
    return LearnedTable(config.grids[0], config.stages[0].width, prefix_rows=rows, convention=spec.convention)


class Stage(nn.Module):
    """A merge (except in the first stage), then blocks; with windows, every other block shifts them."""

    def __init__(self, config: PyramidConfig, level: int) -> None:
        super().__init__()
        pools = level > 0 and isinstance(config.merging, parts.QueryPooling)
        self.merge = _build_merge(config, level) if level and not pools else None
        first = [_build_pooling(config, level)] if pools else []
        self.blocks = nn.ModuleList(
            [*first, *(_build_block(config, level, index) for index in range(len(first), config.stages[level].depth))]
        )

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        if self.merge is not None:
            x, layout = self.merge(x, layout)
        for block in self.blocks:
            if isinstance(block, PoolingBlock):
                x, layout = block(x, layout)
            else:
                x = block(x, layout)
        return x, layout


def _rate(config: PyramidConfig, level: int, index: int) -> float:
    """The rate at which a block is dropped, which grows from the first to the last."""
    earlier = sum(stage.depth for stage in config.stages[:level])
    return config.drop_path * (earlier + index) / max(1, sum(stage.depth for stage in config.stages) - 1)


def _build_block(config: PyramidConfig, level: int, index: int) -> Block:
    width = config.stages[level].width
    return Block(
        width,
        attention=_build_attention(config, level, index),
        mlp=FeedForward(width, config.mlp_ratio * width, dropout=config.dropout),
        norm_eps=config.norm_eps,
        place=config.block_norm,
        drop_path=_rate(config, level, index),
    )


def _build_pooling(config: PyramidConfig, level: int) -> PoolingBlock:
    before, stage, attention = config.stages[level - 1].width, config.stages[level], config.block_attentions[level][0]
    window = attention.window if isinstance(attention, parts.WindowedAttention) else None
    return PoolingBlock(
        before,
        stage.width,
        attention=PooledAttention(
            before,
            stage.width,
            stage.num_heads,
            window=window,
            qkv_bias=config.qkv_bias,
            dropout=config.dropout,
        ),
        mlp=FeedForward(stage.width, config.mlp_ratio * stage.width, dropout=config.dropout),
        norm_eps=config.norm_eps,
        drop_path=_rate(config, level, 0),
    )


def _build_merge(config: PyramidConfig, level: int) -> nn.Module:
    before, after = config.stages[level - 1].width, config.stages[level].width
    match config.merging:
        case parts.PatchMerging(norm=place):
            return PatchMerge(before, after, place=place, norm_eps=config.norm_eps)
        case parts.GridPooling():
            return GridPool(before, after, prefix=config.prefix.count > 0)
        case parts.QueryPooling():
            raise AssertionError("query pooling is a block")


def _build_attention(config: PyramidConfig, level: int, index: int) -> Attention:
    width, num_heads, grid = config.stages[level].width, config.stages[level].num_heads, config.grids[level]
    attention, position, padding = config.block_attentions[level][index], None, None
    if isinstance(attention, parts.WindowedAttention):
        attention, padding = attention.but(window=attention.span(grid)), attention.window_padding
    match config.position:
        case parts.RelativeBias(convention=convention):
            position = RelativeTable(attention.span(grid), num_heads, window_padding=padding, convention=convention)
        case parts.RelativeMlp() as spec:
            position = OffsetMlp(spec, attention.span(grid), num_heads, window_padding=padding, stage=level)
    return Attention(
        width,
        num_heads,
        mix=build_mix(attention, grid=grid, shifted=index % 2 == 1),
        qkv_bias=config.qkv_bias,
        cosine=config.cosine_attention,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        position=position,
    )
