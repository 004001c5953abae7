"""Pictures of tokens: their colours and norms, the patches they come from, and the adaptive quadtree.

Shapes: r×c grid, H×W pixels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.charts.palette import BLUE, GREY, INK
from vitrail.charts.raster import mosaic
from vitrail.charts.sheet import HEADER, MARGIN, Sheet
from vitrail.geometry import Size
from vitrail.images.decode import Pixels
from vitrail.look.cells import Cells
from vitrail.look.draw.overlay import Photo, upsample

__all__ = ["draw_patches", "draw_quadtree", "draw_tokens"]

WIDE, GAP = 3.7, 0.22


def draw_tokens(
    rgb: Tensor, norms: Tensor, cells: Cells, photo: Photo, *, title: str, subtitle: str, smooth: bool = False
) -> Sheet:
    """Draw (r, c, 3) colours and (r, c) norms beside the photograph."""
    tall = WIDE * photo.shape
    sheet = Sheet(HEADER + 0.22 + tall + MARGIN, 2 * MARGIN + 3 * WIDE + 2 * GAP + 0.62, title, subtitle)
    top = HEADER + 0.22
    raster = Size(*photo.pixels.shape[:2])
    colours = np.stack([upsample(rgb[..., i], cells, photo.seen, raster, smooth=smooth) for i in range(3)], axis=-1)
    lengths = upsample(norms, cells, photo.seen, raster, smooth=smooth)
    for index, (picture, words) in enumerate(
        ((photo.pixels, "image"), (colours, "three principal components as colours"), (lengths, "norm of each token"))
    ):
        left = MARGIN + index * (WIDE + GAP)
        axes = sheet.picture(top, left, tall, WIDE, title=words)
        image = axes.imshow(picture, extent=photo.extent, interpolation="antialiased", cmap="cividis")
        if index == 2:
            sheet.colour_bar(image, top, left + WIDE + 0.08, tall, "L2 norm")
    return sheet


def draw_patches(
    photo: Photo, pixels: Pixels, cells: Cells, patch: Size, prefix: list[str], *, title: str, subtitle: str
) -> Sheet:
    """Draw the grid on the photograph, the separated patches, and the start of the token sequence."""
    from matplotlib.collections import LineCollection

    wide = 5.0
    tall = wide * photo.shape
    top, right = HEADER + 0.22, MARGIN + wide + 0.3
    thumb, names = 0.46, 0.2
    strip = top + tall + 0.5
    sheet = Sheet(strip + thumb + names + MARGIN, 2 * MARGIN + 2 * wide + 0.3, title, subtitle)

    axes = sheet.picture(top, MARGIN, tall, wide, title="the grid on the image")
    axes.imshow(photo.pixels, extent=photo.extent, interpolation="antialiased")
    (left, end, bottom, upper), grid, step = cells.extent, cells.grid, cells.step
    rows = [[(left, upper + i * step[0]), (end, upper + i * step[0])] for i in range(grid.height + 1)]
    columns = [[(left + j * step[1], upper), (left + j * step[1], bottom)] for j in range(grid.width + 1)]
    line = 0.9 if max(grid) <= 24 else 0.5
    axes.add_collection(LineCollection(rows + columns, colors="white", linewidths=line, alpha=0.85))
    axes.set(xlim=photo.extent[:2], ylim=photo.extent[2:])

    axes = sheet.picture(top, right, tall, wide, title="the separate patches")
    axes.imshow(_apart(pixels, cells, patch), interpolation="antialiased", aspect="auto")

    room = int((sheet.width - 2 * MARGIN) / (thumb + 0.07)) - 1
    for index in range(min(room, len(prefix) + grid.area)):
        place = MARGIN + index * (thumb + 0.07)
        axes = sheet.picture(strip, place, thumb, thumb, title="" if index else "the sequence")
        number = index - len(prefix)
        if number < 0:
            axes.set_facecolor(BLUE)
            axes.text(0.5, 0.5, prefix[index], color="white", fontsize=7.5, ha="center", va="center", fontweight="bold")
        else:
            axes.imshow(_crop(pixels, cells, patch, *divmod(number, grid.width)), aspect="auto")
        sheet.text(strip + thumb + 0.14, place + thumb / 2, str(index), size=7.5, colour=GREY, align="center")
    sheet.text(strip + thumb / 2 + 0.04, MARGIN + room * (thumb + 0.07) + 0.05, "…", size=13, colour=GREY)
    return sheet


def draw_quadtree(photo: Photo, rectangles: Tensor, means: Tensor, cells: Cells, *, title: str, subtitle: str) -> Sheet:
    """Draw (N, 4) rectangles, in cells of the finest grid, on the photograph, and their (r, c, 3) mean colours."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    wide = 5.0
    tall, top = wide * photo.shape, HEADER + 0.22
    sheet = Sheet(top + tall + MARGIN, 2 * MARGIN + 2 * wide + 0.3, title, subtitle)
    boxes = [
        Rectangle((left * cells.step[1], down * cells.step[0]), columns * cells.step[1], rows * cells.step[0])
        for down, left, rows, columns in rectangles.tolist()
    ]
    pictures = ((photo.pixels, "patches on the image", "white"), (means.numpy(), "the mean colour of each token", INK))
    for index, (picture, words, edge) in enumerate(pictures):
        left = MARGIN + index * (wide + 0.3)
        axes = sheet.picture(top, left, tall, wide, title=words)
        axes.imshow(picture, extent=photo.extent, interpolation="nearest" if index else "antialiased")
        axes.add_collection(
            PatchCollection(
                boxes, facecolor="none", edgecolor=edge, linewidth=0.3 if index else 0.8, alpha=0.9 - 0.5 * index
            )
        )
        axes.set(xlim=photo.extent[:2], ylim=photo.extent[2:])
    return sheet


def _apart(pixels: Pixels, cells: Cells, patch: Size) -> np.ndarray:
    """Return all patches on white, with a gap between them."""
    side = max(6, 1400 // max(cells.grid))
    tile, gap = Size(max(1, round(side * patch.height / patch.width)), side), max(1, side // 7)
    method = Image.Resampling.NEAREST if patch.width < tile.width else Image.Resampling.LANCZOS
    cuts = (_crop(pixels, cells, patch, *divmod(number, cells.grid.width)) for number in range(cells.grid.area))
    tiles = np.stack([np.asarray(Image.fromarray(cut).resize((tile.width, tile.height), method)) for cut in cuts])
    return mosaic(tiles.reshape(*cells.grid, *tiles.shape[1:]), gap, fill=255)


def _crop(pixels: Pixels, cells: Cells, patch: Size, row: int, column: int) -> np.ndarray:
    """Return a patch's pixels; an overlapping patch extends beyond its cell."""
    parts = []
    for place, corner, step, length in zip((row, column), (cells.top, cells.left), cells.step, patch, strict=True):
        start = round(corner + (place + 0.5) * step - length / 2)
        parts.append(slice(start, start + length))
    return pixels[tuple(parts)]
