"""The grid of shifted passes, without torch: how fine it is, where its cells are, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Patches
from vitrail.server.limits import shifts_of

__all__ = ["FineGrid", "fine_grid"]

PER_MILLE = 1000


@dataclass(frozen=True, kw_only=True)
class FineGrid:
    """A token every patch ÷ `shifts` pixels, of an image that the model sees as `whole` pixels."""

    whole: Size
    patch: Size
    shifts: int
    width: int

    @property
    def step(self) -> Size:
        return Size(*(side // self.shifts for side in self.patch))

    @property
    def grid(self) -> Size:
        return Size(*(side // step for side, step in zip(self.whole, self.step, strict=True)))

    @property
    def passes(self) -> int:
        return self.shifts**2

    @property
    def feature_bytes(self) -> int:
        return 4 * self.width * self.grid.area

    def cell(self, down: int, across: int) -> tuple[int, int]:
        """Return the row and column of the cell at a place in thousandths of the grid's height and width."""
        row, column = (
            min(count - 1, at * count // PER_MILLE) for at, count in zip((down, across), self.grid, strict=True)
        )
        return row, column

    def pixel(self, down: int, across: int, original: Size) -> tuple[float, float]:
        """Return the same place in pixels of the original image: the middle of the cell."""
        row, column = (
            ((side - step) / 2 + (cell + 0.5) * step) / (whole + side - step) * pixels
            for cell, side, step, whole, pixels in zip(
                self.cell(down, across), self.patch, self.step, self.whole, original, strict=True
            )
        )
        return row, column


def fine_grid(config: Config, whole: Size, shifts: int) -> FineGrid:
    """Return the grid of a model's shifted passes; raise `VitrailError` for a model that has none."""
    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches) or config.embedding.stride:
        raise VitrailError("dense features need a plain ViT with patches that do not overlap; choose such a model")
    allowed = shifts_of(config)
    require(
        shifts in allowed,
        f"{shifts} shifts do not divide the patch {config.patch}; use one of {', '.join(map(str, allowed))}",
    )
    return FineGrid(whole=whole, patch=config.patch, shifts=shifts, width=config.feature_width)
