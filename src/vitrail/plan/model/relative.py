"""The cost of relative positions."""

from __future__ import annotations

from vitrail.geometry import Size, offsets_of
from vitrail.parts import RelativeMlp
from vitrail.plan import ops
from vitrail.plan.graph import Tensor
from vitrail.plan.tape import Tape

__all__ = ["offset_mlp", "relative_bias"]


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


def offset_mlp(t: Tape, path: str, spec: RelativeMlp, span: Size, heads: int, prefix: int = 0) -> Tensor:
    """A bias that an MLP computes per offset, expanded to every pair of patches."""
    offsets, patches = offsets_of(span).area, span.area
    t.buffer(path, patches * patches, 8)
    table = _mlp(t, path, spec, t.buffer(path, 2 * offsets, t.size, "coordinates"), heads)
    bias = ops.index(t, table, heads * patches * patches)
    if not prefix:
        return bias
    return _frame_with_prefix(t, bias, t.new(3 * heads, bias.size), heads, patches, prefix)


def _mlp(t: Tape, path: str, spec: RelativeMlp, coordinates: Tensor, heads: int) -> Tensor:
    hidden = ops.saving_output(t, path, ops.Linear(t, f"{path}.fc1", coordinates, 2, spec.width))
    table = ops.Linear(t, f"{path}.fc2", hidden, spec.width, heads, spec.out_bias)
    del hidden
    return ops.fresh(t, ops.saving_output(t, path, table)) if spec.coordinates == "normalised" else table


def _frame_with_prefix(t: Tape, bias: Tensor, entries: Tensor, heads: int, patches: int, prefix: int) -> Tensor:
    from_prefix, to_prefix, among = ops.split(t, entries, heads, heads, heads)
    left = ops.cat(t, ops.expand(t, among, heads * prefix * prefix), ops.expand(t, to_prefix, heads * patches * prefix))
    right = ops.cat(t, ops.expand(t, from_prefix, heads * prefix * patches), bias)
    return ops.cat(t, left, right)
