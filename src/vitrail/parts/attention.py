"""Kinds of attention: which tokens attend to which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.rules import NonNegativeInt
from vitrail.value import Value

__all__ = [
    "AttentionKind",
    "FullAttention",
    "LinearAttention",
    "SeparableAttention",
    "SparseAttention",
    "WindowPadding",
    "WindowedAttention",
]

WindowPadding = Literal["masked", "zeros"]


@dataclass(frozen=True, kw_only=True)
class _Attention(Value):
    """Properties of every kind of attention."""

    scores: ClassVar[bool] = True
    """Whether there is a score matrix, to which a bias can be added and dropout applied."""
    can_rotate: ClassVar[bool] = True
    """Whether queries and keys may be rotated, which can make their products negative."""
    on_regular_grids_only: ClassVar[bool] = False

    def span(self, grid: Size) -> Size:
        """Return the size of the area within which patches attend to each other in one block."""
        return grid

    def at(self, block: int) -> AttentionKind:
        """Return the attention of a block, by its index."""
        assert isinstance(self, AttentionKind)
        return self


@dataclass(frozen=True, kw_only=True)
class FullAttention(_Attention):
    """Every token attends to every token. `fused` uses PyTorch's kernel instead of an explicit softmax(QKᵀ/√d)V.

    >>> from vitrail import FullAttention, ViTConfig
    >>> ViTConfig(attention=FullAttention(fused=False)).attention
    FullAttention(fused=False)
    """

    fused: bool = True


@dataclass(frozen=True, kw_only=True)
class WindowedAttention(_Attention):
    """Patches attend within windows of the grid, and to the prefix; the prefix attends to all tokens.

    With `shift`, every other block shifts its windows by half of their size, as Swin does. If windows do not divide the
    grid, `window_padding` says how the last ones are padded: "masked", with padding that nothing attends to; or
    "zeros", with zero tokens that take part in attention, as in timm's Swin. Windows and shifts are then always those
    of the config's own grid. Blocks whose index is in `full` attend to the whole grid, as in SAM and Qwen2.5-VL.

    >>> from vitrail import Size, ViTConfig, WindowedAttention
    >>> ViTConfig(attention=WindowedAttention(window=Size(7, 7))).attention.window
    Size(height=7, width=7)
    """

    window: Size = Size(7, 7)
    shift: bool = True
    window_padding: WindowPadding = "masked"
    full: tuple[NonNegativeInt, ...] = ()

    on_regular_grids_only = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.full and self.shift),
            "windows are shifted to connect them, which full blocks do already; use shift=False with full",
        )

    def at(self, block: int) -> AttentionKind:
        return FullAttention() if block in self.full else self

    def span(self, grid: Size) -> Size:
        return Size(*map(min, self.window, grid))


@dataclass(frozen=True, kw_only=True)
class SparseAttention(_Attention):
    """Criss-cross attention: a patch attends to its row, its column and the prefix; the prefix attends to all tokens.

    On an h×w grid a patch attends to h + w − 1 patches, and two blocks connect any two patches.

    >>> from vitrail import SparseAttention, ViTConfig
    >>> ViTConfig(attention=SparseAttention()).attention
    SparseAttention()
    """

    scores = False
    on_regular_grids_only = True


@dataclass(frozen=True, kw_only=True)
class LinearAttention(_Attention):
    """φ(Q)(φ(K)ᵀV) with φ = elu + 1, normalised per query: linear in the number of tokens (arXiv 2006.16236).

    >>> from vitrail import LinearAttention, ViTConfig
    >>> ViTConfig(attention=LinearAttention()).attention
    LinearAttention()
    """

    scores = False
    can_rotate = False


@dataclass(frozen=True, kw_only=True)
class SeparableAttention(Value):
    """MobileViT v2's attention, for mobile networks: one score per token, whose softmax sums the keys to a context that
    multiplies every value. It is linear in the number of tokens and has no heads (arXiv 2206.02680).

    >>> from vitrail import preset
    >>> preset("mobilevitv2-1.0").attention
    SeparableAttention()
    """


AttentionKind = FullAttention | WindowedAttention | SparseAttention | LinearAttention
