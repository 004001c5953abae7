"""Embeddings: ways of cutting an image into patches and projecting them to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Annotated, Literal, Self

from vitrail.errors import VitrailError, require
from vitrail.geometry import Fit, Remainder, Size, fit
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value

__all__ = ["Adaptive", "Embedding", "Hierarchical", "Patches", "ResNetStem", "Stem", "Tubelets"]


@dataclass(frozen=True, kw_only=True)
class _Embedding(Value):
    """Properties of every kind of embedding; `patch` is the patch size of its grid."""

    @property
    def patch(self) -> Size:
        raise NotImplementedError

    @property
    def unit(self) -> Size:
        """The size that an image must be a multiple of, so that no remainder is left."""
        return self.patch

    @property
    def frames(self) -> int:
        """Frames of the clips that the model takes; 1 for still images."""
        return 1

    @property
    def steps(self) -> int:
        """Grids of patches, one after the other in time; 1 for still images."""
        return 1

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        return fit(image, self.patch, remainder=remainder)

    def with_patch(self, patch: Size) -> Self:
        """Return the embedding with another patch size, everything else scaled in proportion."""
        return self if patch == self.patch else self._resized(patch)

    def _resized(self, patch: Size) -> Self:
        raise VitrailError(
            f"{type(self).__name__} of patch {self.patch} cannot change to patch {patch}; "
            "keep its patch, or give another embedding"
        )

    def with_frames(self, frames: int, tubelet: int | None = None) -> Patches | Tubelets:
        """Return the embedding for clips of this many frames, or for still images with 1."""
        raise VitrailError(
            f"{type(self).__name__} cuts still images and has no form for clips of {frames} frames; "
            "only Patches become Tubelets"
        )


@dataclass(frozen=True, kw_only=True)
class Patches(_Embedding):
    """Cut patches, flatten them and project them linearly. A stride smaller than the patch makes patches overlap.

    >>> from vitrail import Patches, Size, ViTConfig
    >>> ViTConfig(embedding=Patches(patch=Size(16, 8))).grid
    Size(height=14, width=28)
    """

    patch: Size = Size(16, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
    stride: Size | None = None
    bias: bool = True
    padded: bool = False
    """Half a patch of zeros around the image, so that there is a patch for every stride, as in Hiera (pyramids)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.padded or (self.stride is not None and self.patch.height % 2 == self.patch.width % 2 == 1),
            f"padded patches have a stride and odd sides, and these are of {self.patch}, {self.stride} apart; use "
            "patch 7 and stride 4, or leave padded out",
        )
        if self.stride is not None:
            require(
                self.stride.height <= self.patch.height and self.stride.width <= self.patch.width,
                f"stride {self.stride} is larger than patch {self.patch} and would skip pixels; "
                f"use a stride of at most {self.patch}",
            )

    @property
    def unit(self) -> Size:
        return self.stride if self.padded and self.stride is not None else self.patch

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros on every side."""
        return (self.patch.height // 2, self.patch.width // 2) if self.padded else (0, 0)

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        if self.padded:
            return fit(image, self.unit, remainder=remainder)
        return fit(image, self.patch, stride=self.stride, remainder=remainder)

    def _resized(self, patch: Size) -> Self:
        return self.but(patch=patch, stride=self.stride and _in_proportion("stride", self.stride, self.patch, patch))

    def with_frames(self, frames: int, tubelet: int | None = None) -> Patches | Tubelets:
        if frames == 1:
            require(tubelet in (None, 1), f"tubelet {tubelet} does not divide a still image; leave it out")
            return self
        require(
            self.stride in (None, self.patch),
            f"stride {self.stride} makes patches of {self.patch} overlap, and tubelets do not; use no stride",
        )
        return Tubelets(patch=self.patch, bias=self.bias, frames=frames, tubelet=2 if tubelet is None else tubelet)


@dataclass(frozen=True, kw_only=True)
class Tubelets(_Embedding):
    """Patches that are `tubelet` frames deep, for clips of `frames` frames; slices of a volume are frames too.

    Tokens are ordered by step, row and column: a step is a grid of tubelets, and a clip has frames / tubelet of them.

    >>> from vitrail import Tubelets, ViTConfig
    >>> clip = ViTConfig(embedding=Tubelets(frames=16, tubelet=2))
    >>> clip.input_shape, clip.steps, clip.grid, clip.tokens
    ((16, 3, 224, 224), 8, Size(height=14, width=14), 1569)
    """

    patch: Size = Size(16, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
    frames: Annotated[int, Range("[2, inf)", "a clip of one frame is a still image: use Patches")] = 16  # pyright: ignore[reportIncompatibleMethodOverride]
    tubelet: PositiveInt = 2
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        below = self.frames // self.tubelet * self.tubelet
        require(
            self.frames % self.tubelet == 0,
            f"{self.frames} frames are not divisible by tubelets of {self.tubelet} frames; "
            f"use {' or '.join(str(count) for count in (below, below + self.tubelet) if count > 1)} frames, "
            "or another tubelet",
        )

    @property
    def steps(self) -> int:
        return self.frames // self.tubelet

    def _resized(self, patch: Size) -> Self:
        return self.but(patch=patch)

    def with_frames(self, frames: int, tubelet: int | None = None) -> Patches | Tubelets:
        if frames == 1:
            return Patches(patch=self.patch, bias=self.bias).with_frames(1, tubelet)
        return self.but(frames=frames, tubelet=self.tubelet if tubelet is None else tubelet)


@dataclass(frozen=True, kw_only=True)
class Stem(_Embedding):
    """A convolutional stem: 3×3 stride-2 convolutions with batch norm and ReLU, then a 1×1 convolution.

    After "Early Convolutions Help Transformers See Better" (arXiv 2106.14881). With `overlap=False` the convolutions
    cut their input into patches, as in MobileCLIP (arXiv 2311.17049): the first into patches of patch / 2ⁿ pixels for
    n widths, the others and the projection into 2×2.

    >>> from vitrail import Size, Stem, ViTConfig
    >>> ViTConfig(embedding=Stem(patch=Size(16, 16), widths=(48, 96, 192, 384))).grid
    Size(height=14, width=14)
    """

    patch: Size = Size(16, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
    widths: tuple[PositiveInt, ...] = (48, 96, 192, 384)
    overlap: bool = True
    activation: Literal["relu", "gelu"] = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.widths) > 0, "a stem without widths has no convolution; give one width or more")
        stride = 2 ** len(self.widths)
        require(
            not self.overlap or self.patch == Size(stride, stride),
            f"a stem of {len(self.widths)} convolutions reduces by {stride}, not by patch {self.patch}; "
            f"give {max(1, ceil(log2(max(self.patch))))} widths or patch {stride}",
        )
        require(
            self.patch.height % stride == self.patch.width % stride == 0,
            f"patch {self.patch} is not divisible by {stride}, and a stem of {len(self.widths)} widths halves it as "
            f"often; use a multiple of {stride}, or other widths",
        )

    @property
    def strides(self) -> tuple[Size, ...]:
        """The stride of each convolution; the last is the projection to the model's width."""
        halves = (Size(2, 2),) * len(self.widths)
        if self.overlap:
            return (*halves, Size(1, 1))
        return (Size(*(side >> len(self.widths) for side in self.patch)), *halves)


@dataclass(frozen=True, kw_only=True)
class ResNetStem(_Embedding):
    """A ResNet before the patches, as hybrid ViTs have it (arXiv 2010.11929), with BiT's layers (arXiv 1912.11370).

    A 7×7 convolution and max pooling reduce the image by 4 to a map of `width` channels; a stage of `depths[s]`
    bottleneck blocks has 4·width·2ˢ channels and, after the first, halves the map. Filters are standardised and norms
    are over `groups` groups of channels. A token is projected from `cells` of the last map.

    >>> from vitrail import ResNetStem, ViTConfig
    >>> hybrid = ViTConfig(embedding=ResNetStem(depths=(3, 4, 9)))
    >>> hybrid.patch, hybrid.grid
    (Size(height=16, width=16), Size(height=14, width=14))
    """

    depths: tuple[PositiveInt, ...] = (3, 4, 9)
    width: PositiveInt = 64
    groups: PositiveInt = 32
    cells: Size = Size(1, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.width % self.groups == 0 and self.width > self.groups,
            f"width {self.width} of the ResNet has no {self.groups} equal groups of two channels or more; "
            f"use a multiple of {2 * self.groups}, or other groups",
        )

    @property
    def reduction(self) -> int:
        """Pixels along a side of a cell of the last map."""
        return 4 * 2 ** max(0, len(self.depths) - 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the maps: of the first convolution, then of each stage."""
        return (self.width, *(4 * self.width << stage for stage in range(len(self.depths))))

    @property
    def patch(self) -> Size:
        return Size(*(side * self.reduction for side in self.cells))


@dataclass(frozen=True, kw_only=True)
class Hierarchical(_Embedding):
    """A pyramid of token grids: patches of size `finest`, then 2×2 merges; the encoder reads the last level.

    `widths` are the widths of all levels but the last, which has the model's width: finest 4 with two widths gives
    levels with patches of 4, 8 and 16 pixels.

    >>> from vitrail import Hierarchical, Size, ViTConfig
    >>> ViTConfig(embedding=Hierarchical(finest=Size(4, 4), widths=(96, 192))).patch
    Size(height=16, width=16)
    """

    finest: Size = Size(4, 4)
    widths: tuple[PositiveInt, ...] = (96, 192)

    @property
    def patch(self) -> Size:
        return Size(*(side * 2 ** len(self.widths) for side in self.finest))

    def _resized(self, patch: Size) -> Self:
        return self.but(finest=_in_proportion("finest patch", self.finest, self.patch, patch))


@dataclass(frozen=True, kw_only=True)
class Adaptive(_Embedding):
    """Small patches where the image has detail, large ones where it is flat: a quadtree over `patches`, finest first.

    A cell splits if its score reaches `threshold`: 0 gives the finest regular grid, infinity the coarsest. `selector`
    chooses the score: "detail" (the standard deviation of the cell's pixels, relative to that of the image), "local"
    (the same, relative to the root mean square over the image's cells), "learned" (a probability that a small network
    predicts) or "random" (a number between 0 and 1 that is drawn once for every place and does not look at the image:
    what the others must beat).

    >>> from vitrail import Adaptive, Size
    >>> Adaptive(patches=(Size(8, 8), Size(16, 16)), threshold=0.25).patches[-1]
    Size(height=16, width=16)
    """

    patches: tuple[Size, ...] = (Size(8, 8), Size(16, 16), Size(32, 32))
    threshold: Annotated[float, Range("[0, inf]", "0 splits every cell, infinity none")] = 0.5
    selector: Literal["detail", "local", "learned", "random"] = "detail"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.patches) >= 2,
            f"adaptive patches {[str(p) for p in self.patches]} are fewer than two sizes; give two or more",
        )
        for small, large in zip(self.patches, self.patches[1:], strict=False):
            require(
                large == Size(2 * small.height, 2 * small.width),
                f"adaptive patch {large} is not twice {small}; list sizes finest first, each twice the one before",
            )

    @property
    def patch(self) -> Size:
        """The finest patch, whose grid positions refer to."""
        return self.patches[0]

    @property
    def unit(self) -> Size:
        return self.patches[-1]

    @property
    def looks_at_pixels(self) -> bool:
        """Whether an image's pixels alone say where its cells split, without weights."""
        return self.selector in ("detail", "local")

    def _resized(self, patch: Size) -> Self:
        return self.but(
            patches=tuple(Size(patch.height << level, patch.width << level) for level in range(len(self.patches)))
        )

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        """Fit whole cells of the coarsest patch; return the grid of the finest."""
        coarse = fit(image, self.patches[-1], remainder=remainder)
        return Fit(
            image=image,
            fitted=coarse.fitted,
            grid=fit(coarse.fitted, self.patch).grid,
            remainder=remainder,
        )


def _in_proportion(name: str, size: Size, old: Size, new: Size) -> Size:
    """Scale a size by the ratio of the new patch to the old one."""
    sides = [divmod(side * after, before) for side, before, after in zip(size, old, new, strict=True)]
    require(
        all(whole > 0 and rest == 0 for whole, rest in sides),
        f"{name} {size} of patch {old} does not scale to whole pixels at patch {new}; give the whole embedding",
    )
    return Size(*(whole for whole, _ in sides))


Embedding = Patches | Stem | ResNetStem | Hierarchical | Adaptive | Tubelets
