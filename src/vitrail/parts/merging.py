"""Merging: how the grid of one stage of a pyramid becomes the next, with half its sides and another width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrail.value import Value

__all__ = ["GridPooling", "Merging", "PatchMerging"]


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


Merging = PatchMerging | GridPooling
