"""Decomposed relative positions: a bias that is the query's product with vectors for row and column offsets.

Shapes: B images, h heads, N patches on an r×c grid, d values per head; a patch meets the keys of its window or of the
whole grid, a×b of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.geometry import Size, offsets_of
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.positions import PositionModule
from vitrail.parts import WindowPadding

__all__ = ["Bias", "OffsetVectors", "QueryBias", "resample_vectors"]


class QueryBias(NamedTuple):
    """A bias per query: the sum of one for a key's row, (…, N, a), and one for its column, (…, N, b)."""

    rows: Tensor
    columns: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> QueryBias:
        return QueryBias(change(self.rows), change(self.columns))

    def whole(self) -> Tensor:
        """Return (…, N, a·b): the bias of every key."""
        return (self.rows[..., :, None] + self.columns[..., None, :]).flatten(-2)


Bias = Tensor | QueryBias
"""What is added to scores: a tensor that can be broadcast to them, or a bias that depends on the query."""


class OffsetVectors(PositionModule):
    """A vector for every row offset and for every column offset within `span`: a window of the grid, or the grid.

    On another grid, the vectors of a whole grid are resampled; those of windows stay.
    """

    row_index: Tensor
    column_index: Tensor

    def __init__(self, grid: Size, span: Size, head_width: int, *, window_padding: WindowPadding | None = None) -> None:
        super().__init__()
        self.grid, self.span, self.window_padding = grid, span, window_padding
        rows, columns = offsets_of(span)
        self.rows = nn.Parameter(torch.empty(rows, head_width))
        self.columns = nn.Parameter(torch.empty(columns, head_width))
        for table in (self.rows, self.columns):
            initialise_table(table.data)
        for name, index in zip(("row_index", "column_index"), self._index(grid, span, span), strict=True):
            self.register_buffer(name, index, persistent=False)

    def compute_buffers(self, device: torch.device | str | None, dtype: torch.dtype) -> None:
        rows, columns = self._index(self.grid, self.span, self.span)
        self.row_index, self.column_index = rows.to(device), columns.to(device)

    def bias(self, q: Tensor, layout: Layout) -> QueryBias:
        """Queries (B, h, N, d) → their bias for the keys that they meet."""
        q = q.unflatten(2, tuple(layout.grid))  # (B, h, r, c, d)
        rows, columns = self._vectors(layout)  # (r, a, d), (c, b, d)
        to_rows = q @ rows.mT  # (B, h, r, c, a)
        to_columns = (q.transpose(2, 3) @ columns.mT).transpose(2, 3)  # (B, h, r, c, b)
        return QueryBias(to_rows.flatten(2, 3), to_columns.flatten(2, 3))

    def _vectors(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return, for every row of the grid, the vectors of the rows that it meets; and the same for columns."""
        rows, columns, keys, frame = self.rows, self.columns, layout.grid, layout.frame
        if self.window_padding is None:
            rows, columns = (
                resample_vectors(table, side) for table, side in zip((rows, columns), offsets_of(frame), strict=True)
            )
        else:
            frame = self.span
            keys = frame if self.window_padding == "zeros" else Size(*map(min, frame, layout.frame))
        if (layout.grid, keys, frame) == (self.grid, self.span, self.span):
            return rows[self.row_index], columns[self.column_index]
        row_index, column_index = self._index(layout.grid, keys, frame)
        return rows[row_index.to(self.row_index)], columns[column_index.to(self.column_index)]

    @staticmethod
    def _index(grid: Size, keys: Size, frame: Size) -> tuple[Tensor, Tensor]:
        """Return (r, a) and (c, b): where the offset from a row or column to a key's is in the vectors of `frame`."""
        rows, columns = (
            (torch.arange(side) % count)[:, None] - torch.arange(count) + extent - 1
            for side, count, extent in zip(grid, keys, frame, strict=True)
        )
        return rows, columns


def resample_vectors(table: Tensor, offsets: int) -> Tensor:
    """Resample vectors to another number of offsets, (old, d) → (offsets, d), linearly, as SAM's code does."""
    if table.shape[0] == offsets:
        return table
    precise = table.to(torch.promote_types(table.dtype, torch.float32))
    return F.interpolate(precise.T[None], size=offsets, mode="linear")[0].T.to(table.dtype)
