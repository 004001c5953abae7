"""The cost of criss-cross attention."""

from __future__ import annotations

from vitrail.geometry import Size
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, product, sdpa, softmax
from vitrail.plan.graph import Tensor
from vitrail.plan.tape import Tape

__all__ = ["sparse_mix"]


def sparse_mix(
    t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, grid: Size, prefix: int, in_order: bool
) -> tuple[Tensor, bool]:
    """Rows, columns and prefix in one softmax; every product copies its operands into another order."""
    if in_order or p.heads == 1 or 1 in (grid.height, grid.width):
        t.approximate("sparse attention with qk_norm, one head or one row: some counted copies are not made")
    h, w, d, scores = grid.height, grid.width, p.head_width, p.matrices * grid.area
    q_grid = _patches(t, q, scores * d, prefix)
    k_grid, v_grid = (ops.copied_back(t, _patches(t, x, scores * d, prefix)) for x in (k, v))
    q_grid = ops.fresh(t, q_grid)
    along_row = product(t, path, q_grid, k_grid, p.matrices * h, w, d, w)
    along_column = ops.copied_back(t, product(t, path, q_grid, k_grid, p.matrices * w, h, d, h))
    of_prefix = _spread(t, k, p, h, prefix)
    to_prefix = product(t, path, q_grid, of_prefix, p.matrices * h, w, d, prefix, copies=(True, prefix > 0))
    twice = t.new(h * h, 1)
    along_column = ops.fresh(t, along_column, t.save(path, (along_column,), twice))
    weights = softmax(t, path, ops.cat(t, along_row, along_column, to_prefix))
    in_row, in_column, in_prefix = ops.split(t, weights, scores * w, scores * h, scores * prefix)
    mixed = ops.add(
        t,
        ops.copied_back(t, product(t, path, in_row, v_grid, p.matrices * h, w, w, d, copies=(False, True))),
        ops.copied_back(t, product(t, path, in_column, v_grid, p.matrices * w, h, h, d)),
    )
    if not prefix:
        return mixed, True
    of_prefix = _spread(t, v, p, h, prefix)
    mixed = ops.add(
        t,
        mixed,
        ops.copied_back(t, product(t, path, in_prefix, of_prefix, p.matrices * h, w, prefix, d, copies=(False, True))),
    )
    queries = ops.narrow(t, q, p.matrices * prefix * d)
    from_prefix = sdpa(t, path, queries, k, v, Problem(p.batch, p.heads, prefix, p.keys, d))
    return ops.cat(t, from_prefix, mixed), True


def _patches(t: Tape, x: Tensor, count: int, prefix: int) -> Tensor:
    return ops.narrow(t, x, count) if prefix else x


def _spread(t: Tape, x: Tensor, p: Problem, rows: int, prefix: int) -> Tensor:
    """Return the prefix's keys or values, expanded to every row of the grid."""
    count = p.matrices * prefix * p.head_width
    return ops.expand(t, ops.narrow(t, x, count), count * rows)
