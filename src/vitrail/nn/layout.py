"""Where the tokens of a batch lie: it travels with them, so that nothing has to guess a grid from a count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitrail.geometry import Size

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """B images' tokens: `prefix` of them first, then N patches, row by row over `grid`."""

    grid: Size
    """The grid of the patches; for adaptive patches, the finest."""
    frame: Size
    """The grid that positions are laid out on: `grid`, or the canvas that a padded image sits on, top left."""
    prefix: int = 0
    mask: Tensor | None = None
    """(B, N), true where a patch is real; None where all are."""
    rectangles: Tensor | None = None
    """(B, N, 4): top, left, height, width in cells of `grid`, for adaptive patches; None for a regular grid."""
