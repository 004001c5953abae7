"""How an image becomes tokens: each way of cutting and projecting patches is a type."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Annotated, Literal, Self

from vitrail.errors import VitrailError, require
from vitrail.geometry import Fit, Remainder, Size, fit
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value

__all__ = ["Adaptive", "Embedding", "Hierarchical", "Patches", "Stem"]


@dataclass(frozen=True, kw_only=True)
class _Embedding(Value):
    """What every kind says about itself; `patch` is the patch that the grid counts."""

    @property
    def patch(self) -> Size:
        raise NotImplementedError

    @property
    def unit(self) -> Size:
        """What the sides of an image must be multiples of, to be cut without a remainder."""
        return self.patch

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        return fit(image, self.patch, remainder=remainder)

    def with_patch(self, patch: Size) -> Self:
        """The same embedding with another patch, all else in proportion."""
        return self if patch == self.patch else self._resized(patch)

    def _resized(self, patch: Size) -> Self:
        raise VitrailError(
            f"patch {patch} cannot be had from {type(self).__name__} of patch {self.patch}; "
            "keep its patch, or give another embedding"
        )


@dataclass(frozen=True, kw_only=True)
class Patches(_Embedding):
    """Cut, flatten, project. A stride below the patch makes the patches overlap."""

    patch: Size = Size(16, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
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

    def _resized(self, patch: Size) -> Self:
        return self.but(patch=patch, stride=self.stride and _in_proportion("stride", self.stride, self.patch, patch))


@dataclass(frozen=True, kw_only=True)
class Stem(_Embedding):
    """A convolutional stem: 3×3 stride-2 convolutions with batch norm and ReLU down to the patch, then 1×1.

    After "Early Convolutions Help Transformers See Better" (arXiv 2106.14881).
    """

    patch: Size = Size(16, 16)  # pyright: ignore[reportIncompatibleMethodOverride]
    widths: tuple[PositiveInt, ...] = (48, 96, 192, 384)

    def __post_init__(self) -> None:
        super().__post_init__()
        stride = 2 ** len(self.widths)
        require(
            self.patch == Size(stride, stride),
            f"a stem of {len(self.widths)} convolutions reduces by {stride}, not by patch {self.patch}; "
            f"give {max(1, ceil(log2(max(self.patch))))} widths or patch {stride}",
        )


@dataclass(frozen=True, kw_only=True)
class Hierarchical(_Embedding):
    """A pyramid of token grids: patches of `finest`, then 2×2 merges, each level wider; the last feeds the encoder.

    `widths` are those of the levels before the last, whose width is the model's: finest 4 with two widths gives
    levels of 4, 8 and 16 pixels.
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

    @property
    def unit(self) -> Size:
        return self.patches[-1]

    def _resized(self, patch: Size) -> Self:
        return self.but(
            patches=tuple(Size(patch.height << level, patch.width << level) for level in range(len(self.patches)))
        )

    def fit(self, image: Size, remainder: Remainder) -> Fit:
        """Whole coarsest cells; the grid is the finest one."""
        coarse = fit(image, self.patches[-1], remainder=remainder)
        return Fit(
            image=image,
            fitted=coarse.fitted,
            grid=fit(coarse.fitted, self.patch).grid,
            remainder=remainder,
        )


def _in_proportion(name: str, size: Size, old: Size, new: Size) -> Size:
    """A size that belongs to the old patch, as large a part of the new one."""
    sides = [divmod(side * after, before) for side, before, after in zip(size, old, new, strict=True)]
    require(
        all(whole > 0 and rest == 0 for whole, rest in sides),
        f"{name} {size} of patch {old} is not whole at patch {new}; give the embedding itself",
    )
    return Size(*(whole for whole, _ in sides))


Embedding = Patches | Stem | Hierarchical | Adaptive
