"""Where the tokens of a batch lie: it travels with them, so that nothing has to guess a grid from a count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.geometry import Size

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """A batch's tokens: `prefix` of them first, then the patches, row by row over `grid`.

    Shapes: B images, T = prefix + N tokens.
    """

    grid: Size
    """The grid of the patches; for adaptive patches, the finest."""
    frame: Size
    """The grid that positions are laid out on: `grid`, or the canvas that a padded image sits on, top left."""
    prefix: int = 0
    mask: Tensor | None = None
    """(B, T), true where a token is real; None where all are."""
    rectangles: Tensor | None = None
    """(B, N, 4): top, left, height, width in cells of `grid`, for adaptive patches; None for a regular grid."""

    def with_prefix(self, prefix: int) -> Layout:
        """The same patches with that many prefix tokens before them."""
        mask = self.mask
        if mask is not None and prefix:
            mask = torch.cat([mask.new_ones(mask.shape[0], prefix), mask], dim=1)
        return replace(self, prefix=self.prefix + prefix, mask=mask)

    @property
    def patch_mask(self) -> Tensor | None:
        """(B, N), true where a patch is real; None where all are."""
        return None if self.mask is None else self.mask[:, self.prefix :]

    def centres(self, device: torch.device) -> Tensor:
        """(N, 2), or (B, N, 2) for adaptive patches: row and column of every patch's centre, counted in patches."""
        if self.rectangles is not None:
            corner, extent = self.rectangles.to(device, torch.float32).chunk(2, dim=-1)
            return corner + (extent - 1) / 2
        rows = torch.arange(self.grid.height, device=device, dtype=torch.float32)
        columns = torch.arange(self.grid.width, device=device, dtype=torch.float32)
        return torch.cartesian_prod(rows, columns).view(-1, 2)
