"""Which tokens attend to which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrail.geometry import Size
from vitrail.value import Value

__all__ = ["AttentionKind", "FullAttention", "LinearAttention", "SparseAttention", "WindowPadding", "WindowedAttention"]

WindowPadding = Literal["masked", "zeros"]


@dataclass(frozen=True, kw_only=True)
class _Attention(Value):
    """What every kind says about itself."""

    scores: ClassVar[bool] = True
    """Queries and keys meet in a matrix of scores, which a bias can be added to and dropout can drop from."""
    turns: ClassVar[bool] = True
    """Queries and keys may be turned: their products may be negative."""
    on_regular_grids_only: ClassVar[bool] = False

    def span(self, grid: Size) -> Size:
        """The part of the grid in which any two patches meet in one block."""
        return grid


@dataclass(frozen=True, kw_only=True)
class FullAttention(_Attention):
    """Every token attends to every token. `fused` uses PyTorch's kernel; otherwise softmax(QKᵀ/√d)V is explicit."""

    fused: bool = True


@dataclass(frozen=True, kw_only=True)
class WindowedAttention(_Attention):
    """Patches attend within windows of the grid, and to the prefix; the prefix attends to all.

    With `shift`, every other block moves its windows by half of their size, as Swin does. Where windows do not divide
    the grid, `window_padding` says what fills the last ones: "masked", padding that nothing attends to; or "zeros",
    zero tokens that take part in attention, as in timm's Swin, by windows and shifts of the config's own grid.
    """

    window: Size = Size(7, 7)
    shift: bool = True
    window_padding: WindowPadding = "masked"

    on_regular_grids_only = True

    def span(self, grid: Size) -> Size:
        return Size(*map(min, self.window, grid))


@dataclass(frozen=True, kw_only=True)
class SparseAttention(_Attention):
    """Criss-cross: a patch attends to its row, its column and the prefix; the prefix attends to all.

    A patch of an h×w grid sees h + w − 1 patches, and any two patches are joined within two blocks.
    """

    scores = False
    on_regular_grids_only = True


@dataclass(frozen=True, kw_only=True)
class LinearAttention(_Attention):
    """φ(Q)(φ(K)ᵀV) with φ = elu + 1, normalised per query: linear in tokens (arXiv 2006.16236)."""

    scores = False
    turns = False


AttentionKind = FullAttention | WindowedAttention | SparseAttention | LinearAttention
