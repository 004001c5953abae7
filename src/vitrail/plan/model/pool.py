"""The cost of pooling: tokens → one vector per image."""

from __future__ import annotations

from vitrail.config import PyramidConfig, ViTConfig
from vitrail.parts import AttentionPool, ClsMeanPool, ClsPool, MaxPool, MeanPool, Mlp
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, fused_mix, unbind_heads
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.mlp import mlp
from vitrail.plan.model.norm import norm
from vitrail.plan.tape import Tape

__all__ = ["pool"]


@module
def pool(t: Tape, c: ViTConfig | PyramidConfig, n: Sizes, x: Tensor) -> Tensor:
    match c.pool:
        case ClsPool():
            return ops.narrow(t, x, n.batch * n.width * (1 + c.prefix.distillation))
        case MeanPool():
            return ops.mean(t, _patches(t, c, n, x), n.batch * n.width)
        case ClsMeanPool():
            mean = ops.mean(t, _patches(t, c, n, x), n.batch * n.width)
            return ops.cat(t, ops.narrow(t, x, n.batch * n.width), mean)
        case MaxPool():
            bare = isinstance(c, ViTConfig) and c.final_norm == "none" and c.neck is None
            if t.train and not c.prefix.count and bare:
                t.approximate("max pooling without prefix and final norm copies a gradient, which is not modelled")
            return ops.amax(t, "pool", _patches(t, c, n, x), n.batch * n.width)
    assert isinstance(c, ViTConfig)
    return attention_pool(t, c, c.pool, n, x)


@module
def attention_pool(t: Tape, c: ViTConfig, spec: AttentionPool, n: Sizes, x: Tensor) -> Tensor:
    d, keys = n.width, n.tokens
    if c.prefix.count and not spec.prefix:
        x, keys = _patches(t, c, n, x), n.patches
        if n.batch > 1:  # the patches of a single image are already contiguous
            x = ops.copy(t, x)
    if c.final_norm == "none" and c.prefix.count == 0:
        t.approximate("attention pooling without prefix and final norm copies its tokens, which is not modelled")
    t.count_once("pool.q")  # the query is learned, and the same for all images
    q = ops.Linear(t, "pool.q", t.weight("pool", d, "query", rows=1), d, d)
    q = ops.expand(t, q, n.batch * d)
    k, v = unbind_heads(t, ops.Linear(t, "pool.kv", x, d, 2 * d), 2, d)
    mixed, copies = fused_mix(t, "pool", q, k, v, Problem(n.batch, spec.num_heads, 1, keys, d // spec.num_heads))
    x = ops.Linear(t, "pool.out", ops.copy(t, mixed) if copies else mixed, d, d)
    kind = Mlp(width=spec.mlp_width, activation=spec.activation)
    x = ops.add(t, x, mlp(t, kind, d, norm(t, c.norm, "pool.norm", x, d), "pool.mlp"))
    return ops.narrow(t, x, n.batch * d)


def _patches(t: Tape, c: ViTConfig | PyramidConfig, n: Sizes, x: Tensor) -> Tensor:
    return ops.narrow(t, x, n.batch * n.patches * n.width) if c.prefix.count else x
