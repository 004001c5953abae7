"""How alike places are in a position table, before and after it is carried to another grid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.surgery.resample import resample_table
from vitrail.geometry import Size

__all__ = ["PLACES", "SimilarityMap", "agreement", "correlation", "similarity_maps"]

PLACES = tuple((row, column) for row in (1 / 6, 1 / 2, 5 / 6) for column in (1 / 6, 1 / 2, 5 / 6))
"""Nine places, spread evenly over the image."""


@dataclass(frozen=True, kw_only=True)
class SimilarityMap:
    """Cosine of one place's row with every place's, before and after, as pictures of the two grids."""

    place: tuple[float, float]
    """Row and column of the place, 0 … 1 down and across the image."""
    before: Tensor
    """(h, w) of the old grid."""
    after: Tensor
    """(h, w) of the new grid."""


def similarity_maps(before: Tensor, after: Tensor, *, old: Size, new: Size) -> tuple[SimilarityMap, ...]:
    """Maps of a table before, (old.area, D), and after, (new.area, D), at nine places."""
    pairs = zip(PLACES, _maps(before, old), _maps(after, new), strict=True)
    return tuple(SimilarityMap(place=place, before=first, after=second) for place, first, second in pairs)


def agreement(maps: Iterable[SimilarityMap]) -> float:
    """Mean correlation of each map before, brought to the new grid, with the one after."""
    values = []
    for each in maps:
        old, new = Size(*each.before.shape), Size(*each.after.shape)
        expected = resample_table(each.before.reshape(-1, 1), old=old, new=new, method="exact")
        values.append(correlation(expected, each.after))
    return sum(values) / len(values)


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's, of all elements; 1 where both are constant."""
    pair = torch.stack([first.flatten(), second.flatten()]).double()
    pair = pair - pair.mean(dim=1, keepdim=True)
    length = pair.norm(dim=1).prod()
    return 1.0 if length == 0 else float(pair.prod(dim=0).sum() / length)


def _maps(table: Tensor, grid: Size) -> Tensor:
    """(places, h, w): rows at places are read between cells, so that both grids are asked about the same points."""
    table = table.float()
    points = torch.tensor([[[(2 * column - 1, 2 * row - 1) for row, column in PLACES]]])  # (1, 1, places, 2)
    image = table.T.reshape(1, -1, *grid)
    rows = F.grid_sample(image, points, mode="bilinear", padding_mode="border", align_corners=False)[0, :, 0]  # (D, p)
    return (F.normalize(rows, dim=0).T @ F.normalize(table, dim=1).T).view(len(PLACES), *grid)
