"""The layout of a batch's tokens. It is passed along with them, so that a grid is never inferred from a count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.geometry import Size

__all__ = ["Layout"]


@dataclass(frozen=True, repr=False)
class Layout(Brief):
    """How a batch's tokens are arranged: `prefix` tokens first, then the patches, row by row over `grid`; in a clip,
    the grid of every step in turn.

    Shapes: B images, T = prefix + N tokens.
    """

    grid: Size
    """The grid of the patches; for adaptive patches, the finest."""
    frame: Size
    """The grid that positions refer to: `grid`, or the config's grid for an image padded to it (image at top left)."""
    prefix: int = 0
    mask: Tensor | None = None
    """(B, T), true for tokens that are not padding; None if there is no padding."""
    rectangles: Tensor | None = None
    """(B, N, 4): top, left, height, width in cells of `grid`, for adaptive patches; None for a regular grid."""
    steps: int = 1
    """Grids of a clip, one after the other in time: N = steps · grid.area. A still image has one."""

    def with_prefix(self, prefix: int) -> Layout:
        """Return the layout with this many prefix tokens before the patches."""
        mask = self.mask
        if mask is not None and prefix:
            mask = torch.cat([mask.new_ones(mask.shape[0], prefix), mask], dim=1)
        return replace(self, prefix=self.prefix + prefix, mask=mask)

    @property
    def patch_mask(self) -> Tensor | None:
        """(B, N), true for patches that are not padding; None if there is no padding."""
        return None if self.mask is None else self.mask[:, self.prefix :]

    def centres(self, device: torch.device) -> Tensor:
        """Return row and column of every patch's centre, in patches: (N, 2), or (B, N, 2) for adaptive patches."""
        if self.rectangles is not None:
            corner, extent = self.rectangles.to(device, torch.float32).chunk(2, dim=-1)
            return corner + (extent - 1) / 2
        rows = torch.arange(self.grid.height, device=device, dtype=torch.float32)
        columns = torch.arange(self.grid.width, device=device, dtype=torch.float32)
        return torch.cartesian_prod(rows, columns).view(-1, 2).repeat(self.steps, 1)

    def step_of_patches(self, device: torch.device) -> Tensor:
        """Return the step of every patch: (N,)."""
        return torch.arange(self.steps, device=device, dtype=torch.float32).repeat_interleave(self.grid.area)
