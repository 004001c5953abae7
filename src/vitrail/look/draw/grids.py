"""Pictures of weights: position similarities as a grid of grids, and a projection's filters.

Shapes: r×c grid, C channels, P×Q pixels.
"""

from __future__ import annotations

import numpy as np

from vitrail.charts.palette import BLUE, GREY, INK
from vitrail.charts.raster import filter_picture, mosaic
from vitrail.charts.sheet import HEADER, MARGIN, Sheet
from vitrail.errors import require
from vitrail.look.filters import Filters
from vitrail.look.positions import PositionSimilarity

__all__ = ["draw_filters", "draw_positions"]

MOST_TILES = 14
PRINCIPAL = (4, 7)
SOME = (8, 8)


def draw_positions(found: PositionSimilarity, *, title: str, subtitle: str) -> Sheet:
    """A tile for every patch (of a large grid, for some), at its place: its similarity with all patches."""
    rows, columns = (_some(side) for side in found.grid)
    values = found.values.float().cpu().numpy()[np.ix_(rows, columns)]
    gap = max(1, round(0.12 * max(found.grid)))
    tiles = mosaic(values, gap, fill=np.nan)
    width = 7.2
    height = width * tiles.shape[0] / tiles.shape[1]
    left = MARGIN + 0.42
    sheet = Sheet(HEADER + height + 0.36 + MARGIN, left + width + 0.95 + MARGIN, title, subtitle)
    axes = sheet.picture(HEADER, left, height, width)
    image = axes.imshow(tiles, cmap="viridis", interpolation="nearest", aspect="auto")
    tile = [side + gap for side in found.grid]
    for ticks, places, step, side in (
        (axes.set_yticks, rows, tile[0], found.grid.height),
        (axes.set_xticks, columns, tile[1], found.grid.width),
    ):
        ticks([index * step + (side - 1) / 2 for index in range(len(places))], [str(place) for place in places])
    axes.tick_params(length=0, labelsize=8, colors=GREY, pad=3)
    axes.set_xlabel("column of the patch", fontsize=8.5, color=INK)
    axes.set_ylabel("row of the patch", fontsize=8.5, color=INK)
    sheet.colour_bar(image, HEADER, left + width + 0.16, height, found.measure)
    return sheet


def draw_filters(found: Filters, *, title: str, subtitle: str) -> Sheet:
    """The principal filters with their shares, the strongest of the filters themselves, and how the shares add up."""
    from matplotlib.ticker import MaxNLocator

    require(
        found.filters.shape[1] in (1, 3),
        f"filters of {found.filters.shape[1]} channels are no pictures; this draws 1 or 3",
    )
    rows, columns = PRINCIPAL
    shape = found.filters.shape[2] / found.filters.shape[3]
    wide = 0.82
    tall, gap, words = wide * shape, 0.09, 0.17
    top = HEADER + 0.26
    block = rows * (tall + words + gap) - gap
    block_width = columns * (wide + gap) - gap
    right = MARGIN + block_width + 0.5
    some_wide = block / max(shape, 1.0)
    chart = right + some_wide + 0.85
    sheet = Sheet(top + block + MARGIN + 0.1, chart + 2.6 + MARGIN, title, subtitle)

    for index, (picture, share) in enumerate(
        zip(found.principal[: rows * columns], found.shares.tolist(), strict=False)
    ):
        row, column = divmod(index, columns)
        place = (top + row * (tall + words + gap), MARGIN + column * (wide + gap))
        axes = sheet.picture(*place, tall, wide, title="" if index else "Principal filters, and what each carries")
        axes.imshow(filter_picture(picture.cpu().numpy()), interpolation="nearest", aspect="auto")
        sheet.text(
            place[0] + tall + 0.14, place[1] + wide / 2, f"{100 * share:.1f} %", size=8, colour=GREY, align="center"
        )

    order = found.filters.flatten(1).norm(dim=1).argsort(descending=True)[: SOME[0] * SOME[1]]
    pictures = np.stack([filter_picture(found.filters[index].cpu().numpy()) for index in order])
    count = (-(-len(pictures) // SOME[1]), SOME[1])
    pictures = np.pad(pictures, ((0, count[0] * count[1] - len(pictures)), (0, 0), (0, 0), (0, 0)), constant_values=255)
    tiles = mosaic(pictures.reshape(*count, *pictures.shape[1:]), max(1, pictures.shape[1] // 10), fill=255)
    tall = some_wide * tiles.shape[0] / tiles.shape[1]
    axes = sheet.picture(top, right, tall, some_wide, title="The filters of largest norm")
    axes.imshow(tiles, interpolation="nearest", aspect="auto")

    x, y = "k principal filters", "% of the weights' squared norm"
    axes = sheet.plot(top, chart, block - 0.42, 2.6, title="Carried by the first k", x=x, y=y)
    total = np.concatenate([[0.0], 100 * found.shares.cumsum(0).cpu().numpy()])
    axes.plot(total, color=BLUE, linewidth=1.8)
    axes.fill_between(range(len(total)), total, color=BLUE, alpha=0.12, linewidth=0)
    axes.set(xlim=(0, len(total) - 1), ylim=(0, 101))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return sheet


def _some(side: int) -> list[int]:
    """All places of a side, or at most `MOST_TILES` of them, evenly spread."""
    return np.unique(np.linspace(0, side - 1, min(side, MOST_TILES)).round().astype(int)).tolist()
