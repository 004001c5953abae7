"""Positions: how the model knows where a patch is.

Each kind describes itself: where it acts, what it learns, what happens to it on another grid. Other files ask the
kind, so a new one needs only a class here, a module in `vitrail.nn` and a cost in `vitrail.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

from vitrail.errors import require
from vitrail.geometry import Size, offsets_of
from vitrail.parts.prefix import Prefix
from vitrail.rules import Range, multiple
from vitrail.value import Value

if TYPE_CHECKING:
    from vitrail.config import ViTConfig

__all__ = [
    "Convention",
    "Learned",
    "NoPosition",
    "Position",
    "PositionKind",
    "RelativeBias",
    "RelativeConvention",
    "Rotary",
    "RotaryMixed",
    "SinCos1d",
    "SinCos2d",
    "position_variants",
]

Convention = Literal["timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2"]
RelativeConvention = Literal["timm", "huggingface"]
Temperature = Annotated[float, Range("(0, inf)", "10000 is usual for sines, 100 for rotary positions")]


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


@dataclass(frozen=True, kw_only=True)
class Learned(PositionKind):
    """A learned row per token, added once. `prefix` says which prefix tokens have a row.

    With `rotary`, queries and keys are rotated too, in every block, as in EVA-02 and the Perception Encoder.

    >>> from vitrail import Learned, Rotary, ViTConfig
    >>> ViTConfig(position=Learned()).position_parameters
    151296
    >>> ViTConfig(position=Learned(rotary=Rotary())).position.inside
    Rotary()
    """

    prefix: Literal["all", "cls", "none"] = "all"
    convention: Convention = "timm"
    rotary: Rotary | RotaryMixed | None = None

    acts_on = "tokens"
    resampled = True

    @property
    def name(self) -> str:
        return "Learned" if self.rotary is None else f"Learned and {self.rotary.name}"

    @property
    def inside(self) -> PositionKind | None:
        return self.rotary

    def describe(self) -> Description:
        if self.rotary is not None:
            beside = self.rotary.describe()
            return Description(
                words=f"learned and {beside.words}",
                about=f"One learned vector per patch, added once. {beside.about}",
                on_new_grid=f"the table is resampled; rotations are {beside.on_new_grid}",
            )
        return Description(
            words="learned",
            about=(
                "One learned vector per patch. Training is not given the patches' coordinates: any structure of rows "
                "and columns in the table was learned from images, or was there at initialisation."
            ),
            on_new_grid="resampled, which changes their finest detail",
        )

    def prefix_rows(self, prefix: Prefix) -> int:
        """Return the number of prefix tokens that have a row, always the first ones."""
        return {"all": prefix.count, "cls": int(prefix.cls), "none": 0}[self.prefix]

    def learns(self, config: ViTConfig) -> Learning:
        grid, width, rows = config.grid, config.width, self.prefix_rows(config.prefix)
        beside = self.rotary.learns(config) if isinstance(self.rotary, RotaryMixed) else None
        return Learning(
            (grid.area + rows) * width + (beside.count if beside else 0),
            "(h · w + prefix) · D" + (f" + {beside.symbols}" if beside else ""),
            f"({grid.height} · {grid.width} + {rows}) · {width}" + (f" + {beside.numbers}" if beside else ""),
        )

    def check(self, config: ViTConfig) -> None:
        if self.rotary is not None:
            self.rotary.check(config)


@dataclass(frozen=True, kw_only=True)
class SinCos1d(PositionKind):
    """Sine and cosine of the sequence index, added once; nothing learned.

    >>> from vitrail import SinCos1d, ViTConfig
    >>> ViTConfig(position=SinCos1d()).position_parameters
    0
    """

    temperature: Temperature = 10_000.0

    acts_on = "tokens"
    on_regular_grids_only = True

    def describe(self) -> Description:
        return Description(
            words="1D sines",
            about=(
                "Sines of the index in the sequence. The patch to the right is 1 step away, the patch below "
                "a whole row: the second dimension is not encoded."
            ),
            on_new_grid="recomputed: larger indices, rows and columns not distinguished",
        )

    def check(self, config: ViTConfig) -> None:
        multiple(self.name, "width", config.width, 2)


@dataclass(frozen=True, kw_only=True)
class SinCos2d(PositionKind):
    """Sine and cosine of row and column, half the width each, added once; prefix rows are zero.

    `layout` orders the same values: "interleaved" (the row's sin, cos, sin, cos …, then the column's), "timm" (sines of
    row and column, then cosines), "mae" (the column's sines, its cosines, then the row's), "big_vision" (as mae, with
    the lowest frequency exactly 1 / temperature).

    >>> from vitrail import SinCos2d, ViTConfig
    >>> ViTConfig(position=SinCos2d()).position_parameters
    0
    """

    layout: Literal["interleaved", "timm", "mae", "big_vision"] = "interleaved"
    temperature: Temperature = 10_000.0

    acts_on = "tokens"

    def describe(self) -> Description:
        return Description(
            words="2D sines",
            about="Half of the values encode the row, half the column: similarity to a patch forms a cross around it.",
            on_new_grid="recomputed: exact, at the same spacing",
        )

    def check(self, config: ViTConfig) -> None:
        multiple(self.name, "width", config.width, 4)
        require(
            self.layout != "big_vision" or config.width >= 8,
            f"width {config.width} leaves the big_vision layout one frequency; use a width of 8 or more",
        )


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
class Rotary(PositionKind):
    """2D axial rotary positions: queries and keys are rotated by angles of row and column; nothing learned.

    `coordinates`: "index" (0, 1, 2 …, as RoPE-ViT and EVA-02) or "normalised" (each axis from −1 to 1, as DINOv3). An
    index may begin at `offset`, and be scaled to a `reference` grid, whose indices a model keeps on finer grids.

    >>> from vitrail import Rotary, ViTConfig
    >>> ViTConfig(position=Rotary()).position_parameters
    0
    """

    coordinates: Literal["index", "normalised"] = "index"
    temperature: Temperature = 100.0
    pairs: Literal["neighbours", "halves"] | None = None
    """Which two values rotate together: neighbours, or two that are half a head apart; None for the usual ones, which
    are neighbours by index and halves if normalised."""
    first: Literal["rows", "columns"] = "rows"
    """The axis that the first half of the pairs rotates with."""
    offset: Annotated[float, Range("[0, inf)", "0 is usual")] = 0.0
    reference: Size | None = None

    acts_on = "queries and keys"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.coordinates == "index" or (self.offset == 0 and self.reference is None),
            "offset and reference are for coordinates 'index', and these are normalised; leave them out",
        )

    @property
    def halves(self) -> bool:
        """Whether a pair is two values half a head apart."""
        return self.pairs == "halves" if self.pairs else self.coordinates == "normalised"

    @property
    def name(self) -> str:
        return f"{type(self).__name__} ({self.coordinates})"

    def describe(self) -> Description:
        if self.reference is not None:
            return Description(
                words="rotary, by scaled index",
                about="Queries and keys are rotated by row and column, scaled to a reference grid.",
                on_new_grid=f"recomputed: indices are scaled to those of grid {self.reference}, so they interpolate",
            )
        if self.stretches:
            return Description(
                words="rotary, normalised",
                about=(
                    "Queries and keys are rotated by their position between the image's edges, −1 … 1: on a finer "
                    "grid, neighbouring patches differ by a smaller angle."
                ),
                on_new_grid="recomputed: coordinates stay between −1 and 1, so they interpolate",
            )
        return Description(
            words="rotary, by index",
            about="Queries and keys are rotated by row and column; their product sees the offset alone.",
            on_new_grid="recomputed: a larger grid has indices beyond those of training",
        )

    @property
    def stretches(self) -> bool:
        return self.coordinates == "normalised" or self.reference is not None

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return tuple(cls(coordinates=coordinates) for coordinates in ("index", "normalised"))

    def check(self, config: ViTConfig) -> None:
        multiple(type(self).__name__, "head width", config.head_width, 4)


@dataclass(frozen=True, kw_only=True)
class RotaryMixed(PositionKind):
    """2D rotary positions with learned directions per block and head (RoPE-Mixed, arXiv 2403.13298).

    >>> from vitrail import RotaryMixed, ViTConfig
    >>> ViTConfig(position=RotaryMixed()).position_parameters
    9216
    """

    temperature: Temperature = 10.0

    acts_on = "queries and keys"

    def describe(self) -> Description:
        return Description(
            words="rotary, mixed",
            about="Queries and keys are rotated along learned directions, per head; their product sees the offset.",
            on_new_grid="recomputed: the learned frequencies extrapolate",
        )

    @property
    def per_block(self) -> bool:
        return True

    def learns(self, config: ViTConfig) -> Learning:
        return Learning(
            config.width * config.depth,  # a row and a column frequency for every pair of values
            "2 · heads · (d / 2) · depth = D · depth",
            f"{config.width} · {config.depth}",
        )

    def check(self, config: ViTConfig) -> None:
        multiple(self.name, "head width", config.head_width, 2)


@dataclass(frozen=True, kw_only=True)
class NoPosition(PositionKind):
    """No positions: the encoder is permutation-equivariant.

    >>> from vitrail import NoPosition, ViTConfig
    >>> ViTConfig(position=NoPosition()).position_parameters
    0
    """

    acts_on = "nothing"

    def describe(self) -> Description:
        return Description(
            words="none",
            about=(
                "All positions are equal. If the patches are shuffled, the outputs are shuffled the same way: the "
                "encoder sees a bag of patches."
            ),
            on_new_grid="nothing to do",
        )


Position = Learned | SinCos1d | SinCos2d | RelativeBias | Rotary | RotaryMixed | NoPosition


def position_variants() -> tuple[Position, ...]:
    """Every kind of position, with each setting that behaves differently on another grid.

    >>> from vitrail import position_variants
    >>> len(position_variants())
    9
    """
    return tuple(variant for kind in get_args(Position) for variant in kind.variants())
