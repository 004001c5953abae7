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
from vitrail.errors import require
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
    LinearAttention,
    Mlp,
    MlpKind,
    NoPosition,
    Patches,
    Pool,
    Position,
    Prefix,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SinCos1d,
    SinCos2d,
    SparseAttention,
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
        match self.position:
            case Learned(prefix=rows):
                count = {"all": self.prefix.count, "cls": int(self.prefix.cls), "none": 0}[rows]
                return (count + self.grid.area) * self.width
            case RelativeBias(shared=shared, prefix=prefix):
                span = self.relative_span
                offsets = (2 * span.height - 1) * (2 * span.width - 1) + 3 * prefix
                return offsets * self.num_heads * (1 if shared else self.depth)
            case RotaryMixed():
                return self.depth * self.width  # a row and a column frequency for every pair of values
            case _:
                return 0

    @property
    def relative_span(self) -> Size:
        """What relative offsets span: the grid, or the window where there are windows."""
        if isinstance(self.attention, WindowedAttention):
            return Size(*map(min, self.attention.window, self.grid))
        return self.grid

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
        _check_sides("a pyramid", image, self.patches[-1])

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
        rows = columns = self.strides[-1]
        for stage, stride in zip(self.stages, self.strides, strict=True):
            if stage.transformer_depth:
                rows, columns = lcm(rows, stride * self.patch.height), lcm(columns, stride * self.patch.width)
        _check_sides("this mobile model", image, Size(rows, columns))

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
    position, kind = config.position, type(config.position).__name__
    match position:
        case SinCos1d():
            multiple(kind, "width", config.width, 2)
        case SinCos2d(layout=layout):
            multiple(kind, "width", config.width, 4)
            require(
                layout != "big_vision" or config.width >= 8,
                f"width {config.width} leaves the big_vision layout one frequency; use a width of 8 or more",
            )
        case Rotary():
            multiple(kind, "head width", config.head_width, 4)
        case RotaryMixed():
            multiple(kind, "head width", config.head_width, 2)
        case Learned() | RelativeBias() | NoPosition():
            pass
    require(
        not (isinstance(position, RelativeBias) and position.prefix and config.prefix.count == 0),
        "RelativeBias has prefix entries but the model has no prefix; use RelativeBias(prefix=False)",
    )
    if isinstance(config.embedding, Adaptive):
        require(
            not isinstance(position, RelativeBias | SinCos1d),
            f"{kind} needs a regular grid, and adaptive patches have none; use Learned, SinCos2d or a rotary position",
        )


def _check_attention(config: ViTConfig) -> None:
    attention, name = config.attention, type(config.attention).__name__
    if isinstance(config.embedding, Adaptive):
        require(
            isinstance(attention, FullAttention | LinearAttention),
            f"{name} needs a regular grid, and adaptive patches have none; use FullAttention or LinearAttention",
        )
    if isinstance(attention, WindowedAttention) and attention.window_padding == "zeros":
        require(
            config.remainder != "pad",
            "window_padding 'zeros' lets padding take part in attention, and remainder 'pad' promises that padding "
            "changes nothing; use window_padding 'masked', or another remainder",
        )
    if isinstance(config.position, RelativeBias):
        require(
            isinstance(attention, FullAttention | WindowedAttention),
            f"{name} forms no square score matrix for RelativeBias; use another position or FullAttention",
        )
        require(
            not (isinstance(attention, WindowedAttention) and config.position.prefix),
            "RelativeBias(prefix=True) is for full attention; use RelativeBias(prefix=False) with windows",
        )
    if isinstance(config.position, Rotary | RotaryMixed):
        require(
            not isinstance(attention, LinearAttention),
            "rotary positions turn q and k, which LinearAttention needs positive; use an added position",
        )
    if isinstance(attention, LinearAttention | SparseAttention):
        require(
            config.attention_dropout == 0,
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
