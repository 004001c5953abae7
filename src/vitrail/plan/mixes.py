"""The kinds of attention on a tape: which tokens mix. Queries, keys and values in, each (B, h, T, d); mixed values out.

`in_order` says that queries and keys are stored heads first; otherwise they are views of one projection, and a matrix
product copies them. Every mix also says whether its result is stored heads first, so that merging the heads copies it.
"""

from __future__ import annotations

from vitrail.plan import ops
from vitrail.plan.attend import Problem, copy, is_flash, matmul, sdpa, softmax_attention
from vitrail.plan.tape import Tape, Tensor

__all__ = ["full_mix", "linear_mix"]


def full_mix(
    t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, bias: Tensor | None, rate: float, in_order: bool
) -> tuple[Tensor, bool]:
    if t.kernel == "eager":
        return softmax_attention(t, path, q, k, v, p, rate, bias, in_order), True
    return sdpa(t, path, q, k, v, p, bias), in_order and is_flash(t, bias)  # flash stores its result like the queries


def linear_mix(t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, in_order: bool) -> tuple[Tensor, bool]:
    q, k = _feature_map(t, path, q), _feature_map(t, path, k)
    total = _sum_keys(t, k, p)
    size = p.head_width
    summed = matmul(t, path, k if in_order else copy(t, k), copy(t, v), p.count, size, p.keys, size)
    mixed = matmul(t, path, q if in_order else copy(t, q), summed, p.count, p.queries, size, size)
    del summed
    share = matmul(t, path, q if in_order else copy(t, q), total, p.count, p.queries, size, 1)
    return ops.divide(t, path, ops.copied_back(t, mixed), share), True


def _feature_map(t: Tape, path: str, x: Tensor) -> Tensor:
    return copy(t, ops.activate(t, path, x))  # elu, then + 1, whose gradient is passed on


def _sum_keys(t: Tape, k: Tensor, p: Problem) -> Tensor:
    """Σφ(K), in float32 under autocast; its gradient is spread over the keys, and copied if it has to be cast."""
    count, size, own = p.count * p.head_width, 4 if t.amp else k.size, k.size
    whole = k.count

    def backward(grad: Tensor):
        return (Tensor(grad.storage, whole, own) if own == size else t.new(whole, own),)

    return t.record(t.new(count, size), (k,), None, backward)
