"""An image cut into cells: the quadtree of adaptive patches, and the levels of hierarchical ones.

An exported page runs these functions too, as graphs: see vitrail/server/site/cuts.py.

Shapes: H×W pixels, C channels, h×w cells of P×Q pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.images.decode import Pixels
from vitrail.nn.adaptive import cell_scores, leaves_of
from vitrail.server.rooms.tokens.cuts import ADAPTIVE_SIZES, PYRAMID, Cut

__all__ = ["Detail", "Leaves", "cut_cells", "detail_of", "pyramid_means", "quadtree_of"]


def cut_cells(pixels: Pixels, cut: Cut) -> Tensor:
    """Resize and crop pixels as a model of the cut's image size does → (h, P, w, Q, C)."""
    resized = torch.from_numpy(Preprocessing(image=cut.image).pixels(pixels, exact=True).pixels)
    return resized.unflatten(1, (-1, cut.patch.width)).unflatten(0, (-1, cut.patch.height))


@dataclass(frozen=True)
class Detail:
    """What a threshold is compared with, and the colours of all cells; both depend on the image and its cut alone."""

    scores: list[Tensor]
    """(1, rows, columns) per patch size but the finest."""
    means: list[Tensor]
    """(rows, columns, C) per patch size, finest first: mean colours from 0 to 255."""


def detail_of(cells: Tensor) -> Detail:
    """Compute the scores and mean colours of cells (h, P, w, Q, C) and of larger ones."""
    scores = cell_scores(cells.float().permute(0, 2, 4, 1, 3)[None], ADAPTIVE_SIZES)
    return Detail(scores=scores, means=_means(cells, ADAPTIVE_SIZES))


@dataclass(frozen=True)
class Leaves:
    """A quadtree, on its finest grid."""

    levels: Tensor
    """uint8 (h, w): the index of the patch size that covers each cell, 0 for the finest."""
    dense: Tensor
    """uint8 (h, w, C): the colour of each cell's token."""
    counts: Tensor
    """int32: patches of each size, finest first."""


def quadtree_of(detail: Detail, threshold: float | Tensor) -> Leaves:
    """Build the quadtree for a threshold, and map its tokens to a dense grid."""
    leaves = [leaf[0] for leaf in leaves_of(detail.scores, threshold)]
    covered = [_on_finest(leaf, level) for level, leaf in enumerate(leaves)]
    colours = [_on_finest(mean, level) for level, mean in enumerate(detail.means)]
    levels = torch.stack([level * each.int() for level, each in enumerate(covered)]).sum(dim=0)
    dense = torch.stack([each[..., None] * colour for each, colour in zip(covered, colours, strict=True)]).sum(dim=0)
    counts = torch.stack([leaf.int().sum() for leaf in leaves])
    return Leaves(levels=levels.byte(), dense=dense.round().byte(), counts=counts.int())


def pyramid_means(cells: Tensor) -> list[Tensor]:
    """Return the mean colour of every token, uint8 (rows, columns, C), per level of the pyramid, finest first."""
    return [mean.round().byte() for mean in _means(cells, len(PYRAMID))]


def _means(cells: Tensor, sizes: int) -> list[Tensor]:
    means = [cells.float().mean((1, 3))]
    while len(means) < sizes:
        means.append(means[-1].unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).mean((1, 3)))
    return means


def _on_finest(x: Tensor, level: int) -> Tensor:
    """(rows, columns, …) of a level → (h, w, …)."""
    return x.repeat_interleave(2**level, dim=0).repeat_interleave(2**level, dim=1)
