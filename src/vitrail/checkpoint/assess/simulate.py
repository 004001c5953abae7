"""The resolution-transfer simulator: what a method does to a table between two grids, frequency by frequency.

A table is a sum of cosines over the grid (its DCT). A method should give each of them at the new grid's centres if
the new grid can carry it, and nothing of it if it cannot; what it gives instead is its error. Everything is linear,
so for a table with a known spectrum the errors have a closed form; for a trained table they are measured on it.

Shapes: h×w old grid, r×s new grid, D width; k×l waves of the old grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.checkpoint.surgery.resample import Method, along_axes, axis_matrix, cosines
from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["Band", "Simulation", "known_spectrum", "known_table", "simulate"]

FALL = 2.0
"""Power falls with frequency to this power in the known spectrum: smooth, as trained tables are."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A band of frequencies, as shares of the finest frequency of the old grid."""

    low: float
    high: float
    energy: float
    """Share of the table's energy (its mean aside) in this band."""
    error: float
    """Error on the new grid, relative to the band's energy."""
    round_trip: float
    """Relative error after resampling to the new grid and back."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The error of one method between two grids."""

    old: Size
    new: Size
    method: Method
    table: str
    """The table that was resampled: the known spectrum, or a trained table's name."""
    bands: tuple[Band, ...]
    error: float
    """Relative error over all bands."""
    round_trip: float


def simulate(old: Size, new: Size, method: Method, *, table: Tensor | None = None, bands: int = 4) -> Simulation:
    """Resample a table (old.area, D) to another grid and back; the default table's power falls as 1/f²."""
    require(bands > 0, f"bands {bands} is not positive; give 1 or more")
    require(old.area > 1, f"a grid of {old} has no frequencies; give a larger one")
    index = _band_of_wave(old, bands)
    sums = _known(old, new, method, index, bands) if table is None else _measured(table, old, new, method, index, bands)
    shares = sums[:, 0] / sums[-1, 0]
    relative = (sums[:, 1:] / sums[:, :1].clamp(min=1e-300)).sqrt()
    return Simulation(
        old=old,
        new=new,
        method=method,
        table="power 1/f²" if table is None else "trained",
        bands=tuple(
            Band(
                low=band / bands,
                high=(band + 1) / bands,
                energy=float(shares[band]),
                error=float(relative[band, 0]),
                round_trip=float(relative[band, 1]),
            )
            for band in range(bands)
        ),
        error=float(relative[-1, 0]),
        round_trip=float(relative[-1, 1]),
    )


def known_spectrum(grid: Size) -> Tensor:
    """(h, w): power per wave, falling as 1/f²; the mean is left out, since it says nothing about places."""
    rows, columns = (torch.arange(side, dtype=torch.float64) / side for side in grid)
    squared = rows[:, None].square() + columns.square()
    squared[0, 0] = torch.inf
    return squared ** (-FALL / 2)


def known_table(grid: Size, width: int, *, seed: int = 0) -> Tensor:
    """(N, D): random, with the known spectrum and rows of norm about 1."""
    noise = torch.randn(*grid, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    power = known_spectrum(grid)
    waves = (power / power.sum() * grid.area / width).sqrt()[..., None] * noise
    rows, columns = (_basis(side) for side in grid)
    return along_axes(waves.flatten(0, 1), rows.T, columns.T)


def _band_of_wave(grid: Size, bands: int) -> Tensor:
    """(h, w): the band of each wave, by its finer axis."""
    rows, columns = (torch.arange(side, dtype=torch.float64) / side for side in grid)
    return (torch.maximum(rows[:, None], columns) * bands).long()


def _basis(side: int) -> Tensor:
    """(k, side): the orthonormal cosines of an axis."""
    return cosines(side, torch.arange(side, dtype=torch.float64))


def _known(old: Size, new: Size, method: Method, index: Tensor, bands: int) -> Tensor:
    """(bands + 1, 3): energy, squared error and squared error of the round trip, in expectation; the last is all."""
    power = known_spectrum(old)
    there, back = [], []
    for before, after in zip(old, new, strict=True):
        waves = _basis(before)
        forth = axis_matrix(before, after, method)
        given = forth @ waves.T * (before / after) ** 0.5  # (after, k), in units of a wave's size on the new grid
        truth = torch.zeros_like(given)
        carried = min(before, after)
        truth[:, :carried] = cosines(after, torch.arange(carried, dtype=torch.float64)).T
        there.append((given, truth))
        back.append((axis_matrix(after, before, method) @ forth @ waves.T, waves.T))
    squares = torch.stack([power, power * _distance(there), power * _distance(back)], dim=-1)
    sums = torch.zeros(bands, 3, dtype=torch.float64).index_add_(0, index.flatten(), squares.flatten(0, 1))
    return torch.cat([sums, sums.sum(dim=0, keepdim=True)])


def _distance(axes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(k, l): |a⊗b − a'⊗b'|² of the waves given by rows and columns, (a, a') and (b, b')."""
    (a, a_true), (b, b_true) = axes
    da, db = a - a_true, b - b_true  # differences first: where they vanish, so must the result

    def outer(rows: Tensor, columns: Tensor) -> Tensor:
        return rows.sum(0)[:, None] * columns.sum(0)

    squares = outer(da.square(), b.square()) + outer(a_true.square(), db.square()) + 2 * outer(da * a_true, b * db)
    return squares.clamp(min=0)


def _measured(table: Tensor, old: Size, new: Size, method: Method, index: Tensor, bands: int) -> Tensor:
    """Return the same figures for one table, per band and overall."""
    rows, columns = (_basis(side) for side in old)
    waves = along_axes(table.double(), rows, columns)  # (k·l, D)
    waves[0] = 0
    forth = [axis_matrix(*sides, method) for sides in zip(old, new, strict=True)]
    exact = [axis_matrix(*sides, "exact") for sides in zip(old, new, strict=True)]
    back = [axis_matrix(*sides, method) for sides in zip(new, old, strict=True)]
    found = []
    for band in range(bands + 1):
        chosen = (index == band) | (band == bands)
        part = along_axes(waves * chosen.view(-1, 1), rows.T, columns.T)
        given = along_axes(part, *forth)
        error = (given - along_axes(part, *exact)).square().sum() * old.area / new.area
        found.append(torch.stack([part.square().sum(), error, (along_axes(given, *back) - part).square().sum()]))
    return torch.stack(found)
