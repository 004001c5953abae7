"""Base classes of position modules, and positions that are added to the tokens: learned tables and sines.

Positions that act inside attention are in `nn.rotary` and `nn.relative`. Fixed tables are non-persistent buffers, since
they are a function of the config.

Shapes: B images, T tokens of which N patches, D width; a clip has s grids of h×w patches.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.geometry import Size
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.resample import resample_grid, resample_steps
from vitrail.parts import Convention, SinCos1d, SinCos2d, SinCos3d

if TYPE_CHECKING:
    from vitrail.nn.rotary import Rotation

__all__ = [
    "AddedPosition",
    "AttentionPosition",
    "LearnedTable",
    "PositionModule",
    "SinCos1dTable",
    "SinCosTable",
    "place",
    "sincos_1d",
    "sincos_2d",
    "sincos_3d",
    "sinusoidal_2d",
]


class PositionModule(nn.Module):
    def compute_buffers(self, device: torch.device | str | None, dtype: torch.dtype) -> None:
        """Compute the fixed tables, which a model built on the meta device lacks."""


class AddedPosition(PositionModule):
    """A position that is added to the tokens: (B, T, D) → (B, T, D)."""

    width: int

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        raise NotImplementedError


class AttentionPosition(PositionModule):
    """A position that acts inside attention."""

    def within(self, layout: Layout, like: Tensor) -> Rotation | Tensor:
        """Return a rotation of queries and keys, or a bias for their scores, with the device and dtype of `like`."""
        raise NotImplementedError


def sinusoidal_2d(grid_h: int, grid_w: int, dim: int) -> Tensor:
    """Return the fixed 2D table, (grid_h · grid_w, dim): interleaved sines and cosines of the row in the first half,
    of the column in the second. Every vector has norm √(dim/2).

    >>> sinusoidal_2d(14, 20, 768).norm(dim=1).round(decimals=4).unique()
    tensor([19.5959])
    """
    return sincos_2d(Size(grid_h, grid_w), dim, SinCos2d())


def sincos_2d(grid: Size, width: int, spec: SinCos2d) -> Tensor:
    """Return the table (N, D) in the layout of `spec`; computed in float64."""
    waves = width // 4
    last = waves - 1 if spec.layout == "big_vision" else waves
    frequency = spec.temperature ** -(torch.arange(waves, dtype=torch.float64) / last)
    rows, columns = (
        torch.arange(side, dtype=torch.float64)[:, None] * frequency for side in (grid.height, grid.width)
    )  # (h, D/4), (w, D/4)
    row, column = rows[:, None].expand(*grid, -1), columns[None].expand(*grid, -1)  # (h, w, D/4) each
    if spec.layout == "interleaved":
        waves_of = [torch.stack([axis.sin(), axis.cos()], dim=-1).flatten(2) for axis in (row, column)]
    elif spec.layout == "timm":
        waves_of = [row.sin(), column.sin(), row.cos(), column.cos()]
    else:
        waves_of = [column.sin(), column.cos(), row.sin(), row.cos()]
    return torch.cat(waves_of, dim=-1).flatten(0, 1).to(torch.get_default_dtype())


def sincos_3d(steps: int, grid: Size, width: int, spec: SinCos3d) -> Tensor:
    """Return the table (s·h·w, D): the step's sines and cosines, the row's and the column's; computed in float64."""
    waves = -(-width // 6)
    frequency = spec.temperature ** -(torch.arange(waves, dtype=torch.float64) / waves)
    places = (torch.arange(side, dtype=torch.float64) for side in (steps, *grid))
    angles = torch.cartesian_prod(*places)[:, :, None] * frequency  # (s·h·w, 3, ⌈D/6⌉)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width].to(torch.get_default_dtype())


def sincos_1d(count: int, width: int, spec: SinCos1d) -> Tensor:
    """Return (count, D): interleaved sines and cosines of the index ("Attention Is All You Need")."""
    frequency = spec.temperature ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(torch.get_default_dtype())


def place(table: Tensor, layout: Layout) -> Tensor:
    """A table over every step of the layout's frame, (steps · frame.area, D) → a row per patch, (N, D) or (B, N, D).

    A padded image takes the top left part, and an adaptive patch the mean of the cells that it covers.
    """
    if layout.rectangles is not None:
        return _mean_over(layout.rectangles, table, layout.frame)
    if layout.frame != layout.grid:
        height, width = layout.grid
        table = table.view(layout.steps, *layout.frame, -1)[:, :height, :width].flatten(0, 2)
    return table


def _mean_over(rectangles: Tensor, table: Tensor, frame: Size) -> Tensor:
    """Average the table over each rectangle, a square of 2^level cells, by repeated 2×2 average pooling."""
    image = table.T.reshape(1, -1, *frame)
    levels, offsets, widths = [], [], []
    while True:
        offsets.append(sum(level.shape[0] for level in levels))
        widths.append(image.shape[3])
        levels.append(image.flatten(2)[0].T)
        if image.shape[2] % 2 or image.shape[3] % 2:
            break
        image = F.avg_pool2d(image, 2)
    top, left, height, _ = rectangles.unbind(-1)
    level = height.double().log2().round().long()
    shift = 2**level
    offset, width = (rectangles.new_tensor(values)[level] for values in (offsets, widths))
    return torch.cat(levels)[offset + top // shift * width + left // shift]


class LearnedTable(AddedPosition):
    """A learned row per token; on another grid the rows of patches are resampled, those of the prefix kept."""

    def __init__(self, grid: Size, width: int, *, prefix_rows: int, convention: Convention, steps: int = 1) -> None:
        super().__init__()
        self.grid, self.prefix_rows, self.steps = grid, prefix_rows, steps
        self.convention: Convention = convention
        self.width = width
        self.table = nn.Parameter(torch.empty(prefix_rows + steps * grid.area, width))
        initialise_table(self.table.data)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        if layout.prefix == self.prefix_rows and layout.grid == self.grid and layout.rectangles is None:
            return tokens + self.table
        prefix, patches = self.table.split([self.prefix_rows, self.steps * self.grid.area])
        resample = partial(resample_grid, old=self.grid, new=layout.frame, convention=self.convention)
        rows = resample_steps(patches, self.steps, resample)
        return _add(tokens, layout, prefix, place(rows, layout))


class SinCosTable(AddedPosition):
    """Fixed sines of row and column, or of step, row and column, recomputed for another grid; prefix rows are zero.

    Those of row and column are the same in every step of a clip.
    """

    table: Tensor

    def __init__(self, grid: Size, width: int, spec: SinCos2d | SinCos3d, *, steps: int = 1) -> None:
        super().__init__()
        self.grid, self.width, self.spec, self.steps = grid, width, spec, steps
        self.register_buffer("table", self.sines(grid), persistent=False)

    def sines(self, grid: Size) -> Tensor:
        if isinstance(self.spec, SinCos3d):
            return sincos_3d(self.steps, grid, self.width, self.spec)
        return sincos_2d(grid, self.width, self.spec).repeat(self.steps, 1)

    def compute_buffers(self, device: torch.device | str | None, dtype: torch.dtype) -> None:
        self.table = self.sines(self.grid).to(device, dtype)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        table = self.table if layout.frame == self.grid else self.sines(layout.frame).to(self.table)
        return _add(tokens, layout, table[:0], place(table, layout))


class SinCos1dTable(AddedPosition):
    """Fixed sines of the index in the sequence, prefix included, recomputed for another count."""

    table: Tensor

    def __init__(self, grid: Size, width: int, spec: SinCos1d, *, prefix: int, steps: int = 1) -> None:
        super().__init__()
        self.grid, self.width, self.spec = grid, width, spec
        self.register_buffer("table", sincos_1d(prefix + steps * grid.area, width, spec), persistent=False)

    def compute_buffers(self, device: torch.device | str | None, dtype: torch.dtype) -> None:
        self.table = sincos_1d(len(self.table), self.width, self.spec).to(device, dtype)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        table = self.table
        if layout.frame != self.grid:
            table = sincos_1d(layout.prefix + layout.steps * layout.frame.area, self.width, self.spec).to(table)
        if layout.frame == layout.grid:
            return tokens + table
        prefix, rows = table.split([layout.prefix, layout.steps * layout.frame.area])
        return _add(tokens, layout, prefix, place(rows, layout))


def _add(tokens: Tensor, layout: Layout, prefix: Tensor, rows: Tensor) -> Tensor:
    """Add a row to each patch, and to the leading prefix tokens that have one."""
    before, patches = tokens.split([layout.prefix, tokens.shape[1] - layout.prefix], dim=1)
    if prefix.shape[0]:
        before = before + F.pad(prefix, (0, 0, 0, layout.prefix - prefix.shape[0]))
    return torch.cat([before, patches + rows], dim=1)
