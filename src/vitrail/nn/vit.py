"""The Vision Transformer: image → tokens → vector → logits.

Shapes: B images, C channels, H×W pixels, T tokens, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.attention import Attention, build_mix, within
from vitrail.nn.block import Block
from vitrail.nn.front import VisionFrontEnd, build_inside
from vitrail.nn.head import Classifier, build_head
from vitrail.nn.intermediates import Intermediates
from vitrail.nn.layout import Layout
from vitrail.nn.mergers import build_merger
from vitrail.nn.mlp import build_mlp
from vitrail.nn.neck import ConvNeck
from vitrail.nn.norm import build_norm
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.pool import build_pool

__all__ = ["ViT"]


class ViT(VisionFrontEnd, Intermediates, Classifier):
    """A front end, `depth` blocks, a norm, a pool and a head, as the config describes.

    >>> import torch
    >>> ViT(ViTConfig(width=192, depth=2, num_heads=3))(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 1000])
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        kind, width, eps = config.norm, config.width, config.norm_eps
        self.embedding_norm = build_norm(kind, width, eps) if config.embedding_norm else None
        self.blocks = nn.ModuleList(_build_block(config, index) for index in range(config.depth))
        last = eps if config.final_norm_eps is None else config.final_norm_eps
        self.norm = build_norm(kind, width, last) if config.final_norm != "none" else None
        self.neck = None if config.neck is None else ConvNeck(width, config.neck.width, norm=kind, norm_eps=last)
        self.pool = build_pool(config.pool, width, distillation=config.prefix.distillation, norm_eps=eps, norm=kind)
        distilled = config.classes if config.prefix.distillation else 0
        self.head = build_head(config.vector_width, config.classes, bias=config.head_bias)
        self.distillation_head = build_head(config.vector_width, distilled, bias=config.head_bias)
        self.merger = None if config.merger is None else build_merger(config.merger, width)

    def forward(self, image: Tensor, sizes: Sequence[Size] | None = None) -> Tensor:
        """(B, C, H, W) → logits (B, classes), or the vector (B, D) of a model without a head, or the tokens of one with
        a merger."""
        if self.merger is not None:
            return self.merger(*self.features(image, sizes))
        return self.classify(self.vector(image, sizes))

    def vector(self, image: Tensor, sizes: Sequence[Size] | None = None) -> Tensor:
        """(B, C, H, W) → the pooled vector (B, D); (B, 2, D) with a distillation token."""
        return self.pooled(*self.features(image, sizes))

    def features(self, image: Tensor, sizes: Sequence[Size] | None = None) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → the encoder's tokens (B, T, D), as pooling reads them, and their layout."""
        x, layout = self.embed(image, sizes)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        position = within(self.position, layout, x)
        for block in self.blocks:
            x = block(x, layout, position)
        return self.normed(x, layout), layout

    def count_layers(self) -> int:
        return len(self.blocks)

    def layer_features(self, image: Tensor, layers: frozenset[int], *, norm: bool) -> dict[int, tuple[Tensor, Layout]]:
        if norm and self.norm is None:
            raise VitrailError("norm=True has no final norm to apply in this model; use norm=False")
        x, layout = self.embed(image)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        position, features = within(self.position, layout, x), {}
        for index, block in enumerate(self.blocks[: max(layers) + 1]):
            x = block(x, layout, position)
            if index in layers:
                features[index] = (self.norm(x) if norm and self.norm is not None else x, layout)
        return features

    def normed(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the last block's tokens as pooling reads them: behind the neck, or normalised if `final_norm` is
        "tokens"."""
        if self.neck is not None:
            return self.neck(x, layout)
        return self.norm(x) if self.norm is not None and self.config.final_norm == "tokens" else x

    def pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """`features` → `vector`."""
        x = self.pool(x, layout)
        return self.norm(x) if self.norm is not None and self.config.final_norm == "pooled" else x

    def from_bytes(self, mean: Sequence[float], std: Sequence[float]) -> ViT:
        """Return a model for uint8 (B, H, W, C) with `(x/255 − mean)/std` folded in; the other weights are shared."""
        require(
            isinstance(self.embedding, PatchEmbed) and self.config.remainder == "error",
            f"{type(self.config.embedding).__name__} with remainder {self.config.remainder!r} cannot take bytes; "
            "use non-overlapping Patches with remainder 'error', or normalise first",
        )
        model = copy.copy(self)
        model._modules = dict(self._modules)
        model.embedding = self.embedding.from_bytes(mean, std)  # type: ignore[operator]
        return model


def _build_block(config: ViTConfig, index: int) -> Block:
    width, num_heads = config.width, config.num_heads
    inside = config.position.inside
    attention = Attention(
        width,
        num_heads,
        mix=build_mix(config.attention.at(index), grid=config.grid, shifted=index % 2 == 1),
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        cosine=config.cosine_attention,
        out_norm=config.attention_norm,
        out_bias=config.out_bias,
        norm=config.norm,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        position=build_inside(config, index) if inside is not None and inside.per_block else None,
    )
    return Block(
        width,
        attention=attention,
        mlp=build_mlp(config.mlp, width, dropout=config.dropout, norm=config.norm, norm_eps=config.norm_eps),
        norm=config.norm,
        norm_eps=config.norm_eps,
        place=config.block_norm,
        layer_scale=config.layer_scale,
        drop_path=config.drop_path * index / max(1, config.depth - 1),
    )
