"""The cost of linear attention."""

from __future__ import annotations

from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, product
from vitrail.plan.graph import Tensor, view
from vitrail.plan.tape import Tape

__all__ = ["linear_mix"]


def linear_mix(t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, in_order: bool) -> tuple[Tensor, bool]:
    q, k = feature_map(t, path, q), feature_map(t, path, k)
    total = _sum_keys(t, k, p)
    size = p.head_width

    copies = not in_order and not p.single and p.queries > 1
    summed = product(t, path, k, v, p.matrices, size, p.keys, size, copies=(copies, not p.single))
    mixed = product(t, path, q, summed, p.matrices, p.queries, size, size, copies=(copies, False))
    if not p.single and p.queries > 1:
        mixed = ops.copied_back(t, mixed)
    del summed
    share = product(t, path, q, total, p.matrices, p.queries, size, 1, copies=(copies, False))
    return ops.divide(t, path, mixed, share), not p.merges


def feature_map(t: Tape, path: str, x: Tensor) -> Tensor:
    return ops.copy(t, ops.activate(t, path, x))  # elu, then + 1, whose gradient is passed through


def _sum_keys(t: Tape, k: Tensor, p: Problem) -> Tensor:
    """Σφ(K), in float32 under autocast; its gradient is expanded over the keys, and copied if it must be cast."""
    count, size, own = p.matrices * p.head_width, 4 if t.amp else k.size, k.size
    whole = k.count

    def backward(grad: Tensor):
        return (view(grad.storage, whole, own) if own == size else t.new(whole, own),)

    return t.record(t.new(count, size), (k,), None, backward)
