"""Sizes, grids, and how an image that is not divisible by the patch is handled.

A grid is a `Size` that is passed along with its tokens; it is never inferred from a token count.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, Self, get_args

from vitrail.errors import VitrailError, require, shown
from vitrail.traced import Traced

__all__ = [
    "Fit",
    "Remainder",
    "Size",
    "Windows",
    "attention_elements",
    "fit",
    "halved",
    "in_shape_of",
    "offsets_of",
    "position_id",
    "token_count",
]

Remainder = Literal["error", "resize", "crop", "floor", "pad"]
"""How to handle an image that is not divisible by the patch: raise an error; resize it; keep its centre ("crop"); drop
the remainder at the right and bottom, as a strided convolution does ("floor"); or pad it and mask the padding."""

_LIMIT = 10**9  # so that every size can be read back from its text


def _whole(value: Any) -> int:
    """Return a Python integer for NumPy's, and for the sizes of a model that torch traces; 0 for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return 0


@dataclass(frozen=True, order=True)
class Size:
    """A height and a width, in pixels or in patches. Height always comes first.

    >>> Size(384, 640)
    Size(height=384, width=640)
    >>> str(Size.of("384x640")), Size.of(16)
    ('384x640', Size(height=16, width=16))
    """

    height: int
    width: int = 0  # a missing width then raises the same one-line VitrailError as any other mistake

    def __post_init__(self) -> None:
        if type(self.height) is type(self.width) is int and 0 < self.height < _LIMIT and 0 < self.width < _LIMIT:
            return
        for name in ("height", "width"):
            value = getattr(self, name)
            whole = value if isinstance(value, Traced) else 0 if isinstance(value, bool) else _whole(value)
            require(
                0 < whole < _LIMIT,
                f"{name} {shown(value)} is not a positive whole number of up to 9 digits; "
                "write sizes as HEIGHTxWIDTH, like 384x640",
            )
            object.__setattr__(self, name, whole)

    @classmethod
    def of(cls, value: Size | int | str | tuple[int, int]) -> Size:
        """Read `384x640`, `224` (a square), `(384, 640)` or a Size."""
        if isinstance(value, Size):
            return value
        if isinstance(value, int | Integral):
            return cls(value, value)
        if isinstance(value, str):
            match = re.fullmatch(r"\s*(\d{1,9})(?:\s*[x×]\s*(\d{1,9}))?\s*", value)
            if match is not None:
                return cls(int(match[1]), int(match[2] or match[1]))
        if isinstance(value, tuple | list):
            require(len(value) == 2, f"size {shown(value)} has {len(value)} numbers; give (height, width)")
            return cls(*value)
        raise VitrailError(f"size {shown(value)} is not HEIGHTxWIDTH; write 384x640, or 224 for a square")

    @property
    def area(self) -> int:
        return self.height * self.width

    def __iter__(self):
        yield self.height
        yield self.width

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"


@dataclass(frozen=True)
class Fit:
    """How an image is cut into patches: the size that is cut, the resulting grid, and how a remainder is handled."""

    image: Size
    fitted: Size
    grid: Size
    remainder: Remainder

    @property
    def padded_pixels(self) -> int:
        """Pixels added around the image; they are masked and do not change the result."""
        return self.fitted.area - self.image.area if self.remainder == "pad" else 0

    @property
    def cropped_pixels(self) -> int:
        """Pixels of the image that are dropped."""
        return self.image.area - self.fitted.area if self.remainder in ("crop", "floor") else 0

    @property
    def offset(self) -> tuple[int, int]:
        """The row and column of the image at which the first patch begins."""
        if self.remainder != "crop":
            return 0, 0
        return (self.image.height - self.fitted.height) // 2, (self.image.width - self.fitted.width) // 2


def fit(image: Size, patch: Size, *, stride: Size | None = None, remainder: Remainder = "error") -> Fit:
    """Cut an image into patches, `stride` apart (default: the patch size).

    >>> fit(Size(224, 320), Size(16, 16)).grid
    Size(height=14, width=20)
    >>> fit(Size(225, 310), Size(16, 16), remainder="crop").fitted
    Size(height=224, width=304)
    """
    stride = stride or patch
    require(
        remainder in get_args(Remainder),
        f"remainder {remainder!r} is not one of {', '.join(get_args(Remainder))}; choose what happens at the edges",
    )
    fitted, grid = zip(
        *(_fit_side(image, patch, *sides, remainder) for sides in zip(image, patch, stride, strict=True)),
        strict=True,
    )
    return Fit(image=image, fitted=Size(*fitted), grid=Size(*grid), remainder=remainder)


def _fit_side(image: Size, patch: Size, length: int, window: int, step: int, remainder: Remainder) -> tuple[int, int]:
    """Return (fitted length, patches) of one side; `image` and `patch` are for the error message."""
    extra = (length - window) % step if length >= window else None
    if extra == 0:
        return length, (length - window) // step + 1
    below = length - extra if extra is not None else None
    above = length - extra + step if extra is not None else window
    if remainder == "pad":
        fitted = above
    elif below is None:
        if remainder != "resize":
            raise VitrailError(
                f"patch {patch} is larger than image {image}; use a patch of at most {image}, a larger image, "
                "or a model with remainder 'pad' or 'resize'"
            )
        fitted = above
    elif remainder in ("crop", "floor"):
        fitted = below
    elif remainder == "resize":
        fitted = below if length - below <= above - length else above
    else:
        spacing = f"patch {patch}" if step == window else f"patch {patch} at stride {step}"
        raise VitrailError(
            f"image {image} is not divisible by {spacing} ({length} leaves {extra}); "
            f"use {below} or {above}, or a model with remainder 'resize', 'crop', 'floor' or 'pad'"
        )
    return fitted, (fitted - window) // step + 1


@dataclass(frozen=True)
class Windows:
    """A grid cut into windows; if they do not divide it, they extend beyond it at the bottom and right."""

    grid: Size
    window: Size
    shift: tuple[int, int]
    """Rows and columns that the windows are shifted by."""
    zeros: bool
    """Padding takes part in attention: the grid is shifted, then padded, and only wrapped patches are masked."""

    @classmethod
    def of(
        cls, grid: Size, window: Size, *, frame: Size | None = None, shifted: bool = False, zeros: bool = False
    ) -> Self:
        """Cut windows no larger than the frame (default: the grid); shift them on axes that have more than one.

        >>> cut = Windows.of(Size(14, 20), Size(7, 7), shifted=True)
        >>> cut.across, cut.padded, cut.shift
        (Size(height=2, width=3), Size(height=14, width=21), (3, 3))
        """
        frame = frame or grid
        if window.height > frame.height or window.width > frame.width:
            window = Size(min(window.height, frame.height), min(window.width, frame.width))
        down = window.height // 2 if shifted and frame.height > window.height else 0
        right = window.width // 2 if shifted and frame.width > window.width else 0
        return cls(grid, window, (down, right), zeros)

    @cached_property
    def across(self) -> Size:
        """The number of windows along each side."""
        return Size(-(-self.grid.height // self.window.height), -(-self.grid.width // self.window.width))

    @cached_property
    def padded(self) -> Size:
        """The grid, padded to whole windows."""
        return Size(self.across.height * self.window.height, self.across.width * self.window.width)


def halved(grid: Size) -> Size:
    """Return the grid after a step of two, such as a 3×3 convolution of stride 2; odd sides are rounded up.

    >>> halved(Size(27, 14))
    Size(height=14, width=7)
    """
    return Size(-(-grid.height // 2), -(-grid.width // 2))


def in_shape_of(original: Size, area: int, unit: Size) -> Size:
    """Return a size with about the aspect ratio of `original` and about `area` pixels, in whole units.

    >>> in_shape_of(Size(480, 640), 224 * 224, Size(16, 16))
    Size(height=192, width=256)
    """
    scale = (area / original.area) ** 0.5
    return Size(*(max(1, round(side * scale / step)) * step for side, step in zip(original, unit, strict=True)))


def offsets_of(grid: Size) -> Size:
    """Return the number of row and column offsets between two patches of a grid.

    >>> offsets_of(Size(14, 14)).area
    729
    """
    return Size(2 * grid.height - 1, 2 * grid.width - 1)


def token_count(grid: Size, prefix: int = 0) -> int:
    """Return the number of patches and prefix tokens.

    >>> token_count(Size(14, 14), prefix=1)
    197
    """
    return grid.area + prefix


def attention_elements(tokens: int) -> int:
    """Return the number of elements of one head's attention matrix.

    >>> attention_elements(4096)
    16777216
    """
    return tokens * tokens


def position_id(row: int, column: int, grid: Size, prefix: int = 1) -> int:
    """Return a patch's index in the sequence: the prefix comes first, then the grid row by row.

    >>> position_id(0, 0, Size(14, 14)), position_id(13, 13, Size(14, 14))
    (1, 196)
    """
    require(
        0 <= row < grid.height and 0 <= column < grid.width,
        f"patch ({row}, {column}) is outside the grid {grid}; rows are 0–{grid.height - 1}, columns 0–{grid.width - 1}",
    )
    return prefix + row * grid.width + column
