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


def draw_positions(similarity: PositionSimilarity, *, title: str, subtitle: str) -> Sheet:
    """Draw a tile per patch (on a large grid, for some patches) with its similarity to all patches."""
    rows, columns = (_some(side) for side in similarity.grid)
    values = similarity.values.float().cpu().numpy()[np.ix_(rows, columns)]
    gap = max(1, round(0.12 * max(similarity.grid)))
    tiles = mosaic(values, gap, fill=np.nan)
    width = 7.2
    height = width * tiles.shape[0] / tiles.shape[1]
    left = MARGIN + 0.42
    sheet = Sheet(HEADER + height + 0.36 + MARGIN, left + width + 0.95 + MARGIN, title, subtitle)
    axes = sheet.picture(HEADER, left, height, width)
    image = axes.imshow(tiles, cmap="viridis", interpolation="nearest", aspect="auto")
    tile = [side + gap for side in similarity.grid]
    for ticks, places, step, side in (
        (axes.set_yticks, rows, tile[0], similarity.grid.height),
        (axes.set_xticks, columns, tile[1], similarity.grid.width),
    ):
        ticks([index * step + (side - 1) / 2 for index in range(len(places))], [str(place) for place in places])
    axes.tick_params(length=0, labelsize=8, colors=GREY, pad=3)
    axes.set_xlabel("column of the patch", fontsize=8.5, color=INK)
    axes.set_ylabel("row of the patch", fontsize=8.5, color=INK)
    sheet.colour_bar(image, HEADER, left + width + 0.16, height, similarity.measure)
    return sheet


def draw_filters(filters: Filters, *, title: str, subtitle: str) -> Sheet:
    """Draw the principal filters with their shares, the filters of largest norm, and the cumulative shares."""
    from matplotlib.ticker import MaxNLocator

    require(
        filters.filters.shape[1] in (1, 3),
        f"filters of {filters.filters.shape[1]} channels cannot be drawn; use a model with 1 or 3 channels",
    )
    rows, columns = PRINCIPAL
    shape = filters.filters.shape[2] / filters.filters.shape[3]
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
        zip(filters.principal[: rows * columns], filters.shares.tolist(), strict=False)
    ):
        row, column = divmod(index, columns)
        place = (top + row * (tall + words + gap), MARGIN + column * (wide + gap))
        axes = sheet.picture(*place, tall, wide, title="" if index else "Principal filters and their shares")
        axes.imshow(filter_picture(picture.cpu().numpy()), interpolation="nearest", aspect="auto")
        sheet.text(
            place[0] + tall + 0.14, place[1] + wide / 2, f"{100 * share:.1f} %", size=8, colour=GREY, align="center"
        )

    order = filters.filters.flatten(1).norm(dim=1).argsort(descending=True)[: SOME[0] * SOME[1]]
    pictures = np.stack([filter_picture(filters.filters[index].cpu().numpy()) for index in order])
    count = (-(-len(pictures) // SOME[1]), SOME[1])
    pictures = np.pad(pictures, ((0, count[0] * count[1] - len(pictures)), (0, 0), (0, 0), (0, 0)), constant_values=255)
    tiles = mosaic(pictures.reshape(*count, *pictures.shape[1:]), max(1, pictures.shape[1] // 10), fill=255)
    tall = some_wide * tiles.shape[0] / tiles.shape[1]
    axes = sheet.picture(top, right, tall, some_wide, title="The filters of largest norm")
    axes.imshow(tiles, interpolation="nearest", aspect="auto")

    x, y = "k principal filters", "% of the weights' squared norm"
    axes = sheet.plot(top, chart, block - 0.42, 2.6, title="Share of the first k", x=x, y=y)
    total = np.concatenate([[0.0], 100 * filters.shares.cumsum(0).cpu().numpy()])
    axes.plot(total, color=BLUE, linewidth=1.8)
    axes.fill_between(range(len(total)), total, color=BLUE, alpha=0.12, linewidth=0)
    axes.set(xlim=(0, len(total) - 1), ylim=(0, 101))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return sheet


def _some(side: int) -> list[int]:
    """Return all indices of a side, or `MOST_TILES` of them, evenly spaced."""
    return np.unique(np.linspace(0, side - 1, min(side, MOST_TILES)).round().astype(int)).tolist()
