"""What a similarity of positions follows: distance on the grid, and the offset between two patches.

Shapes: r×c grid, N = r·c patches; it has (2r − 1)·(2c − 1) offsets.
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
    """Similarity of pairs of patches, gathered by the offset between them, (2r − 1, 2c − 1) each.

    The middle is a patch with itself; below it are keys that lie below the query.
    """

    means: Tensor
    variances: Tensor
    pairs: Tensor
    share: float
    """Share of the variance over pairs of different patches that the offset alone explains; 1 if constant."""


@dataclass(frozen=True, kw_only=True)
class ByDistance:
    """Similarity of pairs of different patches, gathered by their distance, rounded to whole patches."""

    distances: tuple[int, ...]
    means: tuple[float, ...]
    spreads: tuple[float, ...]
    """Standard deviation over the pairs of a distance."""
    pairs: tuple[int, ...]
    correlation: float
    """Correlation of similarity with distance over all pairs: negative if near patches are alike; 0 if constant."""


def by_offset(found: PositionSimilarity) -> ByOffset:
    """The similarity as if only the offset mattered, and how much of it that is."""
    grid, values = found.grid, found.values.detach().double().flatten()
    index, offsets = offset_index(grid, grid).T.flatten(), offsets_of(grid)  # transposed: key − query
    pairs = torch.bincount(index, minlength=offsets.area)
    means = torch.bincount(index, values, offsets.area) / pairs
    variances = (torch.bincount(index, values.square(), offsets.area) / pairs - means.square()).clamp(min=0)
    apart = _apart(pairs)
    whole = _spread(pairs, means, variances, apart)
    rest = (pairs * variances)[apart].sum().item()
    return ByOffset(
        means=means.view(*offsets),
        variances=variances.view(*offsets),
        pairs=pairs.view(*offsets),
        share=1 - rest / whole if whole else 1.0,
    )


def by_distance(found: ByOffset) -> ByDistance:
    """The same by distance: pairs with one offset are as far apart."""
    pairs, means, variances = (each.flatten() for each in (found.pairs, found.means, found.variances))
    require(len(pairs) > 1, "a grid of one patch has no pairs; give a larger one")
    rows, columns = (torch.arange(side, dtype=torch.float64) - side // 2 for side in found.pairs.shape)
    distance = torch.hypot(rows[:, None], columns).flatten()
    index = distance.round().long()
    count = torch.bincount(index, pairs)
    mean = torch.bincount(index, pairs * means) / count
    spread = torch.bincount(index, pairs * (variances + (means - mean[index]).square())).div(count).sqrt()
    there = [at for at, pair in enumerate(count.tolist()) if at and pair]
    apart = _apart(pairs)
    far, alike = _spread(pairs, distance, torch.zeros_like(distance), apart), _spread(pairs, means, variances, apart)
    both = (pairs * (distance - _mean(pairs, distance, apart)) * (means - _mean(pairs, means, apart)))[apart].sum()
    return ByDistance(
        distances=tuple(there),
        means=tuple(mean[there].tolist()),
        spreads=tuple(spread[there].tolist()),
        pairs=tuple(int(pair) for pair in count[there].tolist()),
        correlation=both.item() / (far * alike) ** 0.5 if far and alike else 0.0,
    )


def _apart(pairs: Tensor) -> Tensor:
    """All offsets but that of a patch with itself, which is the middle one."""
    apart = torch.ones_like(pairs, dtype=torch.bool)
    apart[len(pairs) // 2] = False
    return apart


def _mean(pairs: Tensor, means: Tensor, chosen: Tensor) -> Tensor:
    return (pairs * means)[chosen].sum() / pairs[chosen].sum().clamp(min=1)


def _spread(pairs: Tensor, means: Tensor, variances: Tensor, chosen: Tensor) -> float:
    """The sum of squares around the mean of all pairs; 0 where it is rounding."""
    within = (pairs * variances)[chosen].sum()
    between = (pairs * (means - _mean(pairs, means, chosen)).square())[chosen].sum()
    size = (pairs * means.square())[chosen].sum()
    return 0.0 if within + between <= 1e-12 * size else (within + between).item()
