"""Operations of convolutional networks on size-only tensors, beside those of `vitrail.plan.ops`."""

from __future__ import annotations

from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.tape import Tape

__all__ = ["GroupNorm", "max_pool", "standardise"]


def group_norm(t: Tape, path: str, x: Tensor, width: int, groups: int) -> Tensor:
    """Group norm, in float32 under autocast; it saves mean and rstd of each of the batch's `groups` groups."""
    w, b = t.parameter(path, width), t.parameter(path, width, "bias")
    a = t.cast(x, 4) if t.amp else x
    count, size = a.count, a.size
    y, mean, rstd = t.new(count, size), t.new(groups, size), t.new(groups, size)
    saved = t.save(path, (a, w, b), a, mean, rstd)
    return t.record(y, (a, w, b), saved, ops.gradients((a, count, size), (w, width, t.size), (b, width, t.size)))


def standardise(t: Tape, path: str, values: int, rows: int) -> Tensor:
    """A layer's filters, `rows` of `values` values, standardised one by one; mean and rstd of each are saved."""
    w = t.parameter(path, rows * values, rows=rows)
    y, mean, rstd = t.new(rows * values, t.size), t.new(rows, 4), t.new(rows, 4)
    return t.record(y, (w,), t.save(path, (w,), w, mean, rstd), ops.gradients((w, rows * values, t.size)))


def max_pool(t: Tape, path: str, x: Tensor, count: int) -> Tensor:
    """The maxima of windows, `count` in all; the input and the place of each maximum are saved."""
    own, size = x.count, x.size
    y, places = t.new(count, size), t.new(count, 8)
    return t.record(y, (x,), t.save(path, (x,), x, places), [(own, size)])


GroupNorm = module(group_norm)
