"""Draw values of a token grid on a photograph: attention by layer and head, or one map in detail.

Shapes: r×c grid, H×W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.charts.palette import GREY, INK, MARK, RULE
from vitrail.charts.plots import shades
from vitrail.charts.sheet import HEADER, MARGIN, Sheet
from vitrail.geometry import Size
from vitrail.images.decode import Pixels
from vitrail.look.cells import Cells

__all__ = ["Photo", "draw_focus", "draw_heads", "upsample"]

HEAT = "magma"
FOCUS_WIDTH = 3.7


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A photograph for display, and the size of the model's input image, which shows the same part."""

    pixels: Pixels
    seen: Size
    query: tuple[float, float, float, float] | None = None
    """(top, left, height, width) of the query patch; None for CLS."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        return 0, self.seen.width, self.seen.height, 0

    @property
    def shape(self) -> float:
        return self.seen.height / self.seen.width


def upsample(values: Tensor, cells: Cells, seen: Size, size: Size, *, smooth: bool) -> NDArray[np.float32]:
    """Resample (r, c) values in cells of an image of `seen` pixels to (H, W) of `size`, nearest or bilinear.

    Bicubic would ring, and draw dark halos that are not in the map.
    """
    axes = [
        ((torch.arange(pixels) + 0.5) * (side / pixels) - corner) / (step * count) * 2 - 1
        for pixels, side, corner, step, count in zip(
            size, seen, (cells.top, cells.left), cells.step, cells.grid, strict=True
        )
    ]
    rows, columns = torch.meshgrid(*axes, indexing="ij")
    raster = F.grid_sample(
        values.float().cpu()[None, None],
        torch.stack([columns, rows], dim=-1)[None].float(),
        mode="bilinear" if smooth else "nearest",
        padding_mode="border",
        align_corners=False,
    )[0, 0]
    return raster.numpy()


def draw_heads(
    maps: Sequence[Tensor],
    cells: Sequence[Cells],
    photo: Photo,
    names: Sequence[str],
    *,
    columns: int,
    rows: Sequence[str] = (),
    title: str,
    subtitle: str,
    smooth: bool = False,
) -> Sheet:
    """Draw small multiples of (r, c) maps, row by row; with `rows`, `names` label columns, otherwise single maps."""
    gap, words, side = 0.05, 0.0 if rows else 0.22, 2.3
    count = -(-len(maps) // columns)
    wide = min(1.15 if rows else 2.0, 10.5 / columns)
    tall = wide * photo.shape
    left, top = MARGIN + side + (0.75 if rows else 0.4), HEADER + 0.28
    height = max(top + count * (tall + gap + words), top + side * photo.shape + 0.8) + MARGIN
    sheet = Sheet(height, left + columns * (wide + gap) + MARGIN, title, subtitle)
    _photo(sheet, photo, top, MARGIN, side)
    for index, name in enumerate(rows):
        place = top + index * (tall + gap) + tall / 2 + 0.04
        sheet.text(place, left - 0.1, name, size=8, colour=GREY, align="right")
    for index, name in enumerate(names):
        row, column = divmod(index, columns)
        place = (top - 0.09 + row * (tall + gap + words), left + column * (wide + gap) + wide / 2)
        sheet.text(*place, name, size=8, colour=GREY, align="center")
    image = None
    for index, (values, where) in enumerate(zip(maps, cells, strict=True)):
        row, column = divmod(index, columns)
        axes = sheet.picture(top + row * (tall + gap + words), left + column * (wide + gap), tall, wide)
        relative = values / values.max().clamp_min(torch.finfo(torch.float32).tiny)
        raster = upsample(relative, where, photo.seen, _raster(photo.seen, 240), smooth=smooth)
        image = axes.imshow(raster, cmap=HEAT, vmin=0, vmax=1, extent=photo.extent, interpolation="nearest")
    assert image is not None
    below = top + side * photo.shape + 0.2
    sheet.colour_bar(image, below, MARGIN, 0.1, "attention, relative to each map's maximum", width=side)
    return sheet


def draw_focus(
    values: Tensor,
    cells: Cells,
    photo: Photo,
    *,
    title: str,
    subtitle: str,
    label: str,
    shares: Sequence[tuple[str, float]] = (),
    smooth: bool = False,
) -> Sheet:
    """Draw one (r, c) map: the photograph, the map, and the photograph lit by it; below, `shares` of the whole row."""
    wide, gap = FOCUS_WIDTH, 0.22
    tall = wide * photo.shape
    foot = 0.62 if shares else 0.0
    map_left, lit_left = MARGIN + wide + gap, MARGIN + 2 * wide + gap + 0.95
    sheet = Sheet(HEADER + tall + foot + MARGIN, lit_left + wide + MARGIN, title, subtitle)
    _photo(sheet, photo, HEADER, MARGIN, wide)

    axes = sheet.picture(HEADER, map_left, tall, wide)
    raster = upsample(100 * values, cells, photo.seen, _raster(photo.seen, 900), smooth=smooth)
    top = _top(raster)
    image = axes.imshow(raster, cmap=HEAT, vmin=0, vmax=top, extent=photo.extent, interpolation="nearest")
    beyond = {"extend": "max", "extendfrac": 0.03} if top < raster.max() else {}
    sheet.colour_bar(image, HEADER, map_left + wide + 0.08, tall, label, **beyond)

    size = Size(*photo.pixels.shape[:2])
    light = upsample(values, cells, photo.seen, size, smooth=smooth)
    light = light / max(float(np.quantile(light, 0.99)), 1e-30)  # so that a few bright tokens do not darken the rest
    axes = sheet.picture(HEADER, lit_left, tall, wide)
    lit = photo.pixels * (0.1 + 0.9 * np.sqrt(light.clip(0, 1)))[:, :, None]
    axes.imshow(lit.astype(np.uint8), extent=photo.extent, interpolation="antialiased")
    if shares:
        _row_bar(sheet, HEADER + tall + 0.24, shares)
    return sheet


def _top(values: NDArray[np.float32]) -> float:
    """Return the value of the brightest colour: the maximum, or a lower one if a few outliers would hide the rest."""
    most = float(np.quantile(values, 0.995))
    return most if 0 < 3 * most < values.max() else float(values.max())


def _raster(seen: Size, longer: int) -> Size:
    """Return a raster size with sharp edges in print: a whole multiple of the image size, about `longer` pixels."""
    scale = max(1, round(longer / max(seen)))
    return Size(seen.height * scale, seen.width * scale)


def _photo(sheet: Sheet, photo: Photo, top: float, left: float, width: float) -> None:
    from matplotlib.patches import Rectangle

    axes = sheet.picture(top, left, width * photo.shape, width)
    axes.imshow(photo.pixels, extent=photo.extent, interpolation="antialiased")
    axes.set(xlim=photo.extent[:2], ylim=photo.extent[2:])
    if photo.query is not None:
        down, across, tall, wide = photo.query
        for colour, line in ((INK, 3.2), (MARK, 1.6)):
            axes.add_patch(Rectangle((across, down), wide, tall, fill=False, edgecolor=colour, linewidth=line))


def _row_bar(sheet: Sheet, top: float, shares: Sequence[tuple[str, float]]) -> None:
    """Draw the weights of a row, by kind of token, as one stacked bar with its numbers below."""
    width = sheet.width - 2 * MARGIN
    axes = sheet.picture(top, MARGIN, 0.13, width)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    start, words = 0.0, []
    for (name, share), shade in zip(shares, shades(len(shares)), strict=True):
        colour = RULE if name == "patches" else shade
        axes.barh(0.5, share, height=1, left=start, color=colour, edgecolor="white", linewidth=0.8)
        start += share
        words.append(f"{name} {100 * share:.1f} %")
    sheet.text(top + 0.32, MARGIN, "share of the row:  " + "   ".join(words), size=8.5, colour=GREY)
