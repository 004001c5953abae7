"""The cost of multi-head self-attention.

Every kind of attention takes queries, keys and values, each (B, h, T, d). `in_order` means that queries and keys are
stored heads first; otherwise they are views of one projection, and a matrix product copies them. Every kind also
returns whether its result is stored heads first, so that merging the heads copies it.

Letters: B images, T tokens, D width, h heads, d = D/h.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import NormKind, NormPlace, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionKind,
    DecomposedBias,
    FullAttention,
    LinearAttention,
    MlpKind,
    NoPosition,
    Position,
    Prefix,
    RelativeBias,
    RelativeMlp,
    Rotary,
    Rotary3d,
    RotaryMixed,
    SparseAttention,
    WindowedAttention,
)
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, fused_mix, product, softmax, unbind_heads
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.linear_attention import linear_mix
from vitrail.plan.model.norm import norm
from vitrail.plan.model.query_bias import QueryBias, query_bias
from vitrail.plan.model.relative import offset_mlp, relative_bias
from vitrail.plan.model.rotary import Rotation, axial_rotation, mixed_rotation
from vitrail.plan.model.sparse_attention import sparse_mix
from vitrail.plan.model.windowed_attention import CutGrid, windowed_mix
from vitrail.plan.tape import Tape
from vitrail.plan.tensor_parallel import column_linear, row_linear

__all__ = ["Encoder", "attention", "self_attention", "shares_position", "softmax_attention", "within"]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The settings of a block: the fields of a ViTConfig that the stages of the other models need too."""

    grid: Size
    steps: int = 1
    mlp: MlpKind
    attention: AttentionKind = FullAttention()
    position: Position = NoPosition()
    prefix: Prefix = Prefix(cls=False)
    qkv_bias: str = "all"
    qk_norm: bool = False
    cosine_attention: bool = False
    attention_norm: bool = False
    out_bias: bool = True
    block_norm: NormPlace = "before"
    norm: NormKind = "layer"
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0


@module
def attention(
    t: Tape, c: ViTConfig | Encoder, n: Sizes, x: Tensor, path: str, shared: Rotation | Tensor | None, shifted: bool
) -> Tensor:
    q, k, v = heads(t, c, n, x, path)
    own = n.split(t.ways)
    q, k, bias = placed(t, c, own, q, k, path, shared)
    mixed, heads_first = mix(t, c, own, path, q, k, v, bias, shifted)
    joined = ops.copy(t, mixed) if heads_first else mixed
    if c.attention_norm:
        joined = norm(t, c.norm, f"{path}.norm", joined, n.width)
    x = row_linear(t, f"{path}.out", joined, n.width, n.width, c.out_bias)
    del joined  # a temporary of the module's, gone before the dropout
    return ops.dropout(t, path, x, c.dropout)


def placed(
    t: Tape, c: ViTConfig | Encoder, n: Sizes, q: Tensor, k: Tensor, path: str, shared: Rotation | Tensor | None
) -> tuple[Tensor, Tensor, Tensor | QueryBias | None]:
    if isinstance(c.position.inside, DecomposedBias):
        span, ordered = c.attention.span(c.grid), c.qk_norm or c.cosine_attention
        return q, k, query_bias(t, f"{path}.position", q, self_attention(t, n), c.grid, span, ordered)
    position = shared if shares_position(c) else within(t, c, n, f"{path}.position", q.size)
    if isinstance(position, Rotation):
        return position.rotate(t, path, q), position.rotate(t, path, k), None
    return q, k, position


def self_attention(t: Tape, n: Sizes) -> Problem:
    """Return the sizes of self-attention, in which every token is a query and a key."""
    if n.head_width == 1:
        t.approximate("heads of width 1: which tensors are copied is not verified")
    return Problem(n.batch, n.num_heads, n.tokens, n.tokens, n.head_width)


def mix(
    t: Tape,
    c: ViTConfig | Encoder,
    n: Sizes,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | QueryBias | None,
    shifted: bool,
) -> tuple[Tensor, bool]:
    p = self_attention(t, n)
    in_order = c.qk_norm or c.cosine_attention
    match c.attention:
        case FullAttention():
            return full_mix(t, path, q, k, v, p, bias, c.attention_dropout if t.train else 0.0, in_order)
        case LinearAttention():
            return linear_mix(t, path, q, k, v, p, in_order)
        case WindowedAttention() as spec:
            zeros = spec.window_padding == "zeros"
            windows = CutGrid(c.grid, spec.window, c.prefix.count, shifted=shifted and spec.shift, zeros=zeros)
            empty = padding(t, c, n, path) if zeros and windows.sticks_out else None
            return windowed_mix(t, path, q, k, v, p, windows, c.prefix.count, bias, empty, in_order)
        case SparseAttention():
            return sparse_mix(t, path, q, k, v, p, c.grid, c.prefix.count, in_order)


def full_mix(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Problem,
    bias: Tensor | QueryBias | None,
    rate: float,
    in_order: bool,
) -> tuple[Tensor, bool]:
    shared = not isinstance(bias, QueryBias)
    if isinstance(bias, QueryBias):
        bias = bias.whole(t)
    if t.explicit:
        return softmax_attention(t, path, q, k, v, p, rate, bias, in_order, shared), not p.merges
    return fused_mix(t, path, q, k, v, p, bias, in_order, shared=shared)


def softmax_attention(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Problem,
    rate: float,
    bias: Tensor | None,
    in_order: bool,
    shared: bool = True,
) -> Tensor:
    """softmax(QKᵀ/√d + bias)V in explicit steps. Heads that are not `in_order` are copied for the products."""
    scores = _scores(t, path, ops.fresh(t, q), k, p, in_order)
    if bias is not None:
        scores = ops.add(t, scores, bias, "attention_maps", spread=shared)
    weights = ops.dropout(t, path, softmax(t, path, scores), rate)
    copies = False, not p.single
    mixed = product(t, path, weights, v, p.matrices, p.queries, p.keys, p.head_width, copies=copies)
    return mixed if p.single or p.queries == 1 else ops.copied_back(t, mixed)


@module
def _scores(t: Tape, path: str, q: Tensor, k: Tensor, p: Problem, in_order: bool) -> Tensor:
    ordered = in_order or p.single
    copies = not ordered and p.queries > 1, not ordered
    return product(t, path, q, k, p.matrices, p.queries, p.head_width, p.keys, "attention_maps", copies=copies)


def padding(t: Tape, c: ViTConfig | Encoder, n: Sizes, path: str) -> tuple[Tensor, Tensor]:
    """Return key and value of a token that is zero before the projection: the projection's biases."""
    bias = qkv_bias(t, c, n, path)
    if bias is True:
        bias = t.parameter(f"{path}.qkv", 3 * n.width, "bias")
    elif bias is False:
        bias = t.new(3 * n.width, t.size)
    _, k, v = ops.split(t, bias, n.width, n.width, n.width)
    return _head_norm(t, c, f"{path}.k_norm", k, n.head_width), v


def qkv_bias(t: Tape, c: ViTConfig | Encoder, n: Sizes, path: str) -> bool | Tensor:
    """Return whether the projection has a bias, or the bias concatenated from those of queries and values."""
    if c.qkv_bias != "no_key":
        return c.qkv_bias == "all"
    q_bias, v_bias = (t.parameter(path, n.width, name) for name in ("q_bias", "v_bias"))
    return ops.cat(t, q_bias, t.new(n.width, t.size), v_bias)


def heads(t: Tape, c: ViTConfig | Encoder, n: Sizes, x: Tensor, path: str) -> list[Tensor]:
    bias = qkv_bias(t, c, n, path)
    qkv = column_linear(t, f"{path}.qkv", x, n.width, 3 * n.width, bias)
    q, k, v = unbind_heads(t, qkv, 3, n.width // t.ways)
    del qkv
    q = _head_norm(t, c, f"{path}.q_norm", q, n.head_width)
    k = _head_norm(t, c, f"{path}.k_norm", k, n.head_width)
    if c.cosine_attention:
        q = ops.multiply(t, path, q, _scale(t, path, n.num_heads), spread=True)
    return [q, k, v]


def _head_norm(t: Tape, c: ViTConfig | Encoder, path: str, x: Tensor, width: int) -> Tensor:
    if c.cosine_attention:
        return ops.RMSNorm(t, path, x, width, False)
    return norm(t, c.norm, path, x, width) if c.qk_norm else x


def _scale(t: Tape, path: str, heads: int) -> Tensor:
    """The scale of cosines per head: clamped, its exponential, divided by √d."""
    scale = ops.activate(t, path, t.parameter(path, heads, "scale", rows=heads))
    return ops.fresh(t, ops.saving_output(t, path, scale))


def shares_position(c: ViTConfig | Encoder) -> bool:
    """Return whether a position inside attention is computed once for all blocks."""
    return c.position.inside is not None and not c.position.inside.per_block


def within(t: Tape, c: ViTConfig | Encoder, n: Sizes, path: str, size: int) -> Rotation | Tensor | None:
    """Return what a position contributes inside attention: a rotation, a bias, or None."""
    match c.position.inside:
        case Rotary() | Rotary3d():
            return axial_rotation(t, n.tokens, n.head_width, size)
        case RotaryMixed():
            return mixed_rotation(t, path, n.patches, n.tokens, n.num_heads, n.head_width, size)
        case RelativeBias(prefix=framed):
            prefix = 0 if isinstance(c.attention, WindowedAttention) else c.prefix.count
            return relative_bias(t, path, c.attention.span(c.grid), n.num_heads, 3 if framed else 0, prefix)
        case RelativeMlp() as spec:
            prefix = 0 if isinstance(c.attention, WindowedAttention) else c.prefix.count
            return offset_mlp(t, path, spec, c.attention.span(c.grid), n.num_heads, prefix)
    return None
