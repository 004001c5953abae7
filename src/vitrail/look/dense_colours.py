"""Dense features as colours, at every pixel, with one basis for several images.

Shapes: n tokens of all images, D width, h×w tokens, H×W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.look.dense import Dense
from vitrail.look.pca import otsu, principal_scores, scaled_to_colours
from vitrail.look.refine import at_pixels, guided

__all__ = [
    "Basis",
    "DenseColours",
    "Upsampling",
    "cell_similarity",
    "common_basis",
    "dense_colours",
    "point_similarity",
    "to_pixels",
]

Upsampling = Literal["guided", "bilinear", "nearest"]
"""How values of tokens become values of pixels: along the photograph's edges, between neighbours, or cell by cell."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Basis(Brief):
    """The first three principal components of the tokens of several images."""

    colours: tuple[Tensor, ...]
    """(3, h, w) per image, 0 … 1."""
    first: tuple[Tensor, ...]
    """(1, h, w) per image: the first component, which separates the foreground at `threshold`."""
    threshold: float
    shares: tuple[float, ...]
    """The share of the tokens' variance that each component explains."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DenseColours(Brief):
    """Colours of several images that mean the same in all of them."""

    rgb: tuple[Tensor, ...]
    """(H, W, 3) per image, 0 … 1; a removed background is black."""
    shares: tuple[float, ...]
    """The share of the tokens' variance that each of the three components explains."""


@torch.no_grad()
def common_basis(images: Sequence[Dense]) -> Basis:
    """Return the principal components of the tokens of all images."""
    require(len(images) > 0, "there are no images to colour; give at least one")
    tokens = torch.cat([each.features.flatten(1).T for each in images]).double()  # (n, D)
    scores, shares = principal_scores(tokens)
    first, colours = scores[:, :1].float(), scaled_to_colours(scores).float()

    def by_image(values: Tensor) -> tuple[Tensor, ...]:
        parts = values.split([each.cells.grid.area for each in images])
        return tuple(part.T.unflatten(1, tuple(each.cells.grid)) for part, each in zip(parts, images, strict=True))

    threshold = otsu(first[:, 0]).item()
    return Basis(colours=by_image(colours), first=by_image(first), threshold=threshold, shares=tuple(shares.tolist()))


@torch.no_grad()
def dense_colours(
    images: Sequence[Dense],
    *,
    foreground: bool = False,
    upsampling: Upsampling = "guided",
    basis: Basis | None = None,
) -> DenseColours:
    """Colour every pixel by the first three principal components of the tokens of all images.

    With `foreground`, the first component is carried to the pixels and split by Otsu's threshold; the side with more
    of the images' borders is removed. `basis` is `common_basis(images)`, if that is known already.
    """
    basis = basis or common_basis(images)
    maps = [
        to_pixels(colours, each, upsampling).clamp(0, 1).permute(1, 2, 0)
        for colours, each in zip(basis.colours, images, strict=True)
    ]
    if foreground:
        kept = _foreground(basis, images, upsampling)
        maps = [each * mask[:, :, None] for each, mask in zip(maps, kept, strict=True)]
    return DenseColours(rgb=tuple(maps), shares=basis.shares)


@torch.no_grad()
def point_similarity(
    images: Sequence[Dense], row: float, column: float, *, upsampling: Upsampling = "guided"
) -> list[Tensor]:
    """Return (H, W) per image: the cosine of every place with the token at a pixel of the first image."""
    first = images[0]
    original = first.original
    require(
        0 <= row < original.height and 0 <= column < original.width,
        f"point {row:g},{column:g} is outside the image of {original}; give ROW,COLUMN in its pixels",
    )
    cells, shown = first.cells, first.pixels.shape[:2]
    cell_row, cell_column = (
        min(count - 1, max(0, int((at / side * pixels - corner) / step)))
        for at, side, pixels, corner, step, count in zip(
            (row, column), original, shown, (cells.top, cells.left), cells.step, cells.grid, strict=True
        )
    )
    cosines = cell_similarity(images, cell_row, cell_column)
    return [to_pixels(near[None], each, upsampling)[0] for near, each in zip(cosines, images, strict=True)]


@torch.no_grad()
def cell_similarity(images: Sequence[Dense], row: int, column: int) -> list[Tensor]:
    """Return (h, w) per image: the cosine of every token with the token of a cell of the first image."""
    token = F.normalize(images[0].features[:, row, column], dim=0)
    return [torch.einsum("d,dhw->hw", token, F.normalize(each.features, dim=0)) for each in images]


def to_pixels(values: Tensor, image: Dense, upsampling: Upsampling) -> Tensor:
    """(C, h, w) → (C, H, W)."""
    if upsampling == "guided":
        return guided(values, image.cells, image.pixels)
    return at_pixels(values, image.cells, Size(*image.pixels.shape[:2]), upsampling)


def _foreground(basis: Basis, images: Sequence[Dense], upsampling: Upsampling) -> list[Tensor]:
    """Return (H, W) per image, true for its foreground."""
    above = [
        to_pixels(first, each, upsampling)[0] > basis.threshold for first, each in zip(basis.first, images, strict=True)
    ]
    border = torch.cat([torch.cat([each[0], each[-1], each[:, 0], each[:, -1]]) for each in above])
    inside = torch.cat([each.flatten() for each in above])
    shares = [(border == side).sum().item() / max(1, (inside == side).sum().item()) for side in (True, False)]
    return [~each if shares[0] > shares[1] else each for each in above]
