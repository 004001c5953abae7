"""Attention distance and entropy of every head, by layer.

Shapes: L layers, h heads.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vitrail.charts.palette import BLUE, GREY, VERMILLION
from vitrail.charts.plots import note
from vitrail.charts.sheet import HEADER, MARGIN, Sheet

__all__ = ["draw_distance"]


def draw_distance(
    distances: Sequence[Tensor],
    entropies: Sequence[Tensor],
    *,
    uniform_distance: Sequence[float],
    uniform_entropy: Sequence[float],
    title: str,
    subtitle: str,
) -> Sheet:
    """Plot for each of L layers (h,) mean distances in pixels and (h,) entropies in bits, with uniform attention."""
    from matplotlib.ticker import MaxNLocator

    wide, tall, top = 5.0, 3.7, HEADER + 0.3
    left, right = MARGIN + 0.55, MARGIN + 0.55 + wide + 1.5
    sheet = Sheet(top + tall + 0.55 + MARGIN, right + wide + 0.6 + MARGIN, title, subtitle)
    panels = (
        (left, distances, uniform_distance, BLUE, "mean attention distance, pixels", "How far a head looks"),
        (right, entropies, uniform_entropy, VERMILLION, "entropy of a row, bits", "How widely it spreads"),
    )
    for place, values, uniform, colour, label, words in panels:
        x = "layer   (a point is a head, the line their mean)"
        axes = sheet.plot(top, place, tall, wide, title=words, x=x, y=label)
        layers = range(len(values))
        axes.plot(layers, uniform, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        note(axes, "uniform\nattention", (len(values) - 0.5, uniform[-1]), right=5, colour=GREY, va="center")
        axes.plot(layers, [heads.mean().item() for heads in values], color=colour, linewidth=1.6, alpha=0.55)
        for layer, heads in enumerate(values):
            axes.scatter([layer] * len(heads), heads.tolist(), s=26, color=colour, alpha=0.75, linewidth=0, zorder=3)
        axes.set_ylim(0, 1.06 * max(max(uniform), max(heads.max().item() for heads in values)))
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        axes.grid(visible=False, axis="x")
    return sheet
