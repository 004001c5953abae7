"""The kinds of attention on a tape: which tokens mix. Queries, keys and values in, each (B, h, T, d); mixed values out.

`in_order` says that queries and keys are stored heads first; otherwise they are views of one projection, and a matrix
product copies them. Every mix also says whether its result is stored heads first, so that merging the heads copies it.
"""

from __future__ import annotations

from vitrail.geometry import Size
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, copy, is_flash, is_plain, product, sdpa, softmax, softmax_attention
from vitrail.plan.tape import Tape, Tensor

__all__ = ["full_mix", "fused_mix", "linear_mix", "sparse_mix"]


def full_mix(
    t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, bias: Tensor | None, rate: float, in_order: bool
) -> tuple[Tensor, bool]:
    if t.explicit:
        return softmax_attention(t, path, q, k, v, p, rate, bias, in_order), not p.merges
    return fused_mix(t, path, q, k, v, p, bias, in_order)


def fused_mix(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Problem,
    bias: Tensor | None = None,
    in_order: bool = False,
) -> tuple[Tensor, bool]:
    """PyTorch's kernel: flash stores its result like the queries, or cuts it from a wider one."""
    cut = is_flash(t, p, bias) and p.head_width % 8 != 0
    heads_first = is_plain(t, p, bias) or (is_flash(t, p, bias) and in_order)
    return sdpa(t, path, q, k, v, p, bias, shared=True), cut or (heads_first and not p.merges)


def linear_mix(t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, in_order: bool) -> tuple[Tensor, bool]:
    q, k = _feature_map(t, path, q), _feature_map(t, path, k)
    total = _sum_keys(t, k, p)
    size = p.head_width

    copies = not in_order and not p.single and p.queries > 1
    summed = product(t, path, k, v, p.count, size, p.keys, size, copies=(copies, not p.single))
    mixed = product(t, path, q, summed, p.count, p.queries, size, size, copies=(copies, False))
    if not p.single and p.queries > 1:
        mixed = ops.copied_back(t, mixed)
    del summed
    share = product(t, path, q, total, p.count, p.queries, size, 1, copies=(copies, False))
    return ops.divide(t, path, mixed, share), not p.merges


def _feature_map(t: Tape, path: str, x: Tensor) -> Tensor:
    return copy(t, ops.activate(t, path, x))  # elu, then + 1, whose gradient is passed on


def _sum_keys(t: Tape, k: Tensor, p: Problem) -> Tensor:
    """Σφ(K), in float32 under autocast; its gradient is spread over the keys, and copied if it has to be cast."""
    count, size, own = p.count * p.head_width, 4 if t.amp else k.size, k.size
    whole = k.count

    def backward(grad: Tensor):
        return (Tensor(grad.storage, whole, own) if own == size else t.new(whole, own),)

    return t.record(t.new(count, size), (k,), None, backward)


def sparse_mix(
    t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, grid: Size, prefix: int, in_order: bool
) -> tuple[Tensor, bool]:
    """Rows, columns and prefix in one softmax; every product copies its operands into its own order."""
    if in_order or p.heads == 1 or 1 in (grid.height, grid.width):
        t.approximate("sparse attention with qk_norm, one head or one row: copies that are not made are counted")
    h, w, d, scores = grid.height, grid.width, p.head_width, p.count * grid.area
    q_grid = _patches(t, q, scores * d, prefix)
    k_grid, v_grid = (ops.copied_back(t, _patches(t, x, scores * d, prefix)) for x in (k, v))
    q_grid = ops.fresh(t, q_grid)
    along_row = product(t, path, q_grid, k_grid, p.count * h, w, d, w)
    along_column = ops.copied_back(t, product(t, path, q_grid, k_grid, p.count * w, h, d, h))
    of_prefix = _spread(t, k, p, h, prefix)
    to_prefix = product(t, path, q_grid, of_prefix, p.count * h, w, d, prefix, copies=(True, prefix > 0))
    twice = t.new(h * h, 1)
    along_column = ops.fresh(t, along_column, t.save(path, twice))
    weights = softmax(t, path, ops.cat(t, along_row, along_column, to_prefix))
    in_row, in_column, in_prefix = ops.split(t, weights, scores * w, scores * h, scores * prefix)
    mixed = ops.add(
        t,
        ops.copied_back(t, product(t, path, in_row, v_grid, p.count * h, w, w, d, copies=(False, True))),
        ops.copied_back(t, product(t, path, in_column, v_grid, p.count * w, h, h, d)),
    )
    if not prefix:
        return mixed, True
    of_prefix = _spread(t, v, p, h, prefix)
    mixed = ops.add(
        t,
        mixed,
        ops.copied_back(t, product(t, path, in_prefix, of_prefix, p.count * h, w, prefix, d, copies=(False, True))),
    )
    queries = ops.narrow(t, q, p.count * prefix * d)
    from_prefix = sdpa(t, path, queries, k, v, Problem(p.batch, p.heads, prefix, p.keys, d))
    return ops.cat(t, from_prefix, mixed), True


def _patches(t: Tape, x: Tensor, count: int, prefix: int) -> Tensor:
    return ops.narrow(t, x, count) if prefix else x


def _spread(t: Tape, x: Tensor, p: Problem, rows: int, prefix: int) -> Tensor:
    """The prefix's keys or values, the same for every row of the grid."""
    count = p.count * prefix * p.head_width
    return ops.expand(t, ops.narrow(t, x, count), count * rows)
