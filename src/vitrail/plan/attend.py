"""Attention's operations on tensors without content: heads, softmax in the open, and PyTorch's fused kernels."""

from __future__ import annotations

from vitrail.plan.meter import Number
from vitrail.plan.ops import dropout
from vitrail.plan.tape import Tape, Tensor

__all__ = ["bmm", "copy", "multiply", "sdpa", "softmax", "softmax_attention", "unbind_heads"]


def unbind_heads(t: Tape, x: Tensor, parts: int) -> list[Tensor]:
    """(B, T, parts·D) → views (B, h, T, d); backward stacks their gradients and copies them into x's order."""
    count, size = x.count, x.size

    def backward(grads: dict[int, Tensor]):
        stacked = t.new(count, size)
        grads.clear()
        ordered = t.new(count, size)
        del stacked
        return (ordered,)

    first = t.record(Tensor(x.storage, count // parts, size), (x,), None, backward)
    return [Tensor(x.storage, first.count, size, first.node, slot) for slot in range(parts)]


def sdpa(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Number,
    queries: Number,
    keys: Number,
    head_width: Number,
    rate: float = 0.0,
) -> Tensor:
    """PyTorch's scaled_dot_product_attention over `heads` (images × heads) problems: flash where it can, else efficient."""
    v, k, q = t.cast(v, t.compute), t.cast(k, t.compute), t.cast(q, t.compute)
    size, flash = t.compute, t.kernel == "flash" and t.compute == 2
    flops = 4 * heads * queries * keys * head_width
    t.tally(path, flops)
    out = t.new(heads * queries * head_width, size)
    if flash:
        statistics = t.new(heads * queries, 4, "attention_maps")
        seed, offset = t.new(2, 8), t.new(1, 8)
    else:
        statistics = t.new(heads * -(-queries // 32) * 32 if t.train else 0, 4, "attention_maps")
        seed, offset = t.new(1, 8), t.new(1, 8)
    saved = t.save(path, q, k, v, out, statistics, seed, offset)
    counts = [heads * length * head_width for length in (queries, keys, keys)]

    def backward(grad: Tensor):
        t.tally(path, flops * 5 // 2)
        return [t.new(count, size) for count in counts]

    return t.record(out, (q, k, v), saved, backward)
