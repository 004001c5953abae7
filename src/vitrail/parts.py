"""The typed parts of a model's description: every alternative is a type of its own.

Each part checks what it can see by itself; rules between parts are `vitrail.config`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Annotated, Literal

from vitrail.errors import require
from vitrail.geometry import Fit, Remainder, Size, fit
from vitrail.rules import NonNegativeInt, PositiveInt, Range
from vitrail.value import Value

__all__ = [
    "Activation",
    "Adaptive",
    "AttentionKind",
    "AttentionPool",
    "ClsMeanPool",
    "ClsPool",
    "Convention",
    "Embedding",
    "FullAttention",
    "Hierarchical",
    "Learned",
    "LinearAttention",
    "MaxPool",
    "MeanPool",
    "Mlp",
    "MlpKind",
    "NoPosition",
    "Patches",
    "Pool",
    "Position",
    "Prefix",
    "RelativeBias",
    "RelativeConvention",
    "Rotary",
    "RotaryMixed",
    "SinCos1d",
    "SinCos2d",
    "SparseAttention",
    "Stem",
    "SwiGLU",
    "WindowPadding",
    "WindowedAttention",
]

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Temperature = Annotated[float, Range("(0, inf)", "10000 is usual for sines, 100 for rotary positions")]
Convention = Literal["timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2"]
RelativeConvention = Literal["timm", "huggingface"]
WindowPadding = Literal["masked", "zeros"]


# ── image → tokens ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Patches(Value):
    """Cut, flatten, project. A stride below the patch makes the patches overlap."""

    patch: Size = Size(16, 16)
    stride: Size | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None:
            require(
                self.stride.height <= self.patch.height and self.stride.width <= self.patch.width,
                f"stride {self.stride} is larger than patch {self.patch} and would skip pixels; "
                f"use a stride of at most {self.patch}",
            )

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        return fit(image, self.patch, stride=self.stride, remainder=remainder)


@dataclass(frozen=True, kw_only=True)
class Stem(Value):
    """A convolutional stem: 3×3 stride-2 convolutions with batch norm and ReLU down to the patch, then 1×1.

    After "Early Convolutions Help Transformers See Better" (arXiv 2106.14881).
    """

    patch: Size = Size(16, 16)
    widths: tuple[PositiveInt, ...] = (48, 96, 192, 384)

    def __post_init__(self) -> None:
        super().__post_init__()
        stride = 2 ** len(self.widths)
        require(
            self.patch == Size(stride, stride),
            f"a stem of {len(self.widths)} convolutions reduces by {stride}, not by patch {self.patch}; "
            f"give {max(1, ceil(log2(max(self.patch))))} widths or patch {stride}",
        )

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        return fit(image, self.patch, remainder=remainder)


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Value):
    """A pyramid of token grids: patches of `finest`, then 2×2 merges, each level wider; the last feeds the encoder.

    `widths` are those of the levels before the last, whose width is the model's: finest 4 with two widths gives
    levels of 4, 8 and 16 pixels.
    """

    finest: Size = Size(4, 4)
    widths: tuple[PositiveInt, ...] = (96, 192)

    @property
    def patch(self) -> Size:
        return Size(*(side * 2 ** len(self.widths) for side in self.finest))

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        return fit(image, self.patch, remainder=remainder)


@dataclass(frozen=True, kw_only=True)
class Adaptive(Value):
    """Small patches where the image is busy, large where it is flat: a quadtree over `patches`, finest first.

    A cell splits when its score reaches `threshold`: 0 gives the finest regular grid, infinity the coarsest.
    `selector` says who scores: "detail" (the RMS deviation of the cell's pixels, in units of the image's) or
    "learned" (a small network's probability).
    """

    patches: tuple[Size, ...] = (Size(8, 8), Size(16, 16), Size(32, 32))
    threshold: Annotated[float, Range("[0, inf]", "0 splits every cell, infinity none")] = 0.5
    selector: Literal["detail", "learned"] = "detail"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.patches) >= 2,
            f"adaptive patches {[str(p) for p in self.patches]} give nothing to choose from; give two sizes or more",
        )
        for small, large in zip(self.patches, self.patches[1:], strict=False):
            require(
                large == Size(2 * small.height, 2 * small.width),
                f"adaptive patch {large} does not double {small}; list sizes finest first, each twice the one before",
            )

    @property
    def patch(self) -> Size:
        """The finest patch: positions live on its grid."""
        return self.patches[0]

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        """Whole coarsest cells; the grid is the finest one."""
        coarse = fit(image, self.patches[-1], remainder=remainder)
        return Fit(
            image=image,
            fitted=coarse.fitted,
            grid=fit(coarse.fitted, self.patch).grid,
            remainder=remainder,
        )


Embedding = Patches | Stem | Hierarchical | Adaptive


# ── prefix and pooling ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Prefix(Value):
    """Tokens that are not patches, before them, in this order: CLS, distillation, registers."""

    cls: bool = True
    distillation: bool = False
    registers: NonNegativeInt = 0

    @property
    def count(self) -> int:
        return self.cls + self.distillation + self.registers

    @property
    def names(self) -> tuple[str, ...]:
        """What people call each token, in order.

        >>> Prefix(registers=2).names
        ('CLS', 'register 0', 'register 1')
        """
        registers = tuple(f"register {index}" for index in range(self.registers))
        return ("CLS",) * self.cls + ("distillation",) * self.distillation + registers


@dataclass(frozen=True, kw_only=True)
class ClsPool(Value):
    """The CLS token; with a distillation token, both."""


@dataclass(frozen=True, kw_only=True)
class MeanPool(Value):
    """The mean of the patch tokens."""


@dataclass(frozen=True, kw_only=True)
class MaxPool(Value):
    """The maximum of the patch tokens, per channel."""


@dataclass(frozen=True, kw_only=True)
class ClsMeanPool(Value):
    """The CLS token, then the mean of the patch tokens: a vector of twice the width, as DINOv2's classifiers read."""


@dataclass(frozen=True, kw_only=True)
class AttentionPool(Value):
    """One learned query attends to the patches, then a residual MLP (multi-head attention pooling, as in SigLIP).

    `prefix` says whether the query sees the prefix tokens too; timm leaves them out unless told otherwise.
    """

    num_heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    activation: Activation = "gelu_tanh"
    prefix: bool = False


Pool = ClsPool | MeanPool | MaxPool | ClsMeanPool | AttentionPool


# ── positions ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Learned(Value):
    """A learned row per token, added once. `prefix` says which prefix tokens have rows of their own."""

    prefix: Literal["all", "cls", "none"] = "all"
    convention: Convention = "timm"

    on_new_grid = "resampled, by the named convention"


@dataclass(frozen=True, kw_only=True)
class SinCos1d(Value):
    """Sine and cosine of the sequence index, added once; nothing learned."""

    temperature: Temperature = 10_000.0

    on_new_grid = "recomputed: indices go on, rows and columns are not told apart"


@dataclass(frozen=True, kw_only=True)
class SinCos2d(Value):
    """Sine and cosine of row and column, half the width each, added once; prefix rows are zero.

    Layouts of one idea: "interleaved" (the row's sin, cos, sin, cos …, then the column's), "timm" (sines of row and
    column, then cosines), "mae" (the column's sines, its cosines, then the row's), "big_vision" (as mae, with the
    slowest wave at exactly the temperature).
    """

    layout: Literal["interleaved", "timm", "mae", "big_vision"] = "interleaved"
    temperature: Temperature = 10_000.0

    on_new_grid = "recomputed: exact, at the same spacing"


@dataclass(frozen=True, kw_only=True)
class RelativeBias(Value):
    """A learned bias per head and per (row, column) offset, added to the scores of every block.

    `shared` uses one table for all blocks. `prefix` adds the three entries that BEiT gives its CLS token
    (to it, from it, with itself); without it, a prefix gets no bias. `convention` says how a table is carried to
    another grid: "huggingface" stretches all offsets with the grid, bilinearly; "timm" keeps near offsets, counted in
    patches, and spreads far ones, as BEiT's fine-tuning code does.
    """

    shared: bool = False
    prefix: bool = True
    convention: RelativeConvention = "huggingface"

    on_new_grid = "resampled over offsets, by the named convention"


@dataclass(frozen=True, kw_only=True)
class Rotary(Value):
    """2D axial rotary positions: queries and keys turn by angles of row and column; nothing learned.

    `coordinates`: "index" (0, 1, 2 …, as RoPE-ViT and EVA-02) or "normalised" (each axis to −1 … 1, as DINOv3).
    """

    coordinates: Literal["index", "normalised"] = "index"
    temperature: Temperature = 100.0

    on_new_grid = "recomputed: index extrapolates, normalised interpolates"


@dataclass(frozen=True, kw_only=True)
class RotaryMixed(Value):
    """2D rotary positions with learned directions per block and head (RoPE-Mixed, arXiv 2403.13298)."""

    temperature: Temperature = 10.0

    on_new_grid = "recomputed: the learned frequencies extrapolate"


@dataclass(frozen=True, kw_only=True)
class NoPosition(Value):
    """No positions: the encoder is permutation-equivariant."""

    on_new_grid = "nothing to do"


Position = Learned | SinCos1d | SinCos2d | RelativeBias | Rotary | RotaryMixed | NoPosition


# ── encoder ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class FullAttention(Value):
    """Every token attends to every token. `fused` uses PyTorch's kernel; otherwise softmax(QKᵀ/√d)V is explicit."""

    fused: bool = True


@dataclass(frozen=True, kw_only=True)
class WindowedAttention(Value):
    """Patches attend within windows of the grid, and to the prefix; the prefix attends to all.

    With `shift`, every other block moves its windows by half of their size, as Swin does. Where windows do not divide
    the grid, `window_padding` says what fills the last ones: "masked", padding that nothing attends to; or "zeros",
    zero tokens that take part in attention, as in timm's Swin, by windows and shifts of the config's own grid.
    """

    window: Size = Size(7, 7)
    shift: bool = True
    window_padding: WindowPadding = "masked"


@dataclass(frozen=True, kw_only=True)
class SparseAttention(Value):
    """Criss-cross: a patch attends to its row, its column and the prefix; the prefix attends to all.

    A patch of an h×w grid sees h + w − 1 patches, and any two patches are joined within two blocks.
    """


@dataclass(frozen=True, kw_only=True)
class LinearAttention(Value):
    """φ(Q)(φ(K)ᵀV) with φ = elu + 1, normalised per query: linear in tokens (arXiv 2006.16236)."""


AttentionKind = FullAttention | WindowedAttention | SparseAttention | LinearAttention


@dataclass(frozen=True, kw_only=True)
class Mlp(Value):
    """width → `width` of the MLP → width with an activation between."""

    width: PositiveInt = 3072
    activation: Activation = "gelu"


@dataclass(frozen=True, kw_only=True)
class SwiGLU(Value):
    """Two projections to `width`, one through SiLU and multiplied into the other, then back (arXiv 2002.05202)."""

    width: PositiveInt = 2048


MlpKind = Mlp | SwiGLU
