"""The cost of decomposed relative positions.

Letters: B images, h heads, N patches on an r×c grid, d values per head; a patch meets a×b keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vitrail.geometry import Size, offsets_of
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, product
from vitrail.plan.graph import Tensor
from vitrail.plan.tape import Tape

__all__ = ["QueryBias", "query_bias"]


class QueryBias(NamedTuple):
    """A bias per query: one for a key's row, (B, h, N, a), and one for its column, (B, h, N, b)."""

    rows: Tensor
    columns: Tensor
    span: Size
    """The keys that a patch meets, a×b."""

    def each(self, change: Callable[[Tensor, int], Tensor]) -> QueryBias:
        """Change both parts, each given with its number of keys."""
        return QueryBias(change(self.rows, self.span.height), change(self.columns, self.span.width), self.span)

    def whole(self, t: Tape) -> Tensor:
        """The sum for every key; its gradient is summed over columns and over rows."""
        counts, size = (self.rows.count, self.columns.count), self.rows.size

        def backward(grad: Tensor):
            return [t.new(count, size) for count in counts]

        made = t.new(self.rows.count * self.span.width, size, "attention_maps")
        return t.record(made, (self.rows, self.columns), None, backward)


def query_bias(t: Tape, path: str, q: Tensor, p: Problem, grid: Size, span: Size, in_order: bool) -> QueryBias:
    """The products of queries with the vectors of the offsets along each axis."""
    if 1 in (*grid, *span):
        t.approximate("decomposed biases of one row or column: some counted copies are not made")
    rows, columns = _vectors(t, path, grid, span, p.head_width)
    copies = p.heads > 1 and not in_order
    to_rows = _along(t, path, q, rows, p, grid.height, grid.width, span.height, copies=copies)
    to_columns = _along(t, path, q, columns, p, grid.width, grid.height, span.width, copies=p.matrices > 1)
    if p.matrices > 1:
        to_columns = ops.copied_back(t, to_columns)
    return QueryBias(to_rows, ops.copy(t, to_columns), span)


def _vectors(t: Tape, path: str, grid: Size, span: Size, head_width: int) -> list[Tensor]:
    """For every row of the grid the vectors of the rows that it meets, and the same for columns."""
    tables = [
        (t.parameter(path, offsets * head_width, name, rows=offsets), side * keys)
        for name, offsets, side, keys in zip(("rows", "columns"), offsets_of(span), grid, span, strict=True)
    ]
    for name, (_, places) in zip(("row_index", "column_index"), tables, strict=True):
        t.buffer(path, places, 8, name)
    return [ops.index(t, table, places * head_width) for table, places in tables]


def _along(
    t: Tape, path: str, q: Tensor, vectors: Tensor, p: Problem, lines: int, length: int, keys: int, *, copies: bool
) -> Tensor:
    """Every line of patches by the vectors that it meets, which are spread over images and heads."""
    vectors = t.cast(vectors, t.compute)
    spread = ops.expand(t, vectors, p.matrices * vectors.count)
    return product(t, path, q, spread, p.matrices * lines, length, p.head_width, keys, copies=(copies, p.matrices > 1))
