"""Model configs: frozen values that are validated once, when they are built, and convert to and from JSON.

`ViTConfig` describes a Vision Transformer of one width, `PyramidConfig` a pyramid of stages, and `MobileConfig` a
convolutional network with transformer blocks inside. Everything else in vitrail is a function of one of these three.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import lcm
from operator import mul
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from vitrail.codec import from_plain, parse_json, to_plain
from vitrail.errors import VitrailError, require
from vitrail.geometry import Fit, Remainder, Size, fit, halved
from vitrail.parts import (
    Adaptive,
    AttentionKind,
    AttentionPool,
    ClsMeanPool,
    ClsPool,
    Embedding,
    FullAttention,
    Learned,
    MeanPool,
    Merging,
    Mlp,
    MlpKind,
    Patches,
    PatchMerging,
    Pool,
    Position,
    Prefix,
    RelativeBias,
    WindowedAttention,
)
from vitrail.rules import NonNegativeInt, PositiveInt, Range, Rate, divided_by_heads, multiple
from vitrail.value import Value

__all__ = [
    "Config",
    "MobileConfig",
    "MobileStage",
    "NormKind",
    "PyramidConfig",
    "PyramidStage",
    "ViTConfig",
    "config_from_json",
    "read_config",
]


NormKind = Literal["layer", "rms"]
Epsilon = Annotated[float, Range("[0, inf)", "1e-6 is usual")]
LayerScale = Annotated[float, Range("[0, inf)", "1e-5 is usual, None leaves it out")]


class _Config(Value):
    """Conversion to and from JSON, for every config."""

    @property
    def grid(self) -> Size:
        """The grid of the patches, or the last one of several."""
        raise NotImplementedError

    @property
    def position_grid(self) -> Size:
        """The grid that positions are on: the first one if a pyramid has a table of them, otherwise `grid`."""
        return self.grid

    @property
    def tokens(self) -> int:
        """Prefix tokens and patches on `grid`."""
        return self.grid.area

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
    patch_norm: bool = False
    """Normalise the patches after their projection, before positions, as AIMv2 does."""
    embedding_norm: bool = False
    """Normalise the tokens before the first block, as CLIP does."""

    width: PositiveInt = 768
    depth: PositiveInt = 12
    num_heads: PositiveInt = 12
    attention: AttentionKind = FullAttention()
    qkv_bias: Literal["all", "no_key", "none"] = "all"
    """With "no_key", keys have no bias, as in BEiT and DINOv3: it could not change the softmax."""
    qk_norm: bool = False
    attention_norm: bool = False
    """Normalise what attention mixed before it is projected back, as BEiT-3 and EVA-02's CLIP towers do."""
    out_bias: bool = True
    """Whether attention's output projection has a bias."""
    mlp: MlpKind = Mlp()
    layer_scale: LayerScale | None = None
    norm: NormKind = "layer"
    """The kind of every norm: "layer", or "rms", which divides by the root mean square and has no bias."""
    norm_eps: Epsilon = 1e-6

    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    """Stochastic depth: the rate of the last block; it grows linearly from 0 at the first."""

    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    pool: Pool = ClsPool()
    classes: NonNegativeInt = 1000
    """Outputs of the head; with 0 there is no head, and the model returns the pooled vector."""
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
        """The patch size of the grid; for adaptive patches, the finest."""
        return self.embedding.patch

    @property
    def grid(self) -> Size:
        return self.fit(self.image).grid

    @property
    def tokens(self) -> int:
        """Prefix tokens and patches; for adaptive patches, the maximum."""
        return self.prefix.count + self.grid.area

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def vector_width(self) -> int:
        """The width of the pooled vector, which is the input of the head."""
        return self.width * (2 if isinstance(self.pool, ClsMeanPool) else 1)

    @property
    def position_parameters(self) -> int:
        """Learned parameters of the positions, over all blocks.

        >>> ViTConfig().position_parameters, ViTConfig(position=RelativeBias()).position_parameters
        (151296, 105408)
        """
        return self.position.learns(self).count

    @property
    def unit(self) -> Size:
        """The size that an image must be a multiple of, so that no remainder is left."""
        return self.embedding.unit

    def with_patch(self, patch: Size) -> Self:
        """Return the config with another patch size; the rest of its embedding is scaled in proportion.

        >>> ViTConfig().with_patch(Size(32, 32)).grid
        Size(height=7, width=7)
        """
        return self.but(embedding=self.embedding.with_patch(patch))

    def fit(self, image: Size) -> Fit:
        """Return how an image of this size is cut into patches."""
        return self.embedding.fit(image, self.remainder)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        divided_by_heads("width", self.width, "num_heads", self.num_heads)


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(_Config):
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
    position: Learned | RelativeBias = RelativeBias(prefix=False, convention="timm")
    """A table on the first grid, or biases in every block."""
    embedding_norm: bool = True
    stages: tuple[PyramidStage, ...] = (
        PyramidStage(width=96, depth=2, num_heads=3),
        PyramidStage(width=192, depth=2, num_heads=6),
        PyramidStage(width=384, depth=6, num_heads=12),
        PyramidStage(width=768, depth=2, num_heads=24),
    )
    attention: FullAttention | WindowedAttention = WindowedAttention()
    merging: Merging = PatchMerging()
    mlp_ratio: PositiveInt = 4
    norm_eps: Epsilon = 1e-5
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    pool: ClsPool | MeanPool = MeanPool()
    classes: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.stages) > 0, "stages is empty, and a pyramid needs one or more; give at least one PyramidStage"
        )
        _check_merging(self)
        _check_pool(self)
        require(
            not (isinstance(self.attention, WindowedAttention) and self.attention.full),
            "a pyramid's blocks all have windows; use WindowedAttention() without full",
        )
        require(
            not (isinstance(self.position, Learned) and self.position.rotary),
            "a pyramid's blocks rotate no queries and keys; use Learned() without rotary",
        )
        require(
            not (isinstance(self.position, RelativeBias) and (self.position.shared or self.position.prefix)),
            "a pyramid's biases are each block's own and between patches alone; use RelativeBias(prefix=False)",
        )
        self.check(self.image)

    def check(self, image: Size) -> None:
        """Raise an error unless every stage gets a whole grid from the image."""
        if self.merging.even_sides_only:
            _check_sides("a pyramid", image, self.unit)
        self.fit(image)

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

    @cached_property
    def grids(self) -> tuple[Size, ...]:
        """The grid of every stage, finest first."""
        return self.grids_on(self.image)

    @property
    def grid(self) -> Size:
        return self.grids[-1]

    @property
    def position_grid(self) -> Size:
        return self.grids[0] if isinstance(self.position, Learned) else self.grid

    @property
    def tokens(self) -> int:
        """Prefix tokens and patches of the last stage."""
        return self.prefix.count + self.grid.area


@dataclass(frozen=True, kw_only=True)
class MobileStage(Value):
    """Residual blocks of one width; with `transformer_depth`, followed by a transformer.

    >>> from vitrail import preset
    >>> preset("mobilevit-S").stages[-1].transformer_depth
    3
    """

    width: PositiveInt
    depth: PositiveInt = 1
    stride: Literal[1, 2] = 1
    """2 halves the feature map."""
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
    """A small convolutional network with transformers inside: the MobileViT shape (arXiv 2110.02178).

    With `residual="basic"` and no transformer in any stage it is a ResNet (arXiv 1512.03385), to compare a ViT with.

    >>> from vitrail import preset
    >>> preset("mobilevit-S").grid
    Size(height=8, width=8)
    """

    KIND: ClassVar[str] = "mobile"

    image: Size = Size(256, 256)
    channels: PositiveInt = 3
    stem_width: PositiveInt = 16
    stem_stride: Literal[1, 2] = 2
    """2 halves the image."""
    stages: tuple[MobileStage, ...] = (
        MobileStage(width=32),
        MobileStage(width=64, depth=3, stride=2),
        MobileStage(width=96, stride=2, transformer_width=144, transformer_depth=2),
        MobileStage(width=128, stride=2, transformer_width=192, transformer_depth=4),
        MobileStage(width=160, stride=2, transformer_width=240, transformer_depth=3),
    )
    residual: Literal["inverted", "basic"] = "inverted"
    """inverted: 1×1, 3×3 depthwise and 1×1 convolutions, as in MobileNetV2; basic: two of 3×3, as in ResNet."""
    expansion: PositiveInt = 4
    """Inner width of a residual block over its own: the width before an inverted one, the width after a basic one."""
    patch: Size = Size(2, 2)
    """In feature-map pixels. Attention runs separately for each position inside the patch."""
    num_heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 2
    last_width: NonNegativeInt = 640
    """Width of a last 1×1 convolution; with 0 there is none."""
    norm_eps: Epsilon = 1e-5
    classes: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.stages) > 0,
            "stages is empty, and a mobile model needs one or more; give at least one MobileStage",
        )
        for stage in self.stages:
            if stage.transformer_depth:
                divided_by_heads("transformer_width", stage.transformer_width, "num_heads", self.num_heads)
        self.check(self.image)

    def check(self, image: Size) -> None:
        """Raise an error unless every stage gets a whole feature map and every transformer whole patches."""
        _check_sides("this mobile model", image, self.unit)

    @property
    def unit(self) -> Size:
        """The size that an image must be a multiple of, for whole feature maps and patches in every stage."""
        stages = zip(self.stages, self.strides, strict=True)
        cells = [stride for stage, stride in stages if stage.transformer_depth]
        last = self.strides[-1]
        return Size(*(lcm(last, *(cell * side for cell in cells)) for side in self.patch))

    def with_patch(self, patch: Size) -> Self:
        raise VitrailError(f"patch {patch} cannot be set on a mobile model; change its stages")

    @property
    def strides(self) -> tuple[int, ...]:
        """Image pixels per feature-map pixel, for every stage."""
        return tuple(accumulate((stage.stride for stage in self.stages), mul, initial=self.stem_stride))[1:]

    @property
    def vector_width(self) -> int:
        """The width of the pooled vector, which is the input of the head."""
        return self.last_width or self.stages[-1].width

    @property
    def grid(self) -> Size:
        """The size of the last feature map."""
        return fit(self.image, Size(self.strides[-1], self.strides[-1])).grid


Config = ViTConfig | PyramidConfig | MobileConfig


def config_from_json(text: str) -> Config:
    """Read any of the three configs; its "kind" says which.

    >>> from vitrail import config_from_json, preset
    >>> config_from_json(preset("swin-T").to_json()) == preset("swin-T")
    True
    """
    return from_plain(_parse(text), Config)


def read_config(path: Path) -> Config:
    """Read a JSON file of any of the three configs.

    >>> from pathlib import Path
    >>> from vitrail import preset, read_config
    >>> _ = Path("model.json").write_text(preset("S/16").to_json())
    >>> read_config(Path("model.json")) == preset("S/16")
    True
    """
    try:
        return config_from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VitrailError(f"config {path} cannot be read ({error.strerror}); give a JSON file") from None
    except UnicodeDecodeError:
        raise VitrailError(f"config {path} is not text; give a JSON file") from None


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
            "window_padding 'zeros' includes padding in attention, which remainder 'pad' rules out; "
            "use window_padding 'masked', or another remainder",
        )
        beyond = [index for index in attention.full if index >= config.depth]
        require(
            not beyond,
            f"full attention in block {beyond[:1]} is beyond depth {config.depth}; blocks are counted from 0",
        )
        require(
            not (isinstance(config.position, RelativeBias) and attention.full),
            "RelativeBias has one table for windows and none for full blocks; use another position, or full=()",
        )
        require(
            not (isinstance(config.position, RelativeBias) and config.position.prefix),
            "RelativeBias(prefix=True) works only with full attention; use RelativeBias(prefix=False) with windows",
        )
    inside = config.position.inside
    position = type(inside).__name__
    require(
        inside is None or inside.acts_on != "scores" or attention.scores,
        f"{name} has no score matrix that {position} could be added to; use another position or FullAttention",
    )
    require(
        inside is None or inside.acts_on != "queries and keys" or attention.can_rotate,
        f"{position} rotates q and k, which {name} needs positive; use a position that is added to the tokens",
    )
    require(
        config.attention_dropout == 0 or attention.scores,
        f"attention_dropout {config.attention_dropout} needs a score matrix, and {name} has none; use 0",
    )


def _check_merging(config: PyramidConfig) -> None:
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


def _check_pool(config: ViTConfig | PyramidConfig) -> None:
    pool = config.pool
    if isinstance(pool, ClsPool | ClsMeanPool):
        require(config.prefix.cls, f"{type(pool).__name__} needs a CLS token; use Prefix(cls=True) or MeanPool()")
    require(
        not config.prefix.distillation or isinstance(pool, ClsPool),
        f"{type(pool).__name__} does not read the distillation token; use ClsPool()",
    )
    if isinstance(config, PyramidConfig):
        return
    if isinstance(pool, AttentionPool):
        divided_by_heads("width", config.width, "pool num_heads", pool.num_heads)
    require(
        not (isinstance(pool, AttentionPool | ClsMeanPool) and config.final_norm == "pooled"),
        f"{type(pool).__name__} needs normalised tokens, and final_norm is 'pooled'; use final_norm 'tokens'",
    )
