"""The simulator's pictures: errors by frequency as a chart, and one component of the table as maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.charts.bars import bars
from vitrail.charts.raster import encode_png, heat, tile
from vitrail.checkpoint.assess.simulate import Simulation
from vitrail.checkpoint.surgery.resample import resample_table

__all__ = ["band_chart", "component_maps"]


def band_chart(found: Sequence[Simulation]) -> str:
    """SVG: a group of bars per band, a colour per method."""
    first = found[0]
    return bars(
        f"Error by frequency, {first.old} → {first.new} ({first.table})",
        [f"{band.low:.0%} – {band.high:.0%}" for band in first.bands],
        [(each.method, [band.error for band in each.bands]) for each in found],
    )


def component_maps(found: Sequence[Simulation], table: Tensor) -> bytes:
    """PNG: a row per method with the strongest component before, after, as it should be, and the difference."""
    old, new = found[0].old, found[0].new
    centred = table.double() - table.double().mean(dim=0)
    direction = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    before = (centred @ direction)[:, None]
    truth = resample_table(before, old=old, new=new, method="exact")
    low, high = float(truth.min()), float(truth.max())
    reach = (high - low) / 4
    rows = []
    for each in found:
        after = resample_table(before, old=old, new=new, method=each.method)
        maps = ((before, old, low, high), (after, new, low, high), (truth, new, low, high))
        maps = (*maps, (after - truth, new, -reach, reach))
        rows.append([heat(values.view(*grid).numpy(), least, most) for values, grid, least, most in maps])
    labels = ("before", "after", "as it should be", "difference, doubled")
    return encode_png(tile(rows, row_labels=[each.method for each in found], column_labels=labels))
