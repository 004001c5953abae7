"""`ViTConfig`: a Vision Transformer of one width, and the rules between its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from vitrail.config.base import BaseConfig, Epsilon, LayerScale, NormKind, NormPlace, QkvBias, check_pool
from vitrail.errors import require
from vitrail.geometry import Fit, Remainder, Size
from vitrail.parts import (
    Adaptive,
    AttentionKind,
    AttentionPool,
    ClsMeanPool,
    ClsPool,
    Embedding,
    FullAttention,
    Learned,
    MaxPool,
    MeanPool,
    Merger,
    Mlp,
    MlpKind,
    Neck,
    Patches,
    Pool,
    Position,
    Prefix,
    RelativeBias,
    RelativeMlp,
    ResNetStem,
    WindowedAttention,
)
from vitrail.rules import NonNegativeInt, PositiveInt, Rate, divided_by_heads

__all__ = ["ViTConfig"]


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BaseConfig):
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
    qkv_bias: QkvBias = "all"
    """With "no_key", keys have no bias, as in BEiT and DINOv3: it could not change the softmax."""
    qk_norm: bool = False
    cosine_attention: bool = False
    """Scores are cosines of queries and keys times a learned scale per head, at most 100, as in Swin v2."""
    attention_norm: bool = False
    """Normalise what attention mixed before it is projected back, as BEiT-3 and EVA-02's CLIP towers do."""
    out_bias: bool = True
    """Whether attention's output projection has a bias."""
    mlp: MlpKind = Mlp()
    layer_scale: LayerScale | None = None
    block_norm: NormPlace = "before"
    """Where a block normalises: what attention and MLP read, or what they give, before it is added (Swin v2)."""
    norm: NormKind = "layer"
    """The kind of every norm: "layer", or "rms", which divides by the root mean square and has no bias."""
    norm_eps: Epsilon = 1e-6

    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    """Stochastic depth: the rate of the last block; it grows linearly from 0 at the first."""

    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    final_norm_eps: Epsilon | None = None
    """Epsilon of the final norm or the neck's, where it differs from `norm_eps`, as in VideoMAE's classifiers."""
    neck: Neck | None = None
    """A projection and a convolution of the patches behind the blocks, in the place of a final norm, as in SAM."""
    pool: Pool = ClsPool()
    classes: NonNegativeInt = 1000
    """Outputs of the head; with 0 there is no head, and the model returns the pooled vector."""
    head_bias: bool = True
    merger: Merger | None = None
    """With one, the model returns the tokens that a language model receives, and not a vector of an image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (isinstance(self.embedding, Patches) and self.embedding.padded),
            "padded patches are for pyramids; use Patches() without padded, or a PyramidConfig",
        )
        require(
            not (isinstance(self.embedding, ResNetStem) and self.remainder == "pad"),
            "a ResNetStem normalises whole maps, padding too, which remainder 'pad' rules out; use another remainder",
        )
        divided_by_heads("width", self.width, "num_heads", self.num_heads)
        require(
            not (self.cosine_attention and self.qk_norm),
            "cosine_attention normalises queries and keys already; use qk_norm=False with it",
        )
        require(
            self.block_norm == "before" or self.layer_scale is None,
            "a norm after each branch scales it already; use layer_scale=None with block_norm 'after'",
        )
        _check_position(self)
        _check_attention(self)
        _check_pool(self)
        _check_neck(self)
        require(
            self.final_norm_eps is None or self.final_norm != "none" or self.neck is not None,
            f"final_norm_eps {self.final_norm_eps} is for a final norm, and this model has none; leave it out",
        )
        self.fit(self.image)
        _check_merger(self)

    @property
    def patch(self) -> Size:
        """The patch size of the grid; for adaptive patches, the finest."""
        return self.embedding.patch

    @property
    def grid(self) -> Size:
        return self.fit(self.image).grid

    @property
    def frames(self) -> int:
        return self.embedding.frames

    @property
    def steps(self) -> int:
        return self.embedding.steps

    @property
    def tokens(self) -> int:
        """Prefix tokens and the patches of every step; for adaptive patches, the maximum."""
        return self.prefix.count + self.steps * self.grid.area

    @property
    def visual_tokens(self) -> int:
        """Tokens that the merger gives; without one, those of the patches."""
        return self.steps * self.grid.area // (self.merger.merge**2 if self.merger else 1)

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def feature_width(self) -> int:
        """The width of the tokens that `features` returns and pooling reads: the neck's, or the model's."""
        return self.width if self.neck is None else self.neck.width

    @property
    def vector_width(self) -> int:
        """The width of the pooled vector, which is the input of the head."""
        return self.feature_width * (2 if isinstance(self.pool, ClsMeanPool) else 1)

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
        merge = self.merger.merge if self.merger else 1
        return Size(*(merge * side for side in self.embedding.unit))

    def with_patch(self, patch: Size) -> Self:
        """Return the config with another patch size; the rest of its embedding is scaled in proportion.

        >>> ViTConfig().with_patch(Size(32, 32)).grid
        Size(height=7, width=7)
        """
        return self.but(embedding=self.embedding.with_patch(patch))

    def with_frames(self, frames: int, tubelet: int | None = None) -> Self:
        """Return the config for clips of this many frames, or for still images with 1; `tubelet` is a patch's depth in
        frames (default: unchanged, and 2 for a model of still images).

        >>> ViTConfig().with_frames(16).input_shape
        (16, 3, 224, 224)
        """
        return self.but(embedding=self.embedding.with_frames(frames, tubelet))

    def fit(self, image: Size) -> Fit:
        """Return how an image of this size is cut into patches."""
        return self.embedding.fit(image, self.remainder)


# ── rules between parts ─────────────────────────────────────────────────────────────────────────────────────────


def _check_position(config: ViTConfig) -> None:
    config.position.check(config)
    inside = config.position.inside
    for position in (config.position, inside):
        require(
            not (isinstance(config.embedding, Adaptive) and position is not None and position.on_regular_grids_only),
            f"{type(position).__name__} needs a regular grid, and adaptive patches have none; "
            "use Learned, SinCos2d or a rotary position",
        )
    require(
        not (config.steps > 1 and inside is not None and inside.acts_on == "scores"),
        f"{type(inside).__name__} has offsets of rows and columns, and none between the {config.steps} steps "
        "of a clip; use another position, or one tubelet as deep as the clip",
    )


def _check_attention(config: ViTConfig) -> None:
    attention, name = config.attention, type(config.attention).__name__
    require(
        not (isinstance(config.embedding, Adaptive) and attention.on_regular_grids_only),
        f"{name} needs a regular grid, and adaptive patches have none; use FullAttention or LinearAttention",
    )
    require(
        not (config.steps > 1 and attention.on_regular_grids_only),
        f"{name} is for one grid, and a clip of {config.frames} frames has {config.steps}; "
        "use FullAttention or LinearAttention, or one tubelet as deep as the clip",
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
            not (isinstance(config.position, RelativeBias | RelativeMlp) and attention.full),
            f"{type(config.position).__name__} is for windows of one size, and full blocks have another; "
            "use another position, or full=()",
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
        attention.scores or not config.cosine_attention,
        f"{name} has no score matrix that cosine_attention could scale; use FullAttention, or leave it out",
    )
    require(
        config.attention_dropout == 0 or attention.scores,
        f"attention_dropout {config.attention_dropout} needs a score matrix, and {name} has none; use 0",
    )


def _check_pool(config: ViTConfig) -> None:
    pool = config.pool
    check_pool(pool, config.prefix)
    if isinstance(pool, AttentionPool):
        divided_by_heads("width", config.width, "pool num_heads", pool.num_heads)
    require(
        not (isinstance(pool, AttentionPool | ClsMeanPool) and config.final_norm == "pooled"),
        f"{type(pool).__name__} needs normalised tokens, and final_norm is 'pooled'; use final_norm 'tokens'",
    )


def _check_neck(config: ViTConfig) -> None:
    if config.neck is None:
        return
    require(
        config.final_norm == "none",
        f"the neck has norms of its own, and final_norm is {config.final_norm!r}; use final_norm 'none' with a neck",
    )
    require(
        config.prefix.count == 0 and isinstance(config.pool, MeanPool | MaxPool),
        "the neck is a convolution over the patches, and has no prefix behind it; "
        "use Prefix(cls=False) with MeanPool() or MaxPool()",
    )
    require(
        config.steps == 1 and not isinstance(config.embedding, Adaptive) and config.remainder != "pad",
        "the neck is a convolution over one regular grid without padding; "
        "use still images, regular patches and another remainder, or neck=None",
    )


def _check_merger(config: ViTConfig) -> None:
    if config.merger is None:
        return
    name, merge = type(config.merger).__name__, config.merger.merge
    require(
        config.classes == 0,
        f"{name} gives tokens for a language model, and none to classify; use classes=0, or merger=None",
    )
    require(
        not isinstance(config.pool, AttentionPool) and config.final_norm != "pooled",
        f"{name} reads the tokens, and no pooled vector; use a pool that learns nothing, and another final_norm",
    )
    require(config.neck is None, f"{name} reads the encoder's tokens, and not a neck's; use merger=None, or neck=None")
    require(
        not isinstance(config.embedding, Adaptive) and config.remainder != "pad" and config.steps == 1,
        f"{name} needs a regular grid without padding, of a still image; use Patches, and another remainder",
    )
    require(
        config.grid.height % merge == config.grid.width % merge == 0,
        f"grid {config.grid} is not divisible by merge {merge}; use an image that is a multiple of {config.unit}",
    )
