"""Relative positions: a bias per head for every (row, column) offset between two patches of a grid, from a learned
table or from an MLP.

Shapes: h heads, T tokens, of which N patches; an r×c grid has (2r − 1)·(2c − 1) offsets.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.geometry import Size, offsets_of
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import linear
from vitrail.nn.positions import AttentionPosition
from vitrail.nn.resample import resample_offsets
from vitrail.parts import RelativeConvention, RelativeMlp, WindowPadding

__all__ = ["OffsetMlp", "RelativePosition", "RelativeTable", "log_offsets", "offset_index"]


def offset_index(grid: Size, frame: Size) -> Tensor:
    """Return (N, N): for each query and key patch of `grid`, the row of their offset in a table for `frame`."""
    if torch.get_default_device().type == "meta":  # no values are asked for, and torch computes shapes slowly
        return torch.empty(grid.area, grid.area, dtype=torch.long)
    rows, columns = torch.arange(grid.height), torch.arange(grid.width)
    row = (rows[:, None] - rows + frame.height - 1) * (2 * frame.width - 1)  # (r, r)
    column = columns[:, None] - columns + frame.width - 1  # (c, c)
    return (row[:, None, :, None] + column[None, :, None, :]).reshape(grid.area, grid.area)


class RelativePosition(AttentionPosition):
    """A bias for the offsets within a grid or a window; one per block, or shared by all blocks.

    On a grid smaller than the window, windows become smaller ("masked"), or the grid is padded to a whole window
    ("zeros").
    """

    index: Tensor

    def __init__(self, grid: Size, *, window_padding: WindowPadding | None = None) -> None:
        super().__init__()
        self.grid, self.window_padding = grid, window_padding
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
            layout = self.in_window(Size(*map(min, self.grid, layout.frame)))
        offsets, prefix_entries = self.offsets(layout.frame)
        index = self.index if layout.grid == self.grid else offset_index(layout.grid, layout.frame).to(self.index)
        bias = offsets.T[:, index]  # (h, N, N)
        if not layout.prefix:
            return bias
        return _frame_with_prefix(bias, prefix_entries, layout.prefix)

    def in_window(self, window: Size) -> Layout:
        """Return the layout of a window that may be smaller than the module's own."""
        raise NotImplementedError

    def offsets(self, frame: Size) -> tuple[Tensor, Tensor]:
        """Return a bias per offset of a grid, ((2r − 1)·(2c − 1), h), and entries for the prefix, (3 or 0, h)."""
        raise NotImplementedError


class RelativeTable(RelativePosition):
    """A learned bias per offset. `prefix` adds BEiT's three entries: prefix → patch, patch → prefix, prefix → prefix.

    On another grid the table is resampled by its convention. The table of a window is not resampled.
    """

    def __init__(
        self,
        grid: Size,
        num_heads: int,
        *,
        prefix: bool = False,
        window_padding: WindowPadding | None = None,
        convention: RelativeConvention = "huggingface",
    ) -> None:
        super().__init__(grid, window_padding=window_padding)
        self.convention: RelativeConvention = convention
        self.table = nn.Parameter(torch.empty(offsets_of(grid).area + 3 * prefix, num_heads))
        initialise_table(self.table.data)

    def in_window(self, window: Size) -> Layout:
        return Layout(grid=window, frame=self.grid)

    def offsets(self, frame: Size) -> tuple[Tensor, Tensor]:
        old = offsets_of(self.grid)
        offsets, prefix_entries = self.table.split([old.area, self.table.shape[0] - old.area])
        return resample_offsets(offsets, old=old, new=offsets_of(frame), convention=self.convention), prefix_entries


class OffsetMlp(RelativePosition):
    """A bias that an MLP computes from logarithms of the offset; on another grid or window they are computed anew.

    `stage` chooses the window of pretraining that normalised offsets refer to, if there is one.
    """

    coordinates: Tensor

    def __init__(
        self,
        spec: RelativeMlp,
        grid: Size,
        num_heads: int,
        *,
        window_padding: WindowPadding | None = None,
        stage: int = 0,
    ) -> None:
        super().__init__(grid, window_padding=window_padding)
        self.normalised = spec.coordinates == "normalised"
        self.reference = spec.reference[stage] if spec.reference else None
        self.fc1 = linear(2, spec.width)
        self.fc2 = linear(spec.width, num_heads, bias=spec.out_bias)
        self.register_buffer("coordinates", self._coordinates(grid), persistent=False)

    def compute_buffers(self, device: torch.device | str | None, dtype: torch.dtype) -> None:
        super().compute_buffers(device, dtype)
        self.coordinates = self._coordinates(self.grid).to(device, dtype)

    def in_window(self, window: Size) -> Layout:
        return Layout(grid=window, frame=window)

    def offsets(self, frame: Size) -> tuple[Tensor, Tensor]:
        coordinates = self.coordinates
        if frame != self.grid:
            coordinates = self._coordinates(frame).to(coordinates)
        bias = self.fc2(F.relu(self.fc1(coordinates)))  # ((2r − 1)·(2c − 1), h)
        return 16 * torch.sigmoid(bias) if self.normalised else bias, bias[:0]

    def _coordinates(self, grid: Size) -> Tensor:
        return log_offsets(grid, (self.reference or grid) if self.normalised else None)


def log_offsets(grid: Size, reference: Size | None) -> Tensor:
    """Return ((2r − 1)·(2c − 1), 2): for every offset, sign · log(1 + |offset|) of rows and columns, in float64.

    With a `reference`, offsets are scaled so that its largest is 8, and logarithms so that 7 becomes 1.
    """
    if torch.get_default_device().type == "meta":
        return torch.empty(offsets_of(grid).area, 2)
    axes = []
    for side, extent in zip(grid, reference or grid, strict=True):
        offset = torch.arange(1 - side, side, dtype=torch.float64)
        if reference is not None:
            offset = offset * 8 / max(1, extent - 1)
        axes.append(offset.sign() * offset.abs().log1p() / (math.log(8) if reference is not None else 1))
    return torch.cartesian_prod(*axes).view(-1, 2).to(torch.get_default_dtype())


def _frame_with_prefix(bias: Tensor, entries: Tensor, prefix: int) -> Tensor:
    """Add rows and columns for the prefix to the patches' bias; they are zero if the table has no entries for it."""
    heads, patches, _ = bias.shape
    if entries.shape[0] == 0:
        entries = bias.new_zeros(3, heads)
    from_prefix, to_prefix, among_prefix = entries.T[:, :, None, None].unbind(1)  # (h, 1, 1) each
    left = torch.cat([among_prefix.expand(-1, prefix, prefix), to_prefix.expand(-1, patches, prefix)], dim=1)
    right = torch.cat([from_prefix.expand(-1, prefix, patches), bias], dim=1)
    return torch.cat([left, right], dim=2)
