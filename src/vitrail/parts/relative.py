"""Relative positions: a bias for the offset between two patches, added to their attention score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from vitrail.errors import require
from vitrail.geometry import Size, offsets_of
from vitrail.parts.attention import WindowedAttention
from vitrail.parts.position_kind import Description, Learning, PositionKind
from vitrail.rules import PositiveInt

if TYPE_CHECKING:
    from vitrail.config import ViTConfig

__all__ = ["DecomposedBias", "RelativeBias", "RelativeConvention", "RelativeMlp"]

RelativeConvention = Literal["timm", "huggingface"]


@dataclass(frozen=True, kw_only=True)
class RelativeBias(PositionKind):
    """A learned bias per head and per (row, column) offset, added to the scores of every block.

    `shared` uses one table for all blocks. `prefix` adds BEiT's three entries for the CLS token (to it, from it, with
    itself); otherwise prefix tokens get no bias. `convention` says how a table is resampled for another grid:
    "huggingface" stretches all offsets with the grid, bilinearly; "timm" keeps near offsets, counted in patches, and
    stretches far ones, as BEiT's fine-tuning code does.

    >>> from vitrail import RelativeBias, ViTConfig
    >>> ViTConfig(position=RelativeBias()).position_parameters
    105408
    """

    shared: bool = False
    prefix: bool = True
    convention: RelativeConvention = "huggingface"

    acts_on = "scores"
    on_regular_grids_only = True
    resampled = True

    @property
    def name(self) -> str:
        return f"{type(self).__name__} ({self.convention})"

    def describe(self) -> Description:
        near = "near offsets, counted in patches, keep their biases, and far ones are stretched"
        return Description(
            words="relative bias",
            about="A learned value per head for every offset between two patches, added to the attention scores.",
            on_new_grid=f"resampled: {near if self.convention == 'timm' else 'offsets are stretched with the grid'}",
        )

    @property
    def per_block(self) -> bool:
        return not self.shared

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return tuple(cls(convention=convention) for convention in ("huggingface", "timm"))

    def entries(self, span: Size) -> int:
        """Return the rows of a table for a grid or a window."""
        return offsets_of(span).area + 3 * self.prefix

    def learns(self, config: ViTConfig) -> Learning:
        span, heads, blocks = config.attention.span(config.grid), config.num_heads, 1 if self.shared else config.depth
        offsets, more = offsets_of(span), " + 3" if self.prefix else ""
        return Learning(
            self.entries(span) * heads * blocks,
            f"((2h − 1) · (2w − 1){more}) · heads" + ("" if self.shared else " · depth"),
            f"({offsets.height} · {offsets.width}{more}) · {heads}" + ("" if self.shared else f" · {blocks}"),
        )

    def check(self, config: ViTConfig) -> None:
        require(
            not self.prefix or config.prefix.count > 0,
            "RelativeBias has prefix entries but the model has no prefix; use RelativeBias(prefix=False)",
        )


@dataclass(frozen=True, kw_only=True)
class RelativeMlp(PositionKind):
    """A bias per head that a small MLP computes from the offset of two patches, in every block or `shared` by all.

    The MLP reads logarithms of the row and column offset. `coordinates`: "index" counts patches, as timm's
    relative-position ViTs; "normalised" goes from −8 to 8 over the grid or window, and the bias from 0 to 16, as Swin
    v2 (arXiv 2111.09883). Normalised offsets may refer to the windows that a model was pretrained with: `reference`
    has one for each stage. `width` is that of the hidden layer. Prefix tokens get no bias.

    >>> from vitrail import RelativeMlp, ViTConfig
    >>> ViTConfig(position=RelativeMlp()).position_parameters
    92160
    """

    shared: bool = False
    coordinates: Literal["index", "normalised"] = "normalised"
    width: PositiveInt = 512
    reference: tuple[Size, ...] = ()

    acts_on = "scores"
    on_regular_grids_only = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.coordinates == "normalised" or not self.reference,
            "reference is for coordinates 'normalised', and these are indices; leave it out",
        )
        require(
            all(min(window) > 1 for window in self.reference),
            f"reference {', '.join(map(str, self.reference))} has a side of 1, which no offset can be scaled by; "
            "give windows of 2x2 or more",
        )

    @property
    def name(self) -> str:
        return f"{type(self).__name__} ({self.coordinates})"

    def describe(self) -> Description:
        extent = "offsets are scaled to the grid, so they interpolate"
        if self.reference:
            extent = "offsets are scaled to the windows of pretraining"
        elif self.coordinates == "index":
            extent = "a larger grid has offsets beyond those of training"
        return Description(
            words="relative MLP" + (", by index" if self.coordinates == "index" else ", normalised"),
            about="An MLP computes a value per head from the offset between two patches, added to the scores.",
            on_new_grid=f"recomputed: {extent}",
        )

    @property
    def per_block(self) -> bool:
        return not self.shared

    @property
    def stretches(self) -> bool:
        return self.coordinates == "normalised" and not self.reference

    @property
    def out_bias(self) -> bool:
        """Whether the last layer has a bias; a normalised bias passes a sigmoid instead."""
        return self.coordinates == "index"

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return tuple(cls(coordinates=coordinates) for coordinates in ("index", "normalised"))

    def learns(self, config: ViTConfig) -> Learning:
        heads, blocks = config.num_heads, 1 if self.shared else config.depth
        more, times = (" + heads" if self.out_bias else ""), ("" if self.shared else " · depth")
        numbers = f"{self.width} · (3 + {heads})" + (f" + {heads}" if self.out_bias else "")
        return Learning(
            (self.width * (3 + heads) + heads * self.out_bias) * blocks,
            f"(m · (3 + heads){more}){times}",
            numbers if self.shared else f"({numbers}) · {blocks}",
        )

    def check(self, config: ViTConfig) -> None:
        require(
            len(self.reference) <= 1,
            f"reference has {len(self.reference)} windows, and a ViT has one stage; give one, or none",
        )


@dataclass(frozen=True, kw_only=True)
class DecomposedBias(PositionKind):
    """A bias that depends on the query: its products with a vector for the row offset and one for the column offset.

    Every block learns its own vectors, which its heads share, for the offsets within its window or within the grid
    (MViTv2, arXiv 2112.01526). SAM has it beside a table: `Learned(relative=DecomposedBias())`.

    >>> from vitrail import DecomposedBias, MeanPool, Prefix, ViTConfig
    >>> ViTConfig(position=DecomposedBias(), prefix=Prefix(cls=False), pool=MeanPool()).position_parameters
    41472
    """

    acts_on = "scores"
    on_regular_grids_only = True
    resampled = True

    def describe(self) -> Description:
        return Description(
            words="decomposed relative bias",
            about=(
                "A learned vector for every row offset and one for every column offset. Their products with the query "
                "are added to the attention scores, so that the bias depends on what the patch shows."
            ),
            on_new_grid="resampled: offsets are stretched with the grid; those of windows are kept",
        )

    @property
    def per_block(self) -> bool:
        return True

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return ()  # it depends on the queries, so that nothing can be said of two places alone

    def learns(self, config: ViTConfig) -> Learning:
        attention, grid, d = config.attention, config.grid, config.head_width
        if not isinstance(attention, WindowedAttention):
            return Learning(
                _offsets(grid) * d * config.depth,
                "(2h + 2w − 2) · d · depth",
                f"{_offsets(grid)} · {d} · {config.depth}",
            )
        full, window = len(attention.full), attention.span(grid)
        windowed = config.depth - full
        return Learning(
            (_offsets(window) * windowed + _offsets(grid) * full) * d,
            "((2r + 2c − 2) · windowed + (2h + 2w − 2) · full) · d",
            f"({_offsets(window)} · {windowed} + {_offsets(grid)} · {full}) · {d}",
        )

    def check(self, config: ViTConfig) -> None:
        require(
            config.prefix.count == 0,
            f"DecomposedBias is between patches, and the model has {config.prefix.count} prefix tokens; "
            "use Prefix(cls=False) and MeanPool()",
        )
        attention = config.attention
        require(
            not (isinstance(attention, WindowedAttention) and attention.shift),
            "DecomposedBias is for windows that stay in place; use shift=False, and full blocks to connect them",
        )


def _offsets(span: Size) -> int:
    """Return the number of row offsets and of column offsets."""
    return sum(offsets_of(span))
