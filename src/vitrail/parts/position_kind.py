"""What every kind of position says of itself: where it acts, what it learns, what happens to it on another grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from vitrail.value import Value

if TYPE_CHECKING:
    from vitrail.config import ViTConfig

__all__ = ["PositionKind"]


@dataclass(frozen=True)
class Description:
    """A kind of position, described for readers."""

    words: str
    """A short name for charts and pages."""
    about: str
    """What it is and what follows from that, in a sentence or two."""
    on_new_grid: str
    """What happens to the positions if the model runs on another grid."""


@dataclass(frozen=True)
class Learning:
    """The number of learned values, and its formula in symbols and in numbers."""

    count: int
    symbols: str
    numbers: str


@dataclass(frozen=True, kw_only=True)
class PositionKind(Value):
    """Properties of every kind of position.

    >>> from vitrail import PositionKind, Rotary
    >>> isinstance(Rotary(), PositionKind), Rotary().describe().words
    (True, 'rotary, by index')
    """

    acts_on: ClassVar[Literal["tokens", "queries and keys", "scores", "nothing"]]
    """What the position changes: the tokens, once, or the attention of every block."""
    on_regular_grids_only: ClassVar[bool] = False
    resampled: ClassVar[bool] = False
    """Whether a learned table is resampled on another grid; otherwise positions are recomputed."""

    @property
    def name(self) -> str:
        """The type's name, with the setting that distinguishes its variants."""
        return type(self).__name__

    def describe(self) -> Description:
        raise NotImplementedError

    @property
    def per_block(self) -> bool:
        """Whether every block has its own position module; otherwise all blocks share one."""
        return False

    @property
    def inside(self) -> PositionKind | None:
        """The position that acts inside attention: this one, one beside a table, or None."""
        return self if self.acts_on in ("queries and keys", "scores") else None

    @property
    def stretches(self) -> bool:
        """Whether distances scale with the grid, so that a larger grid has none that training did not have."""
        return self.resampled

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        """Return an instance for each setting that behaves differently on another grid."""
        return (cls(),)

    def learns(self, config: ViTConfig) -> Learning:
        """Return what a model of this config learns, over all blocks."""
        return Learning(0, "a fixed function of the position, or none", "not learned")

    def check(self, config: ViTConfig) -> None:
        """Raise an error if this kind cannot be used with the config."""
