"""Dense features as a picture: every photograph, its colours, and the similarity of every place to a point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.charts.palette import GREY, INK, MARK
from vitrail.charts.sheet import HEADER, MARGIN, Sheet
from vitrail.look.dense import Dense
from vitrail.look.dense_colours import DenseColours
from vitrail.look.views.words import times

__all__ = ["view_dense"]

SIDE, GAP, WORDS = 3.7, 0.22, 0.3


def view_dense(
    images: Sequence[Dense],
    colours: DenseColours,
    similarity: Sequence[np.ndarray] = (),
    *,
    names: Sequence[str],
    point: tuple[float, float] | None = None,
    title: str,
    subtitle: str,
) -> Sheet:
    """Draw a row per image: the photograph, its colours and, if there is a point, the similarity to it."""
    columns = 3 if similarity else 2
    heights = [SIDE * each.pixels.shape[0] / each.pixels.shape[1] for each in images]
    width = MARGIN + columns * (SIDE + GAP) - GAP + (0.85 if similarity else 0) + MARGIN
    sheet = Sheet(HEADER + sum(heights) + len(images) * WORDS + MARGIN, width, title, subtitle)
    top = HEADER
    lowest = min((float(each.min()) for each in similarity), default=0.0)
    for number, (image, tall) in enumerate(zip(images, heights, strict=True)):
        passes = "1 pass" if image.passes == 1 else f"{image.passes} passes"
        words = f"{names[number]} · {times(image.cells.grid)} tokens, {passes}"
        sheet.text(top + WORDS - 0.1, MARGIN, words, size=8.5, colour=GREY)
        top += WORDS
        axes = sheet.picture(top, MARGIN, tall, SIDE)
        axes.imshow(image.pixels, interpolation="antialiased")
        if number == 0 and point is not None:
            rows, across = image.pixels.shape[0] / image.original.height, image.pixels.shape[1] / image.original.width
            place = (point[1] * across, point[0] * rows)
            axes.plot(*place, "o", markersize=7, markerfacecolor=MARK, markeredgecolor=INK)
        axes = sheet.picture(top, MARGIN + SIDE + GAP, tall, SIDE)
        axes.imshow(colours.rgb[number].numpy(), interpolation="antialiased")
        if similarity:
            left = MARGIN + 2 * (SIDE + GAP)
            shown = sheet.picture(top, left, tall, SIDE).imshow(similarity[number], cmap="magma", vmin=lowest, vmax=1)
            sheet.colour_bar(shown, top, left + SIDE + 0.08, tall, "cosine with the point")
        top += tall
    return sheet
