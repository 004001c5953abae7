"""`PyramidConfig`: stages of blocks on ever coarser grids, and the rules between their parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar, Literal, Self

from vitrail.config.base import BaseConfig, Epsilon, NormPlace, QkvBias, check_pool, check_sides
from vitrail.errors import require
from vitrail.geometry import Fit, Size, halved
from vitrail.parts import (
    ClsPool,
    FullAttention,
    Learned,
    MeanPool,
    Merging,
    Patches,
    PatchMerging,
    Prefix,
    QueryPooling,
    RelativeBias,
    RelativeMlp,
    TiledTable,
    WindowedAttention,
)
from vitrail.rules import NonNegativeInt, PositiveInt, Rate, divided_by_heads, multiple
from vitrail.value import Value

__all__ = ["PyramidConfig", "PyramidStage"]


@dataclass(frozen=True, kw_only=True)
class PyramidStage(Value):
    """Blocks of one width on one grid; each stage halves the grid of the one before.

    >>> from vitrail import PyramidStage
    >>> PyramidStage(width=96, depth=2, num_heads=3).depth
    2
    """

    width: PositiveInt
    depth: PositiveInt
    num_heads: PositiveInt
    window: Size | None = None
    """Another window than the pyramid's, as in Swin S3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        divided_by_heads("width", self.width, "num_heads", self.num_heads)


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(BaseConfig):
    """Stages of blocks on ever coarser grids; the defaults are Swin-T (arXiv 2103.14030), which has windows and biases.

    PiT (arXiv 2103.16302) is a pyramid too: full attention, a CLS token, learned positions on the first grid.

    >>> from vitrail import preset
    >>> preset("swin-T").grids[0], preset("swin-T").grid
    (Size(height=56, width=56), Size(height=7, width=7))
    """

    KIND: ClassVar[str] = "pyramid"

    image: Size = Size(224, 224)
    channels: PositiveInt = 3
    embedding: Patches = Patches(patch=Size(4, 4))
    prefix: Prefix = Prefix(cls=False)
    position: Learned | TiledTable | RelativeBias | RelativeMlp = RelativeBias(prefix=False, convention="timm")
    """A table on the first grid, or biases in every block."""
    embedding_norm: bool = True
    stages: tuple[PyramidStage, ...] = (
        PyramidStage(width=96, depth=2, num_heads=3),
        PyramidStage(width=192, depth=2, num_heads=6),
        PyramidStage(width=384, depth=6, num_heads=12),
        PyramidStage(width=768, depth=2, num_heads=24),
    )
    attention: FullAttention | WindowedAttention = WindowedAttention()
    qkv_bias: QkvBias = "all"
    cosine_attention: bool = False
    """Scores are cosines of queries and keys times a learned scale per head, at most 100, as in Swin v2."""
    merging: Merging = PatchMerging()
    mlp_ratio: PositiveInt = 4
    block_norm: NormPlace = "before"
    """Where a block normalises: what attention and MLP read, or what they give, before it is added (Swin v2)."""
    norm_eps: Epsilon = 1e-5
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    pool: ClsPool | MeanPool = MeanPool()
    classes: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.stages) > 0, "stages is empty, and a pyramid needs one or more; give at least one PyramidStage"
        )
        _check_merging(self)
        _check_attention(self)
        _check_position(self)
        check_pool(self.pool, self.prefix)
        self.check(self.image)

    def check(self, image: Size) -> None:
        """Raise an error unless every stage gets a whole grid from the image."""
        if self.merging.even_sides_only:
            check_sides("a pyramid", image, self.unit)
        grid, windows = self.fit(image).grid, self.attention_at(0)
        if isinstance(self.position, TiledTable) and isinstance(windows, WindowedAttention):
            multiple("TiledTable", "grid height", grid.height, windows.window.height)
            multiple("TiledTable", "grid width", grid.width, windows.window.width)

    def fit(self, image: Size) -> Fit:
        """Return how an image of this size is cut into the patches of the first stage."""
        return self.embedding.fit(image, "error")

    @property
    def patch(self) -> Size:
        """The patch size of the first stage."""
        return self.embedding.patch

    @property
    def unit(self) -> Size:
        """The size that an image must be a multiple of, so that every stage gets a whole grid."""
        times = 2 ** (len(self.stages) - 1) if self.merging.even_sides_only else 1
        return Size(*(times * side for side in self.embedding.unit))

    def with_patch(self, patch: Size) -> Self:
        """Return the config with another patch size in the first stage."""
        return self.but(embedding=self.embedding.with_patch(patch))

    def grids_on(self, image: Size) -> tuple[Size, ...]:
        """Return the grid of every stage for an image of this size, finest first."""
        return tuple(accumulate(self.stages[1:], lambda grid, _: halved(grid), initial=self.fit(image).grid))

    def attention_at(self, level: int) -> FullAttention | WindowedAttention:
        """Return the attention of a stage: its own window if it has one, and its full blocks by their index in it."""
        attention, window = self.attention, self.stages[level].window
        if isinstance(attention, FullAttention):
            return attention
        first = sum(stage.depth for stage in self.stages[:level])
        full = tuple(index - first for index in attention.full if 0 <= index - first < self.stages[level].depth)
        return attention.but(window=window or attention.window, full=full)

    @cached_property
    def block_attentions(self) -> tuple[tuple[FullAttention | WindowedAttention, ...], ...]:
        """The attention of every block, by stage."""
        return tuple(self._block_attentions(level) for level in range(len(self.stages)))

    def _block_attentions(self, level: int) -> tuple[FullAttention | WindowedAttention, ...]:
        """Return the attention of a stage's blocks. A block that pools queries has the windows of the stage before,
        unless it is full."""
        own, depth = self.attention_at(level), self.stages[level].depth
        if isinstance(own, FullAttention):
            return (own,) * depth
        windows = first = own.but(full=())
        if level and isinstance(self.merging, QueryPooling):
            before = self.attention_at(level - 1)
            assert isinstance(before, WindowedAttention)
            first = windows.but(window=before.window)
        kinds = [first] + [windows] * (depth - 1)
        return tuple(FullAttention() if index in own.full else kind for index, kind in enumerate(kinds))

    @cached_property
    def grids(self) -> tuple[Size, ...]:
        """The grid of every stage, finest first."""
        return self.grids_on(self.image)

    @property
    def grid(self) -> Size:
        return self.grids[-1]

    @property
    def position_grid(self) -> Size:
        return self.grids[0] if isinstance(self.position, Learned | TiledTable) else self.grid

    @property
    def tokens(self) -> int:
        """Prefix tokens and patches of the last stage."""
        return self.prefix.count + self.grid.area


# ── rules between parts ─────────────────────────────────────────────────────────────────────────────────────────


def _check_merging(config: PyramidConfig) -> None:
    if isinstance(config.merging, QueryPooling):
        require(
            config.prefix.count == 0 and config.block_norm == "before" and not config.cosine_attention,
            "QueryPooling has no way for prefix tokens, cosine attention or norms after the branches; use "
            "Prefix(cls=False), and leave the others out",
        )
        return
    if isinstance(config.merging, PatchMerging):
        require(
            config.prefix.count == 0,
            "PatchMerging has no way for prefix tokens; use GridPooling(), or Prefix(cls=False) and MeanPool()",
        )
        require(
            config.embedding.stride in (None, config.patch),
            f"PatchMerging needs patches that do not overlap, and stride {config.embedding.stride} of patch "
            f"{config.patch} makes them; use GridPooling(), or no stride",
        )
        return
    for before, after in pairwise(stage.width for stage in config.stages):
        multiple("GridPooling", "stage width", after, before)


def _check_attention(config: PyramidConfig) -> None:
    windowed = isinstance(config.attention, WindowedAttention)
    pooling = isinstance(config.merging, QueryPooling)
    require(
        pooling or not (isinstance(config.attention, WindowedAttention) and config.attention.full),
        "a pyramid's blocks all have windows, unless queries are pooled; use WindowedAttention() without full",
    )
    if pooling:
        _check_pooling(config)
    require(
        windowed or all(stage.window is None for stage in config.stages),
        "a stage has a window, and the attention is FullAttention; use WindowedAttention(), or no window",
    )


def _check_pooling(config: PyramidConfig) -> None:
    """Windows that are halved must have even sides, and none may be larger than its grid."""
    attention = config.attention
    if not isinstance(attention, WindowedAttention):
        return
    require(not attention.shift, "windows are not shifted where queries are pooled; use WindowedAttention(shift=False)")
    for level, grid in enumerate(config.grids):
        for index, own in enumerate(config.block_attentions[level]):
            pooled = index == 0 and level > 0
            if not isinstance(own, WindowedAttention):
                continue
            window, cut = own.window, config.grids[level - 1] if pooled else grid
            require(
                window.height <= cut.height and window.width <= cut.width,
                f"window {window} is larger than grid {cut} of stage {level + 1}; use a larger image or small windows",
            )
            require(
                not pooled or window.height % 2 == window.width % 2 == 0,
                f"window {window} is pooled by stage {level + 1} and has an odd side; use even windows before it",
            )


def _check_position(config: PyramidConfig) -> None:
    match config.position:
        case TiledTable():
            window = config.attention_at(0)
            require(
                isinstance(window, WindowedAttention) and isinstance(config.merging, QueryPooling),
                "TiledTable repeats the window of the first stage; use WindowedAttention and QueryPooling",
            )
        case Learned() as learned:
            require(
                learned.inside is None,
                f"a pyramid's blocks have a table alone, and not {learned.name}; use Learned()",
            )
        case RelativeBias(shared=shared, prefix=prefix):
            require(
                not (shared or prefix),
                "a pyramid's biases are each block's own and between patches alone; use RelativeBias(prefix=False)",
            )
        case RelativeMlp(shared=shared, reference=reference):
            require(not shared, "a pyramid's biases are each block's own; use RelativeMlp(shared=False)")
            require(
                len(reference) in (0, len(config.stages)),
                f"reference has {len(reference)} windows for {len(config.stages)} stages; give one for each, or none",
            )
