"""The cost of windowed attention: split into windows, mix inside them, join them again.

Letters: B images, h heads, T tokens, p prefix tokens, W windows of m patches, d values per head.
"""

from __future__ import annotations

from vitrail.geometry import Size, Windows
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, is_flash, sdpa
from vitrail.plan.graph import Tensor
from vitrail.plan.model.query_bias import QueryBias
from vitrail.plan.tape import Tape

__all__ = ["CutGrid", "join_windows", "split_windows", "windowed_mix"]


class CutGrid:
    """A grid cut into windows, as `vitrail.nn.windowed_attention` cuts it."""

    def __init__(self, grid: Size, window: Size, prefix: int = 0, *, shifted: bool, zeros: bool = False) -> None:
        cut = Windows.of(grid, window, shifted=shifted, zeros=zeros)
        self.grid, self.window, self.across, self.padded, self.zeros = grid, cut.window, cut.across, cut.padded, zeros
        self.shifted = cut.shift != (0, 0)
        self.higher = self.padded.height != grid.height
        self.wider = self.padded.width != grid.width
        """Whether padding makes rows longer, so that removing it leaves gaps."""
        self.sticks_out = self.higher or self.wider
        self.masked = self.shifted or (self.sticks_out and not zeros)
        """Whether some patches of a window must not attend to each other."""
        single = self.across.width == 1
        self.thin = single or 1 in (self.window.height, self.window.width)
        """Whether windows are as wide as the grid, or have one row or column, so that some axes are contiguous."""
        runs = (single or self.window.height == 1) and not self.sticks_out and not self.shifted
        self.in_place = runs and (self.across.area == 1 or prefix == 0)
        """Whether splitting needs no copy: windows are contiguous or, with a prefix, the whole grid."""


def windowed_mix(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Problem,
    windows: CutGrid,
    prefix: int,
    bias: Tensor | QueryBias | None,
    padding: tuple[Tensor, Tensor] | None,
    in_order: bool,
) -> tuple[Tensor, bool]:
    """Attention within windows; `padding` is the key and value of padding that takes part in attention."""
    in_place = windows.in_place
    gaps = p.heads == 1 and windows.higher and not windows.wider and not prefix
    apart = in_place and in_order and p.heads > 1 and windows.across.area > 1
    if (windows.thin and not in_place) or gaps or apart:
        t.approximate(
            "windows of whole rows with normalised queries, of one row or column, or padded below with one head: "
            "copies are not verified"
        )
    count, size = windows.across.area, windows.window.area
    keys = size + prefix
    key, value = padding or (None, None)
    q_parts, k_parts, v_parts = (
        split_windows(t, x, p, windows, prefix, fill) for x, fill in ((q, None), (k, key), (v, value))
    )
    spread = not isinstance(bias, QueryBias)  # over images and windows
    if isinstance(bias, QueryBias):
        if windows.thin:
            t.approximate("decomposed biases in windows of whole rows: copies are not verified")
        split = bias.each(lambda x, keys: split_windows(t, x, p._replace(head_width=keys), windows, prefix, None))
        bias = split.whole(t)
        del split
    allowed = t.new(count * size * size, 1, "attention_maps") if windows.masked else None
    scores = _join_masks(t, path, bias, allowed, count if spread else 1, spread)
    if prefix:
        k_parts = _with_prefix(t, k, k_parts, p, count, prefix)
        v_parts = _with_prefix(t, v, v_parts, p, count, prefix)
        if scores is not None:
            scores = ops.pad(t, scores, scores.count // size * keys, "attention_maps")
    if scores is not None:
        own = p.heads if bias is not None else 1
        scores = ops.expand(t, scores, p.batch * count * own * size * keys, new_axis=allowed is None and spread)
        if (
            allowed is not None and spread and p.batch > 1
        ):  # windows have different masks: the expanded ones must be copied
            scores = ops.copy(t, scores)
    problem = Problem(p.batch * count, p.heads, size, keys, p.head_width)
    mixed = sdpa(t, path, q_parts, k_parts, v_parts, problem, scores)
    if not in_place:
        mixed = join_windows(t, mixed, p, windows)
    if not prefix:
        return mixed, (not in_place or (in_order and is_flash(t, problem, scores))) and not p.merges
    queries = ops.narrow(t, q, p.matrices * prefix * p.head_width)
    from_prefix = sdpa(t, path, queries, k, v, Problem(p.batch, p.heads, prefix, p.keys, p.head_width))
    return ops.cat(t, from_prefix, mixed), not p.merges


def split_windows(t: Tape, x: Tensor, p: Problem, windows: CutGrid, prefix: int, fill: Tensor | None) -> Tensor:
    if prefix:
        x = ops.narrow(t, x, p.matrices * windows.grid.area * p.head_width)
    if windows.in_place:
        return x
    if windows.shifted and windows.zeros:
        x = ops.fresh(t, x)
    if windows.sticks_out:
        x = _pad(t, x, p, windows, fill)
    if windows.shifted and not windows.zeros:
        x = ops.fresh(t, x)
    return ops.reorder(t, x)


def _pad(t: Tape, x: Tensor, p: Problem, windows: CutGrid, fill: Tensor | None) -> Tensor:
    if fill is None:
        return ops.pad(t, x, p.matrices * windows.padded.area * p.head_width)
    grid, values = windows.grid, p.matrices * p.head_width
    height, width = windows.padded
    fill = t.cast(fill, x.size)
    if width > grid.width:
        if not windows.shifted:  # removing the padding's gradient leaves gaps
            x = ops.copied_back(t, x)
        x = ops.cat(t, x, ops.expand(t, fill, values * grid.height * (width - grid.width)))
    if height > grid.height:
        x = ops.cat(t, x, ops.expand(t, fill, values * (height - grid.height) * width))
    return x


def _with_prefix(t: Tape, x: Tensor, part: Tensor, p: Problem, count: int, prefix: int) -> Tensor:
    values = p.matrices * prefix * p.head_width
    return ops.cat(t, ops.expand(t, ops.narrow(t, x, values), count * values), part)


def _join_masks(
    t: Tape, path: str, bias: Tensor | None, allowed: Tensor | None, count: int, spread: bool
) -> Tensor | None:
    if bias is None or allowed is None:
        return allowed if bias is None else bias
    hidden = t.new(allowed.count, 1, "attention_maps")
    saved = t.save(path, (bias,), hidden)
    own, size = bias.count, bias.size

    def backward(grad: Tensor):
        filled = t.new(count * own, size)
        if not spread:
            return (filled,)
        summed = t.new(own, size)
        del filled
        return (summed,)

    return t.record(t.new(count * own, size, "attention_maps"), (bias,), saved, backward)


def join_windows(t: Tape, mixed: Tensor, p: Problem, windows: CutGrid) -> Tensor:
    x = ops.reorder(t, mixed)
    if windows.shifted and not windows.zeros:
        x = ops.fresh(t, x)
    if windows.higher:
        x = ops.narrow(t, x, x.count // windows.across.height // windows.window.height * windows.grid.height)
    if windows.wider:
        x = ops.narrow(t, x, p.matrices * windows.grid.area * p.head_width)
    if windows.shifted and windows.zeros:
        return ops.fresh(t, x)
    return ops.copy(t, x) if windows.wider else x
