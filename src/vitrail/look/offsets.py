"""How position similarity depends on the distance and on the offset between two patches.

Shapes: an r×c grid has N = r·c patches and (2r − 1)·(2c − 1) offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import require
from vitrail.geometry import offsets_of
from vitrail.look.positions import PositionSimilarity
from vitrail.nn.relative import offset_index

__all__ = ["ByDistance", "ByOffset", "by_distance", "by_offset"]


@dataclass(frozen=True, kw_only=True)
class ByOffset:
    """Similarity of pairs of patches, grouped by their offset; tensors are (2r − 1, 2c − 1).

    The centre is a patch with itself; below the centre are keys below the query.
    """

    means: Tensor
    variances: Tensor
    pairs: Tensor
    share: float
    """The share of the variance over pairs of different patches that the offset explains; 1 if constant."""


@dataclass(frozen=True, kw_only=True)
class ByDistance:
    """Similarity of pairs of different patches, grouped by their distance, rounded to whole patches."""

    distances: tuple[int, ...]
    means: tuple[float, ...]
    spreads: tuple[float, ...]
    """The standard deviation over the pairs at each distance."""
    pairs: tuple[int, ...]
    correlation: float
    """The correlation of similarity with distance over all pairs: negative if near patches are similar."""


def by_offset(similarity: PositionSimilarity) -> ByOffset:
    """Group similarity by offset, and return how much of it the offset explains."""
    grid, values = similarity.grid, similarity.values.detach().double().flatten()
    index, offsets = offset_index(grid, grid).T.flatten(), offsets_of(grid)  # transposed: key − query
    pairs = torch.bincount(index, minlength=offsets.area)
    means = torch.bincount(index, values, offsets.area) / pairs
    variances = (torch.bincount(index, values.square(), offsets.area) / pairs - means.square()).clamp(min=0)
    mask = _different_patches(pairs)
    whole = _spread(pairs, means, variances, mask)
    rest = (pairs * variances)[mask].sum().item()
    return ByOffset(
        means=means.view(*offsets),
        variances=variances.view(*offsets),
        pairs=pairs.view(*offsets),
        share=1 - rest / whole if whole else 1.0,
    )


def by_distance(offsets: ByOffset) -> ByDistance:
    """Group similarity by distance, from its statistics by offset: pairs of one offset have one distance."""
    pairs, means, variances = (each.flatten() for each in (offsets.pairs, offsets.means, offsets.variances))
    require(len(pairs) > 1, "the grid has one patch and so no pairs; give a larger grid")
    rows, columns = (torch.arange(side, dtype=torch.float64) - side // 2 for side in offsets.pairs.shape)
    distance = torch.hypot(rows[:, None], columns).flatten()
    index = distance.round().long()
    count = torch.bincount(index, pairs)
    mean = torch.bincount(index, pairs * means) / count
    spread = torch.bincount(index, pairs * (variances + (means - mean[index]).square())).div(count).sqrt()
    distances = [index for index, pair in enumerate(count.tolist()) if index and pair]
    mask = _different_patches(pairs)
    squares = _spread(pairs, distance, torch.zeros_like(distance), mask) * _spread(pairs, means, variances, mask)
    products = pairs * (distance - _mean(pairs, distance, mask)) * (means - _mean(pairs, means, mask))
    return ByDistance(
        distances=tuple(distances),
        means=tuple(mean[distances].tolist()),
        spreads=tuple(spread[distances].tolist()),
        pairs=tuple(int(pair) for pair in count[distances].tolist()),
        correlation=products[mask].sum().item() / squares**0.5 if squares else 0.0,
    )


def _different_patches(pairs: Tensor) -> Tensor:
    """True for all offsets but that of a patch with itself, which is the middle one."""
    mask = torch.ones_like(pairs, dtype=torch.bool)
    mask[len(pairs) // 2] = False
    return mask


def _mean(pairs: Tensor, means: Tensor, chosen: Tensor) -> Tensor:
    return (pairs * means)[chosen].sum() / pairs[chosen].sum().clamp(min=1)


def _spread(pairs: Tensor, means: Tensor, variances: Tensor, chosen: Tensor) -> float:
    """Return the sum of squared deviations from the mean of all pairs; 0 if it is only rounding error."""
    within = (pairs * variances)[chosen].sum()
    between = (pairs * (means - _mean(pairs, means, chosen)).square())[chosen].sum()
    size = (pairs * means.square())[chosen].sum()
    return 0.0 if within + between <= 1e-12 * size else (within + between).item()
