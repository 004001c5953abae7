"""Positions: how the model knows where a patch is.

Each kind describes itself (`parts.position_kind`), and other files ask it, so a new one needs only a class here, a
module in `vitrail.nn` and a cost in `vitrail.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts.position_kind import Description, Learning, PositionKind
from vitrail.parts.prefix import Prefix
from vitrail.parts.relative import DecomposedBias, RelativeBias, RelativeMlp
from vitrail.rules import Range, multiple

if TYPE_CHECKING:
    from vitrail.config import ViTConfig

__all__ = [
    "Convention",
    "Learned",
    "NoPosition",
    "Position",
    "Rotary",
    "Rotary3d",
    "RotaryMixed",
    "SinCos1d",
    "SinCos2d",
    "SinCos3d",
    "position_variants",
]

Convention = Literal["timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2"]
Temperature = Annotated[float, Range("(0, inf)", "10000 is usual for sines, 100 for rotary positions")]


@dataclass(frozen=True, kw_only=True)
class Learned(PositionKind):
    """A learned row per token, added once. `prefix` says which prefix tokens have a row.

    With `rotary`, queries and keys are rotated too, in every block, as in EVA-02 and the Perception Encoder; with
    `relative`, a bias is added to the scores of every block, as in SAM.

    >>> from vitrail import Learned, Rotary, ViTConfig
    >>> ViTConfig(position=Learned()).position_parameters
    151296
    >>> ViTConfig(position=Learned(rotary=Rotary())).position.inside
    Rotary()
    """

    prefix: Literal["all", "cls", "none"] = "all"
    convention: Convention = "timm"
    rotary: Rotary | RotaryMixed | None = None
    relative: DecomposedBias | None = None

    acts_on = "tokens"
    resampled = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.rotary is None or self.relative is None,
            "rotary and relative positions beside one table are not supported; give one of them",
        )

    @property
    def name(self) -> str:
        return "Learned" if self.inside is None else f"Learned and {self.inside.name}"

    @property
    def inside(self) -> Rotary | RotaryMixed | DecomposedBias | None:
        return self.rotary or self.relative

    def describe(self) -> Description:
        if self.inside is not None:
            beside, what = self.inside.describe(), "rotations" if self.rotary else "biases"
            return Description(
                words=f"learned and {beside.words}",
                about=f"One learned vector per patch, added once. {beside.about}",
                on_new_grid=f"the table is resampled; {what} are {beside.on_new_grid}",
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
        beside = self.inside.learns(config) if isinstance(self.inside, RotaryMixed | DecomposedBias) else None
        steps, times = ("steps · ", f"{config.steps} · ") if config.steps > 1 else ("", "")
        return Learning(
            (config.steps * grid.area + rows) * width + (beside.count if beside else 0),
            f"({steps}h · w + prefix) · D" + (f" + {beside.symbols}" if beside else ""),
            f"({times}{grid.height} · {grid.width} + {rows}) · {width}" + (f" + {beside.numbers}" if beside else ""),
        )

    def check(self, config: ViTConfig) -> None:
        if self.inside is not None:
            self.inside.check(config)


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
class SinCos3d(PositionKind):
    """Sine and cosine of step, row and column, a third of the width each, added once; prefix rows are zero.

    An axis has its sines, then its cosines, as in V-JEPA (arXiv 2404.08471). If the width is not a multiple of 6,
    thirds are rounded up and the last values are cut.

    >>> from vitrail import SinCos3d, Tubelets, ViTConfig
    >>> ViTConfig(embedding=Tubelets(), position=SinCos3d()).position_parameters
    0
    """

    temperature: Temperature = 10_000.0

    acts_on = "tokens"
    on_regular_grids_only = True

    def describe(self) -> Description:
        return Description(
            words="3D sines",
            about="A third of the values encodes the step in time, a third the row and a third the column.",
            on_new_grid="recomputed: exact, at the same spacing",
        )

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return ()  # on one grid it is 2D sines of a smaller width

    def check(self, config: ViTConfig) -> None:
        multiple(self.name, "width", config.width, 2)


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
class Rotary3d(PositionKind):
    """Rotary positions of step, row and column as V-JEPA 2 has them (arXiv 2506.09985); nothing learned.

    Each axis has a third of a head's values, rounded down to pairs; values that are left over are not rotated. The
    value at place j of a third of 2k values turns by frequency j mod k, with its neighbour as its partner: the two turn
    by different angles, which is no rotation, but it is what the models were trained with.

    >>> from vitrail import Rotary3d, Tubelets, ViTConfig
    >>> ViTConfig(embedding=Tubelets(), position=Rotary3d()).position_parameters
    0
    """

    temperature: Temperature = 10_000.0

    acts_on = "queries and keys"
    on_regular_grids_only = True

    def describe(self) -> Description:
        return Description(
            words="rotary, 3D",
            about="Queries and keys are turned by step, row and column, a third of their values each.",
            on_new_grid="recomputed: a larger grid has indices beyond those of training",
        )

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return ()  # it is for clips

    def pairs(self, head_width: int) -> int:
        """Return the number of pairs of values that each axis turns."""
        return head_width // 6

    def check(self, config: ViTConfig) -> None:
        require(
            self.pairs(config.head_width) > 0,
            f"head width {config.head_width} has no pair of values for each of three axes; use 6 or more",
        )


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


Position = (
    Learned
    | SinCos1d
    | SinCos2d
    | SinCos3d
    | RelativeBias
    | RelativeMlp
    | DecomposedBias
    | Rotary
    | Rotary3d
    | RotaryMixed
    | NoPosition
)


def position_variants() -> tuple[Position, ...]:
    """Every kind of position, with each setting that behaves differently on another grid.

    >>> from vitrail import position_variants
    >>> len(position_variants())
    11
    """
    return tuple(variant for kind in get_args(Position) for variant in kind.variants())
