"""What a model is, as a value: frozen, validated once, here, and the same in JSON.

`ViTConfig` describes a Vision Transformer of one width. Its siblings describe the two shapes that are not: a pyramid
of stages (`PyramidConfig`) and a mobile network with transformer blocks inside (`MobileConfig`). Everything else in
vitrail is a function of one of these three.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from operator import mul
from typing import Annotated, Any, ClassVar, Literal, Self

from vitrail.codec import from_plain, parse_json, to_plain
from vitrail.errors import VitrailError, require
from vitrail.geometry import Fit, Remainder, Size, fit
from vitrail.parts import (
    Adaptive,
    AttentionKind,
    AttentionPool,
    ClsMeanPool,
    ClsPool,
    Embedding,
    FullAttention,
    Learned,
    Mlp,
    MlpKind,
    Patches,
    Pool,
    Position,
    Prefix,
    RelativeBias,
    WindowedAttention,
    WindowPadding,
)
from vitrail.rules import NonNegativeInt, PositiveInt, Range, Rate, divided_by_heads, multiple
from vitrail.value import Value

__all__ = [
    "Config",
    "MobileConfig",
    "MobileStage",
    "PyramidConfig",
    "PyramidStage",
    "ViTConfig",
    "config_from_json",
]


Epsilon = Annotated[float, Range("[0, inf)", "1e-6 is usual")]
LayerScale = Annotated[float, Range("[0, inf)", "1e-5 is usual, None leaves it out")]


class _Config(Value):
    """What every config can do beside: become JSON and come back."""

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return from_plain(_parse(text), cls)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(_Config):
    """A Vision Transformer, from pixels to logits; the defaults are ViT-B/16 at 224 with 1,000 classes.

    >>> ViTConfig().grid, ViTConfig().tokens
    (Size(height=14, width=14), 197)
    """

    KIND: ClassVar[str] = "vit"

    image: Size = Size(224, 224)
    channels: PositiveInt = 3
    embedding: Embedding = Patches()
    remainder: Remainder = "error"
    prefix: Prefix = Prefix()
    position: Position = Learned()
    embedding_norm: bool = False
    """Normalise the tokens before the first block, as CLIP does."""

    width: PositiveInt = 768
    depth: PositiveInt = 12
    num_heads: PositiveInt = 12
    attention: AttentionKind = FullAttention()
    qkv_bias: Literal["all", "no_key", "none"] = "all"
    """A key's bias cannot change a softmax, so BEiT and DINOv3 leave it out ("no_key")."""
    qk_norm: bool = False
    mlp: MlpKind = Mlp()
    layer_scale: LayerScale | None = None
    norm_eps: Epsilon = 1e-6

    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    """Stochastic depth: the rate of the last block; it grows linearly from 0 at the first."""

    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    pool: Pool = ClsPool()
    classes: NonNegativeInt = 1000
    """Outputs of the head; 0 for none: the model then gives the pooled vector."""
    head_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        divided_by_heads("width", self.width, "num_heads", self.num_heads)
        _check_position(self)
        _check_attention(self)
        _check_pool(self)
        self.fit(self.image)

    @property
    def patch(self) -> Size:
        """The patch that the grid counts: for adaptive patches the finest."""
        return self.embedding.patch

    @property
    def grid(self) -> Size:
        return self.fit(self.image).grid

    @property
    def tokens(self) -> int:
        """Prefix and patches; for adaptive patches, the most there can be."""
        return self.prefix.count + self.grid.area

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def vector_width(self) -> int:
        """Values of the pooled vector, which the head reads."""
        return self.width * (2 if isinstance(self.pool, ClsMeanPool) else 1)

    @property
    def position_parameters(self) -> int:
        """What the positions have to learn, over all blocks.

        >>> ViTConfig().position_parameters, ViTConfig(position=RelativeBias()).position_parameters
        (151296, 105408)
        """
        return self.position.learns(self).count

    @property
    def unit(self) -> Size:
        """What the sides of an image must be multiples of, to be cut without a remainder."""
        return self.embedding.unit

    def with_patch(self, patch: Size) -> Self:
        """The same model with another patch, all else of its embedding in proportion.

        >>> ViTConfig().with_patch(Size(32, 32)).grid
        Size(height=7, width=7)
        """
        return self.but(embedding=self.embedding.with_patch(patch))

    def fit(self, image: Size) -> Fit:
        """How an image of this size is cut."""
        return self.embedding.fit(image, self.remainder)


@dataclass(frozen=True, kw_only=True)
class PyramidStage(Value):
    """Blocks of one width at one level; the grid halves between stages."""

    width: PositiveInt
    depth: PositiveInt
    num_heads: PositiveInt

    def __post_init__(self) -> None:
        super().__post_init__()
        divided_by_heads("width", self.width, "num_heads", self.num_heads)


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(_Config):
    """Stages of windowed attention with relative bias on ever coarser, wider grids, as Swin (arXiv 2103.14030)."""

    KIND: ClassVar[str] = "pyramid"

    image: Size = Size(224, 224)
    channels: PositiveInt = 3
    patch: Size = Size(4, 4)
    stages: tuple[PyramidStage, ...] = (
        PyramidStage(width=96, depth=2, num_heads=3),
        PyramidStage(width=192, depth=2, num_heads=6),
        PyramidStage(width=384, depth=6, num_heads=12),
        PyramidStage(width=768, depth=2, num_heads=24),
    )
    window: Size = Size(7, 7)
    window_padding: WindowPadding = "masked"
    """What fills windows that stick out of a stage's grid, as `WindowedAttention` says; timm's Swin has "zeros"."""
    mlp_ratio: PositiveInt = 4
    norm_eps: Epsilon = 1e-5
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    classes: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.stages) > 0, "a pyramid of 0 stages has nothing to run; give at least one PyramidStage")
        self.check(self.image)

    def check(self, image: Size) -> None:
        """Refuse an image that some stage's patch does not divide."""
        _check_sides("a pyramid", image, self.unit)

    @property
    def unit(self) -> Size:
        """What the sides of an image must be multiples of: the last stage's patch."""
        return self.patches[-1]

    def with_patch(self, patch: Size) -> Self:
        """The same model with another first patch."""
        return self.but(patch=patch)

    @property
    def patches(self) -> tuple[Size, ...]:
        """Pixels of every stage's patch, finest first."""
        return tuple(Size(*(side * 2**level for side in self.patch)) for level in range(len(self.stages)))

    @property
    def grids(self) -> tuple[Size, ...]:
        """The grid of every stage, finest first."""
        return tuple(fit(self.image, patch).grid for patch in self.patches)

    @property
    def grid(self) -> Size:
        return self.grids[-1]


@dataclass(frozen=True, kw_only=True)
class MobileStage(Value):
    """Inverted residuals of one width; with `transformer_depth`, a transformer over the feature map after them."""

    width: PositiveInt
    depth: PositiveInt = 1
    stride: Literal[1, 2] = 1
    """A stage keeps the map or halves it."""
    transformer_width: NonNegativeInt = 0
    transformer_depth: NonNegativeInt = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.transformer_width > 0) == (self.transformer_depth > 0),
            f"transformer_width {self.transformer_width} with transformer_depth {self.transformer_depth}: "
            "give both, or neither",
        )


@dataclass(frozen=True, kw_only=True)
class MobileConfig(_Config):
    """A small convolutional network with transformers inside: the MobileViT shape (arXiv 2110.02178)."""

    KIND: ClassVar[str] = "mobile"

    image: Size = Size(256, 256)
    channels: PositiveInt = 3
    stem_width: PositiveInt = 16
    stages: tuple[MobileStage, ...] = (
        MobileStage(width=32),
        MobileStage(width=64, depth=3, stride=2),
        MobileStage(width=96, stride=2, transformer_width=144, transformer_depth=2),
        MobileStage(width=128, stride=2, transformer_width=192, transformer_depth=4),
        MobileStage(width=160, stride=2, transformer_width=240, transformer_depth=3),
    )
    expansion: PositiveInt = 4
    patch: Size = Size(2, 2)
    """Pixels of the feature map that are kept apart: attention runs over each of the patch's places separately."""
    num_heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 2
    last_width: PositiveInt = 640
    norm_eps: Epsilon = 1e-5
    classes: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.stages) > 0,
            "a mobile model of 0 stages has nothing to run; give at least one MobileStage",
        )
        for stage in self.stages:
            if stage.transformer_depth:
                divided_by_heads("transformer_width", stage.transformer_width, "num_heads", self.num_heads)
        self.check(self.image)

    def check(self, image: Size) -> None:
        """Refuse an image whose map is, at some stage, not whole, or for a transformer not of whole patches."""
        _check_sides("this mobile model", image, self.unit)

    @property
    def unit(self) -> Size:
        """What the sides of an image must be multiples of, for whole maps and whole patches at every stage."""
        stages = zip(self.stages, self.strides, strict=True)
        cells = [stride for stage, stride in stages if stage.transformer_depth]
        last = self.strides[-1]
        return Size(*(lcm(last, *(cell * side for cell in cells)) for side in self.patch))

    def with_patch(self, patch: Size) -> Self:
        raise VitrailError(f"patch {patch} is not a mobile model's to choose; change its stages")

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels of the image per pixel of every stage's map."""
        return tuple(accumulate((stage.stride for stage in self.stages), mul, initial=2))[1:]

    @property
    def grid(self) -> Size:
        """The last feature map."""
        return fit(self.image, Size(self.strides[-1], self.strides[-1])).grid


Config = ViTConfig | PyramidConfig | MobileConfig


def config_from_json(text: str) -> Config:
    """Read any of the three, by its "kind"."""
    return from_plain(_parse(text), Config)


def _parse(text: str) -> Any:
    return parse_json(text, "config", "write one with to_json()")


# ── rules between parts ─────────────────────────────────────────────────────────────────────────────────────────


def _check_sides(kind: str, image: Size, unit: Size) -> None:
    multiple(kind, "image height", image.height, unit.height)
    multiple(kind, "image width", image.width, unit.width)


def _check_position(config: ViTConfig) -> None:
    config.position.check(config)
    require(
        not (isinstance(config.embedding, Adaptive) and config.position.on_regular_grids_only),
        f"{type(config.position).__name__} needs a regular grid, and adaptive patches have none; "
        "use Learned, SinCos2d or a rotary position",
    )


def _check_attention(config: ViTConfig) -> None:
    attention, name = config.attention, type(config.attention).__name__
    require(
        not (isinstance(config.embedding, Adaptive) and attention.on_regular_grids_only),
        f"{name} needs a regular grid, and adaptive patches have none; use FullAttention or LinearAttention",
    )
    if isinstance(attention, WindowedAttention):
        require(
            attention.window_padding != "zeros" or config.remainder != "pad",
            "window_padding 'zeros' lets padding take part in attention, and remainder 'pad' promises that padding "
            "changes nothing; use window_padding 'masked', or another remainder",
        )
        require(
            not (isinstance(config.position, RelativeBias) and config.position.prefix),
            "RelativeBias(prefix=True) is for full attention; use RelativeBias(prefix=False) with windows",
        )
    position = type(config.position).__name__
    require(
        config.position.acts_on != "scores" or attention.scores,
        f"{name} forms no square score matrix for {position}; use another position or FullAttention",
    )
    require(
        config.position.acts_on != "queries and keys" or attention.turns,
        f"{position} turns q and k, which {name} needs positive; use an added position",
    )
    require(
        config.attention_dropout == 0 or attention.scores,
        f"attention_dropout {config.attention_dropout} has no score matrix to drop from in {name}; use 0",
    )


def _check_pool(config: ViTConfig) -> None:
    pool = config.pool
    if isinstance(pool, ClsPool | ClsMeanPool):
        require(config.prefix.cls, f"{type(pool).__name__} needs a CLS token; use Prefix(cls=True) or MeanPool()")
    if isinstance(pool, AttentionPool):
        divided_by_heads("width", config.width, "pool num_heads", pool.num_heads)
    require(
        not config.prefix.distillation or isinstance(pool, ClsPool),
        f"a distillation token is read beside CLS, not by {type(pool).__name__}; use ClsPool()",
    )
    require(
        not (isinstance(pool, AttentionPool | ClsMeanPool) and config.final_norm == "pooled"),
        f"{type(pool).__name__} reads normalised tokens; use final_norm 'tokens'",
    )
