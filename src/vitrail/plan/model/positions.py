"""The cost of position tables that are added to the tokens."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.parts import Adaptive, Learned, SinCos1d, SinCos2d, SinCos3d
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.layout import Sizes
from vitrail.plan.tape import Tape

__all__ = ["position"]


@module
def position(t: Tape, c: ViTConfig | Encoder, n: Sizes, tokens: Tensor) -> Tensor:
    """Add a learned table, or a fixed one, which is a buffer."""
    spec, count = c.position, c.prefix.count
    cells = c.steps * c.grid.area if n.table is None else n.table
    resampled = n.table is not None and n.table != c.grid.area
    adaptive = isinstance(c, ViTConfig) and isinstance(c.embedding, Adaptive)
    match spec:
        case SinCos1d():
            return ops.add(t, tokens, t.buffer("position", n.tokens * n.width, t.size), spread=True)
        case SinCos2d() | SinCos3d():
            table = t.buffer("position", cells * n.width, t.size)
            if resampled:  # computed anew
                table = t.new(n.patches * n.width, t.size)
            return _add_rows(t, n, tokens, count, None, table)
    assert isinstance(spec, Learned)
    rows = spec.prefix_rows(c.prefix)
    table = t.parameter("position", (rows + cells) * n.width, "table", rows=rows + cells)
    if rows == count and not adaptive and not resampled:
        return ops.add(t, tokens, table, spread=True)
    of_prefix, of_patches = ops.split(t, table, rows * n.width, cells * n.width)
    if resampled:
        if spec.convention == "big_vision":
            t.approximate("a position table that is resampled as in big_vision: its copies are not modelled")
        of_patches = _resample(t, of_patches, n.patches * n.width)
    if adaptive:  # a patch takes the mean of its cells
        of_patches = ops.index(t, of_patches, n.batch * n.patches * n.width)
    return _add_rows(t, n, tokens, count, of_prefix, of_patches)


def _resample(t: Tape, table: Tensor, count: int) -> Tensor:
    """Interpolate in float32; the result is a view of one image, whose gradient is copied."""
    own = table.count
    image = t.cast(table, 4)
    image = t.record(t.new(count, 4), (image,), None, [(own, 4)])
    return t.cast(ops.narrow(t, image, count), t.size)


def _add_rows(t: Tape, n: Sizes, tokens: Tensor, count: int, of_prefix: Tensor | None, rows: Tensor) -> Tensor:
    """Add a row to each patch, and to the leading prefix tokens that have one."""
    before, patches = ops.split(t, tokens, n.batch * count * n.width, n.batch * n.patches * n.width)
    if of_prefix is not None and of_prefix.count:
        before = ops.add(t, before, ops.pad(t, of_prefix, count * n.width), spread=True)
    return ops.cat(t, before, ops.add(t, patches, rows, spread=True))
