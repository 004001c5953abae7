"""A pre-norm block and its parts on a tape, as `vitrail.nn` spells them.

Letters: B images, T tokens, D width, h heads, d = D/h.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionKind,
    FullAttention,
    LinearAttention,
    MlpKind,
    NoPosition,
    Position,
    Prefix,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SparseAttention,
    SwiGLU,
    WindowedAttention,
)
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, copy, unbind_heads
from vitrail.plan.model.rotary import Rotation, axial_rotation, mixed_rotation, relative_bias
from vitrail.plan.model.sparse_attention import full_mix, linear_mix, sparse_mix
from vitrail.plan.model.windowed_attention import Windows, windowed_mix
from vitrail.plan.tape import Tape, Tensor, module

__all__ = ["Encoder", "Numbers", "block", "drop_path", "mlp", "norm", "self_attention", "shares_position", "within"]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """What a block needs to know: a ViTConfig says it, and so do the stages of the other models."""

    grid: Size
    mlp: MlpKind
    attention: AttentionKind = FullAttention()
    position: Position = NoPosition()
    prefix: Prefix = Prefix(cls=False)
    qkv_bias: str = "all"
    qk_norm: bool = False
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0


@dataclass
class Numbers:
    """The sizes of a ViT."""

    batch: int
    channels: int
    patch: int
    """Pixels of a patch."""
    pixels: int
    """Pixels of the image."""
    grid: int
    """Patches per image."""
    cells: int
    """Places of the grid: patches, but for adaptive ones."""
    tokens: int
    offsets: int
    """Between patches of the grid: (2·rows − 1)·(2·columns − 1)."""
    width: int
    depth: int
    num_heads: int
    mlp_width: int
    classes: int

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


@module
def norm(t: Tape, n: Numbers, x: Tensor, path: str) -> Tensor:
    return ops.layer_norm(t, path, x, n.width)


@module
def block(
    t: Tape,
    c: ViTConfig | Encoder,
    n: Numbers,
    x: Tensor,
    path: str,
    rate: float,
    shared: Rotation | Tensor | None,
    shifted: bool,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        return attention(t, c, n, norm(t, n, x, f"{path}.norm1"), f"{path}.attention", shared, shifted)

    def feed_forward(x: Tensor) -> Tensor:
        return mlp(t, c.mlp, n.width, n.mlp_width, norm(t, n, x, f"{path}.norm2"), f"{path}.mlp", c.dropout)

    x = _add(t, c, n, x, attend(x), path, "scale1", rate)
    return _add(t, c, n, x, feed_forward(x), path, "scale2", rate)


def _add(
    t: Tape, c: ViTConfig | Encoder, n: Numbers, x: Tensor, branch: Tensor, path: str, scale: str, rate: float
) -> Tensor:
    if c.layer_scale is not None:
        branch = ops.multiply(t, path, branch, t.parameter(path, n.width, scale), spread=True)
    return ops.add(t, x, drop_path(t, path, n, branch, rate) if t.train else branch)


def drop_path(t: Tape, path: str, n: Numbers, branch: Tensor, rate: float) -> Tensor:
    if rate == 0:
        return branch
    drawn = t.new(n.batch, branch.size)  # before it is scaled
    kept = ops.multiply(t, path, branch, t.new(n.batch, branch.size), spread=True)
    del drawn
    return kept


@module
def attention(
    t: Tape, c: ViTConfig | Encoder, n: Numbers, x: Tensor, path: str, shared: Rotation | Tensor | None, shifted: bool
) -> Tensor:
    q, k, v = heads(t, c, n, x, path)
    position = shared if shares_position(c) else within(t, c, n, f"{path}.position", q.size)
    bias = None
    if isinstance(position, Rotation):
        q, k = position.turn(t, path, q), position.turn(t, path, k)
    elif position is not None:
        bias = position
    mixed, heads_first = mix(t, c, n, path, q, k, v, bias, shifted)
    x = ops.linear(t, f"{path}.out", copy(t, mixed) if heads_first else mixed, n.width, n.width)
    return ops.dropout(t, path, x, c.dropout)


def self_attention(t: Tape, n: Numbers) -> Problem:
    """Every token is a query and a key."""
    if n.head_width == 1:
        t.approximate("heads of one value: which of them are copied is not proven")
    return Problem(n.batch, n.num_heads, n.tokens, n.tokens, n.head_width)


def mix(
    t: Tape,
    c: ViTConfig | Encoder,
    n: Numbers,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    shifted: bool,
) -> tuple[Tensor, bool]:
    p = self_attention(t, n)
    in_order = c.qk_norm
    match c.attention:
        case FullAttention():
            return full_mix(t, path, q, k, v, p, bias, c.attention_dropout if t.train else 0.0, in_order)
        case LinearAttention():
            return linear_mix(t, path, q, k, v, p, in_order)
        case WindowedAttention() as spec:
            zeros = spec.window_padding == "zeros"
            windows = Windows.of(c.grid, spec.window, shifted=shifted and spec.shift, zeros=zeros)
            empty = padding(t, c, n, path) if zeros and windows.padded else None
            return windowed_mix(t, path, q, k, v, p, windows, c.prefix.count, bias, empty, in_order)
        case SparseAttention():
            return sparse_mix(t, path, q, k, v, p, c.grid, c.prefix.count, in_order)


def padding(t: Tape, c: ViTConfig | Encoder, n: Numbers, path: str) -> tuple[Tensor, Tensor]:
    """Key and value of a token that is zero before it is projected: the projection's biases."""
    bias = qkv_bias(t, c, n, path)
    if bias is True:
        bias = t.parameter(f"{path}.qkv", 3 * n.width, "bias")
    elif bias is False:
        bias = t.new(3 * n.width, t.size)
    _, k, v = ops.split(t, bias, n.width, n.width, n.width)
    return qk_norm(t, n, k, f"{path}.k_norm") if c.qk_norm else k, v


def qkv_bias(t: Tape, c: ViTConfig | Encoder, n: Numbers, path: str) -> bool | Tensor:
    """The projection's own, or one that is made of the queries' and the values'."""
    if c.qkv_bias != "no_key":
        return c.qkv_bias == "all"
    q_bias, v_bias = (t.parameter(path, n.width, name) for name in ("q_bias", "v_bias"))
    return ops.cat(t, q_bias, t.new(n.width, t.size), v_bias)


def heads(t: Tape, c: ViTConfig | Encoder, n: Numbers, x: Tensor, path: str) -> list[Tensor]:
    bias = qkv_bias(t, c, n, path)
    q, k, v = unbind_heads(t, ops.linear(t, f"{path}.qkv", x, n.width, 3 * n.width, bias), 3, n.width)
    if c.qk_norm:
        q, k = qk_norm(t, n, q, f"{path}.q_norm"), qk_norm(t, n, k, f"{path}.k_norm")
    return [q, k, v]


@module
def qk_norm(t: Tape, n: Numbers, x: Tensor, path: str) -> Tensor:
    return ops.layer_norm(t, path, x, n.head_width)


@module
def mlp(t: Tape, spec: MlpKind, width: int, hidden: int, x: Tensor, path: str, rate: float) -> Tensor:
    if isinstance(spec, SwiGLU):
        inner = x.count // width * hidden
        gate, value = ops.split(t, ops.linear(t, f"{path}.fc1", x, width, 2 * hidden), inner, inner)
        x = ops.dropout(t, path, ops.multiply(t, path, ops.activate(t, path, gate), value), rate)
    else:
        inner = activation(t, path, spec.activation, ops.linear(t, f"{path}.fc1", x, width, hidden))
        x = ops.dropout(t, path, inner, rate)
        del inner
    return ops.dropout(t, path, ops.linear(t, f"{path}.fc2", x, hidden, width), rate)


def activation(t: Tape, path: str, name: str, x: Tensor) -> Tensor:
    if name != "quick_gelu":
        return ops.activate(t, path, x)
    return ops.multiply(t, path, x, ops.saving_output(t, path, ops.fresh(t, x)))


def shares_position(c: ViTConfig | Encoder) -> bool:
    """What acts inside attention is computed once for all blocks."""
    return isinstance(c.position, Rotary) or (isinstance(c.position, RelativeBias) and c.position.shared)


def within(t: Tape, c: ViTConfig | Encoder, n: Numbers, path: str, size: int) -> Rotation | Tensor | None:
    """What a position contributes inside attention: a rotation, a bias, or nothing."""
    match c.position:
        case Rotary(coordinates=coordinates):
            return axial_rotation(t, n.tokens, n.head_width, size, coordinates == "normalised")
        case RotaryMixed():
            return mixed_rotation(t, path, n.grid, n.tokens, n.num_heads, n.head_width, size)
        case RelativeBias(prefix=framed):
            heads, prefix = n.num_heads, c.prefix.count
            if isinstance(c.attention, WindowedAttention):
                window = Windows.of(c.grid, c.attention.window, shifted=False).window
                offsets = (2 * window.height - 1) * (2 * window.width - 1)
                return relative_bias(t, path, offsets, window.area, heads, 0, 0)
            return relative_bias(t, path, n.offsets, n.grid, heads, 3 if framed else 0, prefix)
    return None
