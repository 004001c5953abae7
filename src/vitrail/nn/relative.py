"""Relative positions: a learned bias per head for every (row, column) offset between two patches of a grid.

Shapes: h heads, T tokens, of which N patches; an r×c grid has (2r − 1)·(2c − 1) offsets.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.geometry import Size, offsets_of
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.positions import AttentionPosition
from vitrail.nn.resample import resample_offsets
from vitrail.parts import RelativeConvention, WindowPadding

__all__ = ["RelativeTable", "offset_index"]


def offset_index(grid: Size, frame: Size) -> Tensor:
    """Return (N, N): for each query and key patch of `grid`, the row of their offset in a table for `frame`."""
    rows, columns = torch.arange(grid.height), torch.arange(grid.width)
    row = (rows[:, None] - rows + frame.height - 1) * (2 * frame.width - 1)  # (r, r)
    column = columns[:, None] - columns + frame.width - 1  # (c, c)
    return (row[:, None, :, None] + column[None, :, None, :]).reshape(grid.area, grid.area)


class RelativeTable(AttentionPosition):
    """A learned bias for the offsets within a grid or a window; one table per block, or shared by all blocks.

    `prefix` adds BEiT's three entries: prefix → patch, patch → prefix, prefix → prefix. On another grid the table is
    resampled by its convention. The table of a window is not resampled: on a grid smaller than the window, windows
    become smaller ("masked"), or the grid is padded to a whole window ("zeros").
    """

    index: Tensor

    def __init__(
        self,
        grid: Size,
        num_heads: int,
        *,
        prefix: bool = False,
        window_padding: WindowPadding | None = None,
        convention: RelativeConvention = "huggingface",
    ) -> None:
        super().__init__()
        self.grid, self.window_padding = grid, window_padding
        self.convention: RelativeConvention = convention
        self.table = nn.Parameter(torch.empty(offsets_of(grid).area + 3 * prefix, num_heads))
        initialise_table(self.table.data)
        self.register_buffer("index", offset_index(grid, grid), persistent=False)

    @property
    def windowed(self) -> bool:
        return self.window_padding is not None

    def compute_buffers(self, device: torch.device | str | None, dtype: torch.dtype) -> None:
        self.index = offset_index(self.grid, self.grid).to(device)

    def within(self, layout: Layout, like: Tensor) -> Tensor:
        return self.bias(layout)

    def bias(self, layout: Layout) -> Tensor:
        """Return the bias: (h, T, T), or (h, m, m) for windows of m patches, independent of the grid."""
        if self.window_padding == "zeros":
            layout = Layout(grid=self.grid, frame=self.grid)
        elif self.window_padding == "masked":
            window = Size(*map(min, self.grid, layout.frame))
            layout = Layout(grid=window, frame=self.grid)
        table, index, frame = self.table, self.index, layout.frame
        old, new = offsets_of(self.grid), offsets_of(frame)
        offsets, prefix_entries = table.split([old.area, table.shape[0] - old.area])
        offsets = resample_offsets(offsets, old=old, new=new, convention=self.convention)
        if layout.grid != self.grid:
            index = offset_index(layout.grid, frame).to(index.device)
        bias = offsets.T[:, index]  # (h, N, N)
        if not layout.prefix:
            return bias
        return _frame_with_prefix(bias, prefix_entries, layout.prefix)


def _frame_with_prefix(bias: Tensor, entries: Tensor, prefix: int) -> Tensor:
    """Add rows and columns for the prefix to the patches' bias; they are zero if the table has no entries for it."""
    heads, patches, _ = bias.shape
    if entries.shape[0] == 0:
        entries = bias.new_zeros(3, heads)
    from_prefix, to_prefix, among_prefix = entries.T[:, :, None, None].unbind(1)  # (h, 1, 1) each
    left = torch.cat([among_prefix.expand(-1, prefix, prefix), to_prefix.expand(-1, patches, prefix)], dim=1)
    right = torch.cat([from_prefix.expand(-1, prefix, patches), bias], dim=1)
    return torch.cat([left, right], dim=2)
