"""The sizes that travel with the tokens."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sizes"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much goes through a block: images, tokens and their width."""

    batch: int
    patches: int
    """Patch tokens per image: the grid's cells, or fewer where patches are adaptive."""
    tokens: int
    width: int
    num_heads: int

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads
