"""Multi-head self-attention: project to q, k, v; mix; project out. A `Mix` decides which tokens attend to which.

Shapes: B images, T tokens, D width, h heads, d = D/h.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.config import NormKind
from vitrail.geometry import Size
from vitrail.nn.layout import Layout
from vitrail.nn.linear_attention import LinearMix
from vitrail.nn.lora import LoraLinear
from vitrail.nn.mlp import linear
from vitrail.nn.norm import Norm, build_norm
from vitrail.nn.positions import AttentionPosition
from vitrail.nn.query_bias import Bias, OffsetVectors, QueryBias
from vitrail.nn.rotary import Rotation
from vitrail.nn.sparse_attention import SparseMix
from vitrail.nn.windowed_attention import Padding, WindowedMix

__all__ = ["Attention", "FullMix", "Mix", "build_mix", "softmax_attention", "within"]


class Mix(Protocol):
    """Queries, keys and values, each (B, h, T, d) → mixed values (B, h, T, d)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None, dropout: float
    ) -> Tensor: ...


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """softmax(QKᵀ/√d + bias)V in explicit steps: what the fused kernel computes."""
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.mT  # (B, h, T, T)
    if bias is not None:
        scores = scores + bias if bias.is_floating_point() else scores.masked_fill(~bias, -math.inf)
    return F.dropout(scores.softmax(dim=-1), dropout) @ v


class FullMix:
    """Every token attends to every token that is not padding."""

    def __init__(self, *, fused: bool) -> None:
        self.fused = fused

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None, dropout: float) -> Tensor:
        if isinstance(bias, QueryBias):
            bias = bias.whole()
        if layout.mask is not None:
            keys = layout.mask[:, None, None, :]
            bias = keys if bias is None else bias.masked_fill(~keys, -math.inf)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return softmax_attention(q, k, v, bias, dropout)


def build_mix(kind: parts.AttentionKind, *, grid: Size, shifted: bool) -> Mix:
    """Build the mix of one block; `grid` is the config's, and `shifted` says whether this block may shift windows."""
    match kind:
        case parts.FullAttention():
            return FullMix(fused=kind.fused)
        case parts.WindowedAttention():
            zeros_for = grid if kind.window_padding == "zeros" else None
            return WindowedMix(kind.window, shifted=shifted and kind.shift, zeros_for=zeros_for)
        case parts.SparseAttention():
            return SparseMix()
        case parts.LinearAttention():
            return LinearMix()


class Attention(nn.Module):
    """(B, T, D) → (B, T, D). A position inside attention is the block's own, or `shared` by all blocks."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        mix: Mix,
        qkv_bias: str = "all",
        qk_norm: bool = False,
        cosine: bool = False,
        out_norm: bool = False,
        out_bias: bool = True,
        norm: NormKind = "layer",
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        position: AttentionPosition | OffsetVectors | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.attention_dropout = num_heads, dropout, attention_dropout
        self.qkv = linear(width, 3 * width, bias=qkv_bias == "all")
        no_key = qkv_bias == "no_key"
        self.q_bias = nn.Parameter(torch.zeros(width)) if no_key else None
        self.v_bias = nn.Parameter(torch.zeros(width)) if no_key else None
        self.q_norm = _build_head_norm(qk_norm, cosine, norm, width // num_heads, norm_eps)
        self.k_norm = _build_head_norm(qk_norm, cosine, norm, width // num_heads, norm_eps)
        self.scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10))) if cosine else None
        self.position = position
        self.mix = mix
        self.norm = build_norm(norm, width, norm_eps) if out_norm else None
        self.out = linear(width, width, bias=out_bias)

    def forward(self, x: Tensor, layout: Layout, shared: Rotation | Tensor | None = None) -> Tensor:
        q, k, v = self.heads(x)
        q, k, bias = self.placed(q, k, layout, shared)
        mixed = self.mixed(q, k, v, layout, bias, self.attention_dropout if self.training else 0.0)
        x = self.out(self.joined(mixed))
        return F.dropout(x, self.dropout, self.training)

    def joined(self, mixed: Tensor) -> Tensor:
        """(B, h, T, d) → (B, T, D), normalised where the model does so before the output projection."""
        x = mixed.transpose(1, 2).flatten(2)
        return x if self.norm is None else self.norm(x)

    def placed(
        self, q: Tensor, k: Tensor, layout: Layout, shared: Rotation | Tensor | None
    ) -> tuple[Tensor, Tensor, Bias | None]:
        """Return rotated queries and keys, and a bias for their scores; `q` may be only the first few queries."""
        if isinstance(self.position, OffsetVectors):
            return q, k, self.position.bias(q, layout)
        position = shared if self.position is None else self.position.within(layout, k)
        if isinstance(position, Rotation):
            return position.first(q.shape[2]).rotate(q), position.rotate(k), None
        return q, k, position

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None, dropout: float) -> Tensor:
        """Queries, keys and values, each (B, h, T, d) → mixed values (B, h, T, d)."""
        padding = self.padding(layout)
        if padding is None:
            return self.mix(q, k, v, layout, bias, dropout)
        assert isinstance(self.mix, WindowedMix)
        return self.mix(q, k, v, layout, bias, dropout, padding)

    def padding(self, layout: Layout) -> Padding | None:
        """Return key and value, (1, h, 1, d) each, of the zero tokens that pad windows; None if no padding takes part.

        The tokens are zero before the projection, so their key and value are its biases.
        """
        if not (isinstance(self.mix, WindowedMix) and self.mix.needs_padding(layout)):
            return None
        bias = self.qkv_bias()
        if bias is None:
            bias = self.qkv.weight.new_zeros(self.qkv.out_features)
        _, k, v = (part.view(1, self.num_heads, 1, -1) for part in bias.chunk(3))
        return k if self.k_norm is None else self.k_norm(k), v

    def qkv_bias(self) -> Tensor | None:
        """Return the bias (3·D,), zero for keys that have none; None without biases."""
        if self.q_bias is None or self.v_bias is None:
            return self.qkv.bias
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def biased(self, x: Tensor) -> Tensor:
        """Project with the biases of queries and values, which are not the layer's own."""
        qkv = F.linear(x, self.qkv.weight, self.qkv_bias())
        return self.qkv.add_adapter(x, qkv) if isinstance(self.qkv, LoraLinear) else qkv

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) → q, k, v, each (B, h, T, d)."""
        qkv = self.qkv(x) if self.q_bias is None else self.biased(x)
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return *self.normed(q, k), v

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise queries and keys; for cosine attention, scale the queries too."""
        if self.q_norm is None or self.k_norm is None:
            return q, k
        q, k = self.q_norm(q), self.k_norm(k)
        if self.scale is not None:  # the norms leave vectors of length √d, and the softmax divides by √d once
            q = q * (self.scale.clamp(max=math.log(100)).exp() / math.sqrt(q.shape[-1]))
        return q, k


def _build_head_norm(qk_norm: bool, cosine: bool, kind: NormKind, width: int, eps: float) -> Norm | None:
    if cosine:
        return nn.RMSNorm(width, eps=1e-24, elementwise_affine=False)
    return build_norm(kind, width, eps) if qk_norm else None


def within(position: nn.Module | None, layout: Layout, like: Tensor) -> Rotation | Tensor | None:
    """Return what a position module contributes inside attention: a rotation, a bias, or None."""
    return position.within(layout, like) if isinstance(position, AttentionPosition) else None
