"""A row of plots on a sheet, and what plots share: colours, ticks, legends, and labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrail.charts.palette import INK, PAPER, RED
from vitrail.charts.sheet import HEADER, MARGIN, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["keep_apart", "legend", "limit", "note", "plain_log", "plots", "shades"]


def plots(
    title: str,
    subtitle: str,
    panels: Sequence[tuple[str, str, str]],
    *,
    height: float = 3.4,
    width: float = 4.4,
    names: Sequence[str] = (),
) -> tuple[Sheet, list[Axes]]:
    """Make a row of plots, one per panel (title, x label, y label), with room for `names` to the right of the last."""
    right = max((0.5 + 0.075 * len(name) for name in names), default=0.2)
    left, top, gap = MARGIN + 0.6, HEADER + (0.3 if any(name for name, _, _ in panels) else 0.08), 0.85
    whole = left + len(panels) * (width + gap) - gap + right + MARGIN
    sheet = Sheet(top + height + 0.45 + MARGIN / 2, whole, title, subtitle)
    return sheet, [
        sheet.plot(top, left + index * (width + gap), height, width, title=name, x=x, y=y)
        for index, (name, x, y) in enumerate(panels)
    ]


def shades(count: int) -> list[Any]:
    """Return colours from dark to light along viridis, without its pale end."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * index / max(1, count - 1)) for index in range(count)]


def plain_log(axes: Axes, both: bool = False) -> None:
    """Set logarithmic ticks at 1, 2 and 5 times powers of ten, written as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def note(
    axes: Axes, words: str, at: tuple[Any, float], *, right: float = 0, up: float = 0, colour: Any = INK, **style: Any
) -> None:
    """Write text at an offset from a point, in typographic points, with a white edge that keeps it legible."""
    from matplotlib.patheffects import withStroke

    place = {"xytext": (right, up), "textcoords": "offset points", "annotation_clip": False}
    edge = [withStroke(linewidth=3, foreground=PAPER, alpha=0.9)]
    axes.annotate(words, at, **place, fontsize=9, color=colour, path_effects=edge, **style)


def legend(axes: Axes, *, reverse: bool = False) -> None:
    """Draw the legend to the right of a plot."""
    if axes.get_legend_handles_labels()[0]:
        place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.02), "reverse": reverse}
        axes.legend(**place, frameon=False, fontsize=8.5, labelcolor=INK)


def limit(axes: Axes, left: float, value: float, name: str) -> None:
    """Draw a named red horizontal line."""
    axes.axhline(value, color=RED, linewidth=1.2)
    note(axes, name, (left, value), right=4, up=3, colour=RED)


def keep_apart(places: Sequence[float], gap: float) -> list[float]:
    """Move ascending positions up until neighbours are at least `gap` apart."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, gap / 2))
    return moved
