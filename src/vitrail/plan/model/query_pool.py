"""The cost of query pooling, and of tiled positions."""

from __future__ import annotations

from vitrail.geometry import Size, halved
from vitrail.parts import FullAttention, Mlp, TiledTable, WindowedAttention
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, fused_mix, sdpa, unbind_heads
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.block import drop_path
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.mlp import mlp
from vitrail.plan.model.windowed_attention import CutGrid, join_windows, split_windows
from vitrail.plan.tape import Tape

__all__ = ["pooling_block", "tiled_tables"]


@module
def pooled_attention(
    t: Tape,
    path: str,
    x: Tensor,
    before: Sizes,
    n: Sizes,
    grid: Size,
    spec: FullAttention | WindowedAttention,
    bias: bool,
) -> Tensor:
    qkv = ops.Linear(t, f"{path}.qkv", x, before.width, 3 * n.width, bias)
    q, k, v = unbind_heads(t, qkv, 3, n.width)
    del qkv
    q = ops.amax(t, path, q, q.count // 4)
    if isinstance(spec, WindowedAttention):
        mixed = _in_windows(t, path, q, k, v, n, grid, spec.window, bias)
        joined = mixed if n.num_heads == 1 else ops.copy(t, mixed)
    else:
        p = Problem(n.batch, n.num_heads, n.patches, before.patches, n.head_width)
        mixed, heads_first = fused_mix(t, path, q, k, v, p, in_order=True)  # pooled queries are stored heads first
        joined = ops.copy(t, mixed) if heads_first else mixed
    x = ops.Linear(t, f"{path}.out", joined, n.width, n.width)
    del joined
    return x


def _in_windows(
    t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, n: Sizes, grid: Size, window: Size, bias: bool
) -> Tensor:
    whole = CutGrid(grid, window, shifted=False, zeros=True)
    half = CutGrid(halved(grid), halved(whole.window), shifted=False, zeros=True)
    if half.thin:
        t.approximate("pooled queries in windows of whole rows, or one in a row or column: copies are not verified")
    key: Tensor | None = None
    value: Tensor | None = None
    if whole.sticks_out and bias:
        own = t.parameter(f"{path}.qkv", 3 * n.width, "bias")
        _, key, value = ops.split(t, own, n.width, n.width, n.width)
    p = Problem(n.batch, n.num_heads, n.patches, whole.grid.area, n.head_width)
    q_parts = split_windows(t, q, p, half, 0, None)
    k_parts, v_parts = (split_windows(t, x, p, whole, 0, fill) for x, fill in ((k, key), (v, value)))
    count = half.across.area
    problem = Problem(n.batch * count, n.num_heads, half.window.area, whole.window.area, n.head_width)
    mixed = sdpa(t, path, q_parts, k_parts, v_parts, problem)
    return mixed if half.in_place else join_windows(t, mixed, p, half)


@module
def pooling_block(
    t: Tape,
    path: str,
    x: Tensor,
    before: Sizes,
    n: Sizes,
    grid: Size,
    spec: FullAttention | WindowedAttention,
    inner: Mlp,
    bias: bool,
    dropout: float,
    rate: float,
) -> Tensor:
    def dropped(branch: Tensor) -> Tensor:
        return drop_path(t, path, n, branch, rate) if t.train else branch

    def attend(x: Tensor) -> Tensor:
        branch = pooled_attention(t, f"{path}.attention", x, before, n, grid, spec, bias)
        return dropped(ops.dropout(t, f"{path}.attention", branch, dropout))

    x = ops.LayerNorm(t, f"{path}.norm1", x, before.width)
    wide = [ops.Linear(t, f"{path}.shortcut", x, before.width, n.width)]
    shortcut = ops.amax(t, path, wide.pop(), n.batch * n.patches * n.width)
    x = ops.add(t, shortcut, attend(x))
    del shortcut
    normed = [ops.LayerNorm(t, f"{path}.norm2", x, n.width)]
    return ops.add(t, x, dropped(mlp(t, inner, n.width, normed.pop(), f"{path}.mlp", dropout)))


@module
def tiled_tables(t: Tape, spec: TiledTable, window: Size, n: Sizes, x: Tensor) -> Tensor:
    """Add a coarse table, interpolated, and a window's, repeated."""
    whole, size = n.patches * n.width, t.size
    coarse = t.parameter("position", spec.background.area * n.width, "table", rows=spec.background.area)
    own = t.parameter("position", window.area * n.width, "window", rows=window.area)
    fine = t.record(t.new(whole, size), (coarse,), None, lambda grad: (t.new(coarse.count, size),))
    tiled = [t.record(t.new(whole, size), (own,), None, lambda grad: (t.new(own.count, size),))]
    total = [ops.add(t, fine, tiled.pop())]
    return ops.add(t, x, total.pop(), spread=True)
