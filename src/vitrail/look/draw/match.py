"""Draw two images that are matched: lines between best buddies, and the parts of their score.

Shapes: r×c grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.charts.palette import DIVERGING, GREY
from vitrail.charts.raster import heat
from vitrail.charts.sheet import HEADER, MARGIN, Sheet
from vitrail.geometry import Size
from vitrail.look.cells import Cells
from vitrail.look.draw.overlay import Photo, upsample

__all__ = ["Line", "draw_match", "over_photo"]

SIDE, GAP, WORDS = 4.6, 0.5, 0.34
PARTS = "RdBu_r"
"""matplotlib's name of DIVERGING."""
SURE = 0.8
"""Opacity of the largest part over the photograph."""


class Line(NamedTuple):
    """A pair of places, each as (row, column) in pixels of the model's input."""

    first: tuple[float, float]
    second: tuple[float, float]


def draw_match(
    photos: Sequence[Photo],
    lines: Sequence[Line],
    parts: Sequence[Tensor],
    cells: Sequence[Cells],
    *,
    even: float,
    title: str,
    subtitle: str,
    words: Sequence[str],
    note: str,
) -> Sheet:
    """Draw two photographs twice: joined by lines, and under (r, c) maps of `parts`; `words` title the two rows.

    Parts are times the number of patches, so that images of any size compare; `even` is their mean.
    """
    wide = SIDE
    tall = wide * max(photo.shape for photo in photos)
    lefts = (MARGIN, MARGIN + wide + GAP)
    first, second = HEADER + WORDS, HEADER + 2 * WORDS + tall + 0.25
    bar = lefts[1] + wide + 0.1
    sheet = Sheet(second + tall + 0.3 + MARGIN, bar + 0.75 + MARGIN, title, subtitle)
    for top, line in zip((first, second), words, strict=True):
        sheet.text(top - 0.1, MARGIN, line, size=9.5, weight="bold")
    for photo, left in zip(photos, lefts, strict=True):
        axes = sheet.picture(first, left, wide * photo.shape, wide)
        axes.imshow(photo.pixels, extent=photo.extent, interpolation="antialiased")
    _draw_lines(sheet, lines, photos, first, lefts)
    span = max(float((each - even).abs().max()) for each in parts) or 1.0
    image = None
    for photo, left, values, where in zip(photos, lefts, parts, cells, strict=True):
        axes = sheet.picture(second, left, wide * photo.shape, wide)
        raster = upsample(values, where, photo.seen, Size(*photo.pixels.shape[:2]), smooth=False)
        image = axes.imshow(raster, cmap=PARTS, vmin=even - span, vmax=even + span, extent=photo.extent)
        laid = over_photo(photo, (values - even) / span, where)
        axes.imshow(laid, extent=photo.extent, interpolation="antialiased")
    assert image is not None
    sheet.colour_bar(image, second, bar, tall, f"part × patches; white: an even share, {even:.3f}")
    sheet.text(second + tall + 0.26, MARGIN, note, size=8.5, colour=GREY)
    return sheet


def over_photo(photo: Photo, values: Tensor, cells: Cells) -> NDArray[np.uint8]:
    """Lay (r, c) values from −1 (blue) to 1 (red) over a grey photograph."""
    raster = upsample(values, cells, photo.seen, Size(*photo.pixels.shape[:2]), smooth=False)
    grey = photo.pixels.mean(axis=2, keepdims=True).repeat(3, axis=2)
    strength = SURE * np.sqrt(np.abs(raster)).clip(0, 1)[:, :, None]
    return np.rint(grey * (1 - strength) + heat(raster, -1, 1, DIVERGING) * strength).astype(np.uint8)


def _draw_lines(
    sheet: Sheet, lines: Sequence[Line], photos: Sequence[Photo], top: float, lefts: tuple[float, float]
) -> None:
    """Draw lines over the sheet; their colour is the place in the first photograph, from left to right."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D

    def on_sheet(place: tuple[float, float], photo: Photo, left: float) -> tuple[float, float]:
        scale = SIDE / photo.seen.width
        return (left + place[1] * scale) / sheet.width, 1 - (top + place[0] * scale) / sheet.height

    for line in lines:
        ends = [on_sheet(*each) for each in zip(line, photos, lefts, strict=True)]
        colour = colormaps["turbo"](0.05 + 0.9 * line.first[1] / photos[0].seen.width)
        across, down = zip(*ends, strict=True)
        sheet.figure.add_artist(
            Line2D(across, down, color=colour, linewidth=0.9, alpha=0.85, marker="o", markersize=2.6)
        )
