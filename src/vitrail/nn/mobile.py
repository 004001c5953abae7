"""MobileViT (arXiv 2110.02178): a small convolutional network with transformers over its coarser feature maps.

With basic residuals and no transformer in any stage it is a ResNet (arXiv 1512.03385).

Shapes: B images, C channels, H×W pixels, h×w a stage's feature map, c its width, D a transformer's width,
p×q the patch, N = (h/p)·(w/q) patches, E the width of the vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.config import MobileConfig, MobileStage
from vitrail.errors import require
from vitrail.geometry import Size, fit
from vitrail.nn.attention import Attention, FullMix
from vitrail.nn.block import Block
from vitrail.nn.head import Classifier, build_head
from vitrail.nn.image import check_image
from vitrail.nn.initialise import initialise
from vitrail.nn.intermediates import Intermediates
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import FeedForward
from vitrail.nn.pool import MeanPooling
from vitrail.nn.residuals import BasicResidual, ConvNorm, InvertedResidual

__all__ = ["MobileViT"]


class MobileViT(nn.Module, Intermediates, Classifier):
    """A stem, stages of residuals and transformers, a last 1×1 convolution if it has a width, mean pooling and a head.

    >>> MobileViT(MobileConfig(image="64x128"))(torch.zeros(1, 3, 64, 128)).shape
    torch.Size([1, 1000])
    """

    def __init__(self, config: MobileConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.stem_width, *(stage.width for stage in config.stages))
        self.stem = ConvNorm(config.channels, config.stem_width, kernel=3, stride=config.stem_stride)
        self.stages = nn.ModuleList(
            Stage(before, stage, config) for before, stage in zip(widths, config.stages, strict=False)
        )
        self.last = ConvNorm(widths[-1], config.last_width) if config.last_width else None
        self.head, self.distillation_head = build_head(config.vector_width, config.classes), None

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) → logits (B, classes), or the vector (B, E) of a model without a head."""
        return self.classify(self.vector(image))

    def vector(self, image: Tensor) -> Tensor:
        """(B, C, H, W) → (B, E)."""
        return self.pooled(*self.features(image))

    def pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """`features` → `vector`."""
        return MeanPooling()(x, layout)

    def features(self, image: Tensor) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → the last feature map as tokens (B, h·w, E), and their layout."""
        x = self.levels(image)[-1]
        return _as_tokens(x if self.last is None else self.last(x))

    def count_layers(self) -> int:
        return len(self.stages)

    def layer_features(self, image: Tensor, layers: frozenset[int], *, norm: bool) -> dict[int, tuple[Tensor, Layout]]:
        require(not norm, "norm=True has no final norm to apply in a mobile model; use norm=False")
        return {index: _as_tokens(x) for index, x in enumerate(self.levels(image)) if index in layers}

    def levels(self, image: Tensor) -> list[Tensor]:
        """(B, C, H, W) → the feature map (B, c, h, w) of every stage, finest first."""
        check_image(image, self.config.channels)
        self.config.check(Size(*image.shape[2:]))
        x, maps = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


def _as_tokens(x: Tensor) -> tuple[Tensor, Layout]:
    """(B, c, h, w) → (B, h·w, c) and their layout."""
    grid = Size(*x.shape[2:])
    return x.flatten(2).mT, Layout(grid=grid, frame=grid)


class Stage(nn.Module):
    """Residuals, the first of which may halve the feature map, then an optional transformer."""

    def __init__(self, before: int, stage: MobileStage, config: MobileConfig) -> None:
        super().__init__()
        residual = InvertedResidual if config.residual == "inverted" else BasicResidual
        self.residuals = nn.ModuleList(
            residual(
                stage.width if index else before,
                stage.width,
                expansion=config.expansion,
                stride=1 if index else stage.stride,
            )
            for index in range(stage.depth)
        )
        self.transformer = (
            MapTransformer(
                stage.width,
                stage.transformer_width,
                depth=stage.transformer_depth,
                patch=config.patch,
                num_heads=config.num_heads,
                mlp_width=config.mlp_ratio * stage.transformer_width,
                norm_eps=config.norm_eps,
            )
            if stage.transformer_depth
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        for residual in self.residuals:
            x = residual(x)
        return x if self.transformer is None else self.transformer(x)


class MapTransformer(nn.Module):
    """A transformer over a feature map: each pixel of a patch attends to the same pixel of every patch."""

    def __init__(
        self, map_width: int, width: int, *, depth: int, patch: Size, num_heads: int, mlp_width: int, norm_eps: float
    ) -> None:
        super().__init__()
        self.patch = patch
        self.local = ConvNorm(map_width, map_width, kernel=3)
        self.into = nn.Conv2d(map_width, width, 1, bias=False)
        initialise(self.into.weight.data, followed_by="linear")
        self.blocks = nn.ModuleList(
            Block(
                width,
                attention=Attention(width, num_heads, mix=FullMix(fused=True)),
                mlp=FeedForward(width, mlp_width, activation="silu"),
                norm_eps=norm_eps,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.back = ConvNorm(width, map_width)
        self.fuse = ConvNorm(2 * map_width, map_width, kernel=3)

    def forward(self, x: Tensor) -> Tensor:
        grid = fit(Size(*x.shape[2:]), self.patch).grid
        layout = Layout(grid=grid, frame=grid)
        tokens = self._unfold(self.into(self.local(x)), grid)
        for block in self.blocks:
            tokens = block(tokens, layout)
        branch = self.back(self._fold(self.norm(tokens), grid))
        return self.fuse(torch.cat([x, branch], dim=1))

    def _unfold(self, x: Tensor, grid: Size) -> Tensor:
        """(B, D, h, w) → (B·p·q, N, D): the pixels of a patch move to the batch dimension."""
        x = x.unflatten(3, (grid.width, self.patch.width)).unflatten(2, (grid.height, self.patch.height))
        return x.permute(0, 3, 5, 2, 4, 1).flatten(3, 4).flatten(0, 2)

    def _fold(self, x: Tensor, grid: Size) -> Tensor:
        """(B·p·q, N, D) → (B, D, h, w)."""
        x = x.unflatten(1, tuple(grid)).unflatten(0, (-1, *self.patch))  # (B, p, q, h/p, w/q, D)
        return x.permute(0, 5, 3, 1, 4, 2).flatten(4, 5).flatten(2, 3)
