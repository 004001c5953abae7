"""How far each head looks and how widely it spreads, layer by layer.

Shapes: L layers, h heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from vitrail.charts.sheet import GREY, HEADER, INK, MARGIN, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_distance"]

BLUE, ORANGE = "#31688e", "#d1603d"


def draw_distance(
    distances: Sequence[Tensor],
    entropies: Sequence[Tensor],
    *,
    uniform_distance: Sequence[float],
    uniform_entropy: Sequence[float],
    title: str,
    subtitle: str,
) -> Sheet:
    """For each of L layers: (h,) mean distances in pixels and (h,) entropies in bits, against uniform attention's."""
    wide, tall, top = 5.0, 3.7, HEADER + 0.3
    left, right = MARGIN + 0.55, MARGIN + 0.55 + wide + 1.5
    sheet = Sheet(top + tall + 0.55 + MARGIN, right + wide + 0.6 + MARGIN, title, subtitle)
    panels = (
        (left, distances, uniform_distance, BLUE, "mean attention distance, pixels", "How far a head looks"),
        (right, entropies, uniform_entropy, ORANGE, "entropy of a row, bits", "How widely it spreads"),
    )
    for place, values, uniform, colour, label, words in panels:
        sheet.text(top - 0.12, place, words, weight="bold", size=9.5)
        axes = sheet.axes(top, place, tall, wide)
        layers = range(len(values))
        axes.plot(layers, uniform, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
        axes.annotate("uniform\nattention", (len(values) - 0.5, uniform[-1]), **beside, fontsize=8, color=GREY)
        axes.plot(layers, [heads.mean().item() for heads in values], color=colour, linewidth=1.6, alpha=0.55)
        for layer, heads in enumerate(values):
            axes.scatter([layer] * len(heads), heads.tolist(), s=26, color=colour, alpha=0.75, linewidth=0, zorder=3)
        axes.set_ylim(0, 1.06 * max(max(uniform), max(heads.max().item() for heads in values)))
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_xlabel("layer   (a point is a head, the line their mean)", fontsize=8.5, color=INK)
        axes.set_ylabel(label, fontsize=8.5, color=INK)
        _style(axes)
    return sheet


def _style(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.tick_params(labelsize=8, colors=INK, length=2.5, width=0.6)
    axes.grid(axis="y", color="#e9ecef", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aab3bb")
