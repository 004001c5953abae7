"""Positions of Hiera: a coarse table for the whole image, and a table for a window that is repeated over the grid."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.geometry import Size
from vitrail.parts.position_kind import Description, PositionKind

__all__ = ["TiledTable"]


@dataclass(frozen=True, kw_only=True)
class TiledTable(PositionKind):
    """A learned table of a coarse grid, resized to the grid of the first stage, plus one of a window, repeated over it
    (arXiv 2311.05613); for pyramids with query pooling.

    >>> from vitrail import preset
    >>> preset("sam2-hiera-T").position
    TiledTable()
    """

    background: Size = Size(7, 7)
    """The coarse grid."""

    acts_on = "tokens"
    resampled = True

    def describe(self) -> Description:
        return Description(
            words="learned, tiled",
            about=(
                f"One learned vector for each cell of a {self.background} grid, resized to the patches, and one for "
                "each place in a window, repeated over all windows."
            ),
            on_new_grid="resized anew from the coarse table; the window's is repeated",
        )
