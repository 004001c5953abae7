"""The encoder, arranged for inference: only what pooling reads is computed, and nothing is copied.

Equal to the model's own `vector` up to rounding. Layer scales are folded into the linear layers before them,
activations are computed in place, and the last block of a CLS-pooled model computes only the pooled tokens, which is
exact: the others would be discarded.

Shapes: B images, T tokens, R tokens of packed images, D width, h heads, d = D/h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nn.attention import FullMix
from vitrail.nn.block import Block
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import ACTIVATIONS, FeedForward, GatedFeedForward
from vitrail.nn.pool import ClsAndDistillationPooling, ClsPooling
from vitrail.nn.rotary import Rotation
from vitrail.nn.vit import ViT
from vitrail.vectors.engines.merged import Merged

__all__ = [
    "Dense",
    "Group",
    "LeanBlock",
    "Map",
    "Norm",
    "Stage",
    "dense_of",
    "kept_tokens",
    "lean_blocks",
    "norm_of",
    "of_groups",
]

Map = Callable[[Tensor], Tensor]
Stage = Callable[[Tensor, Layout, Rotation | Tensor | None], Tensor]
"""(tokens (B, T, D), their layout, what positions do inside attention) → tokens."""


class Dense:
    """x Wᵀ + b."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Norm:
    """Layer or RMS norm with its own affine part, into which the next layer's first step can be folded."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float, *, rms: bool = False) -> None:
        self.weight, self.bias, self.eps, self.rms = weight, bias, eps, rms

    def __call__(self, x: Tensor) -> Tensor:
        if not self.rms:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        x = F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return x if self.bias is None else x.add_(self.bias)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Consecutive images among packed tokens, whose attention is computed together: they have one grid, and where
    tokens represent several patches, there is one image."""

    count: int
    layout: Layout
    tokens: int
    position: Rotation | Tensor | None
    merged: Merged | None = None
    """Which token represents which patch; None if every patch has its own."""

    @property
    def rows(self) -> int:
        return self.count * self.tokens

    @cached_property
    def counted(self) -> Tensor | None:
        """(1, 1, 1, T): the bias that counts a key as often as the patches that it represents; None for once."""
        if self.merged is None:
            return None
        return F.pad(self.merged.sizes.log(), (self.layout.prefix, 0))[None, None, None]

    def every_patch(self, x: Tensor) -> Tensor:
        """(count, tokens, D) → a token for every patch; kept tokens of the prefix stay as they are."""
        if self.merged is None or self.tokens <= self.layout.prefix:
            return x
        return self.merged.spread(x, self.layout.prefix)


class LeanBlock:
    """A block for inference. `qkv` is one layer, or two (q; k and v) in a last block that keeps only some tokens."""

    def __init__(self, block: Block, keep: int | None = None) -> None:
        attention = block.attention
        self.attention, self.keep = attention, keep
        self.head_width = attention.out.weight.shape[1] // attention.num_heads
        self.norm1: Norm | Map = norm_of(block.norm1)
        self.norm2: Norm | Map = norm_of(block.norm2)
        weight, bias = attention.qkv.weight.detach(), attention.qkv_bias()
        bias = None if bias is None else bias.detach()
        if keep is None:
            self.qkv = [Dense(weight, bias)]
        else:
            width = weight.shape[1]
            parts = weight.split([width, 2 * width])
            biases = [None, None] if bias is None else bias.split([width, 2 * width])
            self.qkv: list[Map] = [Dense(part, each) for part, each in zip(parts, biases, strict=True)]
        self.out: Map = dense_of(attention.out, block.scale1)
        mlp = block.mlp
        assert isinstance(mlp, FeedForward | GatedFeedForward)
        self.fc1: Map = dense_of(mlp.fc1)
        self.fc2: Map = dense_of(mlp.fc2, block.scale2)
        self.between = _between(mlp)
        if block.place == "after":
            self.norm1, self.out = _same, _then(self.out, self.norm1)
            self.norm2, self.fc2 = _same, _then(self.fc2, self.norm2)

    def __call__(self, x: Tensor, layout: Layout, position: Rotation | Tensor | None) -> Tensor:
        h, keep = self.norm1(x), slice(self.keep)
        mixed = self.attend(self.project(h, h[:, keep]), layout, position)
        return self.with_mlp(x[:, keep] + self.out(mixed))

    def project(self, x: Tensor, kept: Tensor) -> list[Tensor]:
        """Normalised tokens (…, D) → [q, k, v concatenated], or [q of the kept tokens, k and v of all]."""
        return [layer(each) for layer, each in zip(self.qkv, (kept, x)[-len(self.qkv) :], strict=True)]

    def attended(self, x: Tensor, groups: Sequence[Group]) -> tuple[Tensor, Sequence[Group]]:
        """Packed tokens (R, D) → those after attention, or only the kept ones, with their groups."""
        h = self.norm1(x)
        after, kept, residual = groups, h, x
        if self.keep is not None:
            after = [replace(group, tokens=self.keep) for group in groups]
            kept, residual = (_first(rows, groups, self.keep) for rows in (h, x))
        projected = self.project(h, kept)
        sizes = (after, groups)[-len(projected) :]
        split = [each.split([group.rows for group in of]) for each, of in zip(projected, sizes, strict=True)]
        mixed = [
            self.attend(
                [part.view(group.count, -1, part.shape[-1]) for part in parts],
                group.layout,
                group.position,
                group.counted,
            ).flatten(0, 1)
            for group, *parts in zip(groups, *split, strict=True)
        ]
        return residual + self.out(torch.cat(mixed)), after

    def attend(
        self,
        projected: list[Tensor],
        layout: Layout,
        position: Rotation | Tensor | None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """The result of `project`, (B, T, …) → attention of the kept tokens, before the output projection."""
        q, k, v = self.heads(projected)
        q, k, bias = self.attention.placed(q, k, layout, position)
        bias = counted if bias is None else bias  # positions that bias scores need a grid, and are refused with counts
        if self.keep is None:
            mixed = self.attention.mixed(q, k, v, layout, bias, 0.0)
        else:
            bias = bias[..., : self.keep, :] if isinstance(bias, Tensor) else None
            mixed = FullMix(fused=True)(q, k, v, layout, bias, 0.0)
        return self.attention.joined(mixed)

    def with_mlp(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.between(self.fc1(self.norm2(x))))

    def heads(self, projected: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The result of `project` → q, k, v, each (B, h, T, d); q has the kept tokens only."""
        heads = self.attention.num_heads
        split = [part.unflatten(-1, (-1, heads, self.head_width)).permute(2, 0, 3, 1, 4) for part in projected]
        q, k, v = (each for part in split for each in part.unbind(0))
        return *self.attention.normed(q, k), v


def of_groups(x: Tensor, groups: Sequence[Group]) -> Iterator[tuple[Tensor, Group]]:
    """(R, D) → the tokens of every group, (count, tokens, D)."""
    for part, group in zip(x.split([group.rows for group in groups]), groups, strict=True):
        yield part.view(group.count, group.tokens, -1), group


def lean_blocks(model: ViT, *, keep: int | None) -> list[LeanBlock]:
    """Return the model's blocks for inference; the last computes only the first `keep` tokens, if given."""
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    return [*(LeanBlock(block) for block in blocks[:-1]), LeanBlock(blocks[-1], keep)]


def kept_tokens(model: ViT) -> int | None:
    """Return how many leading tokens the pool reads; None for all."""
    last = model.blocks[-1]
    assert isinstance(last, Block)
    if not isinstance(last.attention.mix, FullMix):
        return None
    match model.pool:
        case ClsPooling():
            return 1
        case ClsAndDistillationPooling():
            return 2
    return None


def _first(x: Tensor, groups: Sequence[Group], tokens: int) -> Tensor:
    """(R, D) → the first tokens of every image."""
    parts = zip(x.split([group.rows for group in groups]), groups, strict=True)
    return torch.cat([part.view(group.count, group.tokens, -1)[:, :tokens].flatten(0, 1) for part, group in parts])


def norm_of(norm: nn.LayerNorm | nn.RMSNorm) -> Norm:
    if isinstance(norm, nn.LayerNorm):
        return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)
    assert norm.eps is not None
    return Norm(norm.weight.detach(), None, norm.eps, rms=True)


def dense_of(linear: nn.Linear, scale: Tensor | None = None) -> Dense:
    """Return the layer, with the layer scale after it folded in."""
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if scale is None:
        return Dense(weight, bias)
    return Dense(weight * scale.detach()[:, None], None if bias is None else bias * scale.detach())


def _same(x: Tensor) -> Tensor:
    return x


def _then(first: Map, second: Map) -> Map:
    return lambda x: second(first(x))


def _between(mlp: FeedForward | GatedFeedForward) -> Map:
    """Return what is between fc1 and fc2; it may work in place."""
    activated, norm = _activated(mlp), mlp.norm
    return activated if norm is None else lambda x: norm(activated(x))


def _activated(mlp: FeedForward | GatedFeedForward) -> Map:
    if isinstance(mlp, GatedFeedForward):
        return _gated
    if mlp.activation is F.gelu:
        return torch.ops.aten.gelu_.default
    if mlp.activation is ACTIVATIONS["gelu_tanh"]:
        return _gelu_tanh_
    return mlp.activation


def _gelu_tanh_(x: Tensor) -> Tensor:
    return torch.ops.aten.gelu_.default(x, approximate="tanh")


def _gated(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(value)
