"""The sizes of a token sequence, passed along with the tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Sizes"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that the cost of a block depends on."""

    batch: int
    patches: int
    """Patch tokens per image: the grid's cells, or fewer for adaptive patches."""
    tokens: int
    width: int
    num_heads: int
    table: int | None = None
    """Cells of the position table, if it was made for another grid."""

    def split(self, ways: int) -> Sizes:
        """Return the sizes of a device's share of the heads."""
        return self if ways == 1 else replace(self, width=self.width // ways, num_heads=self.num_heads // ways)

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads
