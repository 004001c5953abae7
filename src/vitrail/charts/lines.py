"""Line charts with logarithmic axes; each line is labelled at its right end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING

from vitrail.charts.plots import keep_apart, limit, note, plain_log, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["named_lines"]


def named_lines(
    axes: Axes, lines: Mapping[str, Sequence[tuple[int, float]]], ceiling: tuple[str, float] | None = None
) -> None:
    """Plot named lines of points (x, y), ordered by x, and an optional named upper limit."""
    for points, colour in zip(lines.values(), shades(len(lines)), strict=True):
        axes.plot(*zip(*points, strict=True), "o-", color=colour, linewidth=2, markersize=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    marks = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xticks(marks, [str(mark) for mark in marks])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    if ceiling is not None:
        high = max(high, ceiling[1] * 1.3)
        limit(axes, marks[0], ceiling[1], ceiling[0])
    axes.set_ylim(low, high)
    plain_log(axes)
    at_edge = sorted((points[-1][1], name) for name, points in lines.items() if points[-1][0] == marks[-1])
    moved = keep_apart([log(y / low) for y, _ in at_edge], log(high / low) * 0.045)
    places = {name: low * exp(place) for (_, name), place in zip(at_edge, moved, strict=True)}
    for (name, points), colour in zip(lines.items(), shades(len(lines)), strict=True):
        at = (points[-1][0], places.get(name, points[-1][1]))
        note(axes, name, at, right=10, colour=colour, va="center", fontweight="bold")
