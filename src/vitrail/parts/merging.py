"""Merging: how the grid of one stage of a pyramid becomes the next, with half its sides and another width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrail.value import Value

__all__ = ["GridPooling", "Merging", "PatchMerging", "QueryPooling"]


@dataclass(frozen=True, kw_only=True)
class PatchMerging(Value):
    """Concatenate 2×2 patches, normalise and project them, as Swin (arXiv 2103.14030).

    With `norm` "after", they are projected and then normalised, as in Swin v2. The sides of every grid must be even,
    and there is no way for prefix tokens.

    >>> from vitrail import PatchMerging, preset
    >>> preset("swin-T").merging
    PatchMerging()
    """

    norm: Literal["before", "after"] = "before"

    even_sides_only: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class GridPooling(Value):
    """A depthwise 3×3 convolution of stride 2 over the patches, and a linear layer for the prefix tokens, as PiT
    (arXiv 2103.16302).

    Odd sides are rounded up, and the next width is a multiple of the width before.

    >>> from vitrail import GridPooling, preset
    >>> preset("pit-S").merging, preset("pit-S").grids[0], preset("pit-S").grids[1]
    (GridPooling(), Size(height=27, width=27), Size(height=14, width=14))
    """

    even_sides_only: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class QueryPooling(Value):
    """The first block of a stage takes the maximum of its queries over 2×2 patches and projects to the stage's width,
    as Hiera (arXiv 2306.00989); it still has the windows of the stage before.

    The sides of every grid and of windows before a pooling must be even, and there is no way for prefix tokens.

    >>> from vitrail import QueryPooling, preset
    >>> preset("hiera-T").merging, preset("hiera-T").grids[0], preset("hiera-T").grids[1]
    (QueryPooling(), Size(height=56, width=56), Size(height=28, width=28))
    """

    even_sides_only: ClassVar[bool] = True


Merging = PatchMerging | GridPooling | QueryPooling
