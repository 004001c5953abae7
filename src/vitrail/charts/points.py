"""Scatter plots with logarithmic axes; each point is labelled where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrail.charts.palette import INK
from vitrail.charts.plots import plain_log, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["named_points"]


def named_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Plot points (x, y, name), coloured in order of x."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = sorted(points)
    for (x, y, _), colour in zip(points, shades(len(points)), strict=True):
        axes.plot([x], [y], "o", color=colour, markersize=9, zorder=3)
    axes.margins(0.14, 0.18)
    plain_log(axes, both=True)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # sets the scales, which the labels' positions depend on
    _names(axes, points, figure.dpi)


def _names(axes: Axes, points: Sequence[tuple[float, float, str]], dpi: float) -> None:
    """Label each point above, below, to the right or to the left, wherever the label overlaps the least."""
    height = 11 * dpi / 72
    where = [(axes.transData.transform((x, y)), name) for x, y, name in points]
    taken = [(x - height / 2, y - height / 2, x + height / 2, y + height / 2) for (x, y), _ in where]
    for (x, y), name in where:
        width, best = 0.55 * height * len(name), None
        for right, up in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            centre = (x + right * (width / 2 + height * 0.7), y + up * height * 1.1)
            box = (centre[0] - width / 2, centre[1] - height / 2, centre[0] + width / 2, centre[1] + height / 2)
            clashes = sum(_overlap(box, other) for other in taken)
            if best is None or clashes < best[0]:
                best = (clashes, centre, box)
        assert best is not None
        taken.append(best[2])
        left, low = axes.transAxes.inverted().transform(best[1])
        axes.text(left, low, name, transform=axes.transAxes, ha="center", va="center", fontsize=9, color=INK)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
