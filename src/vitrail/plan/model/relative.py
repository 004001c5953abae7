"""The cost of relative positions."""

from __future__ import annotations

from vitrail.geometry import Size, offsets_of
from vitrail.plan import ops
from vitrail.plan.tape import Tape, Tensor

__all__ = ["relative_bias"]


def relative_bias(t: Tape, path: str, span: Size, heads: int, entries: int = 0, prefix: int = 0) -> Tensor:
    """A bias per head and offset, expanded to every pair of patches, with rows and columns for the prefix."""
    offsets, patches = offsets_of(span).area, span.area
    table = t.parameter(path, (offsets + entries) * heads, "table", rows=offsets + entries)
    t.buffer(path, patches * patches, 8)
    of_offsets, of_prefix = ops.split(t, table, offsets * heads, entries * heads)
    bias = ops.index(t, of_offsets, heads * patches * patches)
    if not prefix:
        return bias
    return _frame_with_prefix(t, bias, of_prefix if entries else t.new(3 * heads, t.size), heads, patches, prefix)


def _frame_with_prefix(t: Tape, bias: Tensor, entries: Tensor, heads: int, patches: int, prefix: int) -> Tensor:
    from_prefix, to_prefix, among = ops.split(t, entries, heads, heads, heads)
    left = ops.cat(t, ops.expand(t, among, heads * prefix * prefix), ops.expand(t, to_prefix, heads * patches * prefix))
    right = ops.cat(t, ops.expand(t, from_prefix, heads * prefix * patches), bias)
    return ops.cat(t, left, right)
