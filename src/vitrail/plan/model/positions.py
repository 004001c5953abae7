"""The cost of position tables that are added to the tokens."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.parts import Adaptive, Learned, SinCos1d, SinCos2d
from vitrail.plan import ops
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.layout import Sizes
from vitrail.plan.tape import Tape, Tensor, module

__all__ = ["position"]


@module
def position(t: Tape, c: ViTConfig | Encoder, n: Sizes, tokens: Tensor) -> Tensor:
    """Add a learned table, or a fixed one, which is a buffer."""
    spec, count, cells = c.position, c.prefix.count, c.grid.area
    adaptive = isinstance(c, ViTConfig) and isinstance(c.embedding, Adaptive)
    match spec:
        case SinCos1d():
            return ops.add(t, tokens, t.buffer("position", n.tokens * n.width, t.size), spread=True)
        case SinCos2d():
            return _add_rows(t, n, tokens, count, None, t.buffer("position", n.patches * n.width, t.size))
    assert isinstance(spec, Learned)
    rows = spec.prefix_rows(c.prefix)
    table = t.parameter("position", (rows + cells) * n.width, "table", rows=rows + cells)
    if rows == count and not adaptive:
        return ops.add(t, tokens, table, spread=True)
    of_prefix, of_patches = ops.split(t, table, rows * n.width, cells * n.width)
    if adaptive:  # a patch takes the mean of its cells
        of_patches = ops.index(t, of_patches, n.batch * n.patches * n.width)
    return _add_rows(t, n, tokens, count, of_prefix, of_patches)


def _add_rows(t: Tape, n: Sizes, tokens: Tensor, count: int, of_prefix: Tensor | None, rows: Tensor) -> Tensor:
    """Add a row to each patch, and to the leading prefix tokens that have one."""
    before, patches = ops.split(t, tokens, n.batch * count * n.width, n.batch * n.patches * n.width)
    if of_prefix is not None and of_prefix.count:
        before = ops.add(t, before, ops.pad(t, of_prefix, count * n.width), spread=True)
    return ops.cat(t, before, ops.add(t, patches, rows, spread=True))
