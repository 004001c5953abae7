"""MobileViT (arXiv 2110.02178): a small convolutional network with transformers over its coarser feature maps.

Those of a MobileViT v2 are in `separable.py`.
With basic residuals and no transformer in any stage it is a ResNet (arXiv 1512.03385).

Shapes: B images, C channels, H×W pixels, h×w a stage's feature map, c its width, D a transformer's width,
p×q the patch, N = (h/p)·(w/q) patches, E the width of the vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail import parts
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
from vitrail.nn.separable import SeparableTransformer, fold, unfold

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
        self.transformer = _build_transformer(stage, config) if stage.transformer_depth else None

    def forward(self, x: Tensor) -> Tensor:
        for residual in self.residuals:
            x = residual(x)
        return x if self.transformer is None else self.transformer(x)


def _build_transformer(stage: MobileStage, config: MobileConfig) -> MapTransformer | SeparableTransformer:
    width, depth = stage.transformer_width, stage.transformer_depth
    mlp_width, eps = config.mlp_ratio * width, config.norm_eps
    match config.attention:
        case parts.FullAttention(fused=fused):
            mix = FullMix(fused=fused)
            return MapTransformer(
                stage.width,
                width,
                depth=depth,
                patch=config.patch,
                num_heads=config.num_heads,
                mix=mix,
                mlp_width=mlp_width,
                norm_eps=eps,
            )
        case parts.SeparableAttention():
            return SeparableTransformer(
                stage.width, width, depth=depth, patch=config.patch, mlp_width=mlp_width, norm_eps=eps
            )


class MapTransformer(nn.Module):
    """A transformer over a feature map: each pixel of a patch attends to the same pixel of every patch."""

    def __init__(
        self,
        map_width: int,
        width: int,
        *,
        depth: int,
        patch: Size,
        num_heads: int,
        mix: FullMix,
        mlp_width: int,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.local = ConvNorm(map_width, map_width, kernel=3)
        self.into = nn.Conv2d(map_width, width, 1, bias=False)
        initialise(self.into.weight.data, followed_by="linear")
        self.blocks = nn.ModuleList(
            Block(
                width,
                attention=Attention(width, num_heads, mix=mix),
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
        # (B·p·q, N, D): the pixels of a patch move to the batch dimension
        tokens = unfold(self.into(self.local(x)), self.patch, grid).flatten(0, 1)
        for block in self.blocks:
            tokens = block(tokens, layout)
        branch = self.back(fold(self.norm(tokens).unflatten(0, (-1, self.patch.area)), self.patch, grid))
        return self.fuse(torch.cat([x, branch], dim=1))
