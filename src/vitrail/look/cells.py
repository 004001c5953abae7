"""The position of a token grid on the image, in pixels."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import Config, MobileConfig, PyramidConfig
from vitrail.geometry import Size
from vitrail.parts import Patches, QueryPooling

__all__ = ["Cells", "Spacing", "cells_of"]

Spacing = tuple[float, float]
"""Pixels from one patch to the next: vertically, horizontally."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A grid's top left corner and the size of one cell, in pixels of the model's input image.

    >>> from vitrail import Size, preset
    >>> from vitrail.look import cells_of
    >>> cells_of(preset("B/16"), Size(14, 14), Size(224, 224)).grid
    Size(height=14, width=14)
    """

    grid: Size
    step: Spacing
    top: float = 0.0
    left: float = 0.0

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """(left, right, bottom, top), the order of matplotlib's imshow."""
        return (
            self.left,
            self.left + self.step[1] * self.grid.width,
            self.top + self.step[0] * self.grid.height,
            self.top,
        )

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return (top, left, height, width) of one cell."""
        return self.top + row * self.step[0], self.left + column * self.step[1], *self.step


def cells_of(config: Config, grid: Size, seen: Size) -> Cells:
    """Return the cells of a layer's `grid` on an image of `seen` pixels, which leaves no remainder.

    Cells of overlapping patches have the size of the stride, around the patches' centres; in every further stage of a
    pyramid they are twice as large, around every other centre.

    >>> from vitrail import Size, preset
    >>> from vitrail.look import cells_of
    >>> cells_of(preset("B/16"), Size(14, 14), Size(224, 224)).grid
    Size(height=14, width=14)
    """
    embedding = None if isinstance(config, MobileConfig) else config.embedding
    if isinstance(embedding, Patches) and embedding.stride is not None:
        level = config.grids_on(seen).index(grid) if isinstance(config, PyramidConfig) else 0
        patch, (down, right) = embedding.patch, (side * 2**level for side in embedding.stride)
        if isinstance(config, PyramidConfig) and isinstance(config.merging, QueryPooling):  # whole cells are pooled
            sides = zip(patch, embedding.stride, embedding.padding, strict=True)
            top, left = ((side - step) / 2 - zeros for side, step, zeros in sides)
            return Cells(grid=grid, step=(down, right), top=top, left=left)
        return Cells(grid=grid, step=(down, right), top=(patch.height - down) / 2, left=(patch.width - right) / 2)
    return Cells(grid=grid, step=(seen.height / grid.height, seen.width / grid.width))
