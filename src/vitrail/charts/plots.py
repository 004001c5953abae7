"""A row of plots on a sheet, and what plots share: shades, ticks, legends, and names that keep apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrail.charts.palette import INK, PAPER, RED
from vitrail.charts.sheet import HEADER, MARGIN, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["apart", "legend", "limit", "note", "plain_log", "plots", "shades"]


def plots(
    title: str,
    subtitle: str,
    panels: Sequence[tuple[str, str, str]],
    *,
    height: float = 3.4,
    width: float = 4.4,
    names: Sequence[str] = (),
) -> tuple[Sheet, list[Axes]]:
    """A plot for each panel (its title, and what x and y are), with room for names at the right of the last one."""
    right = max((0.5 + 0.075 * len(name) for name in names), default=0.2)
    left, top, gap = MARGIN + 0.6, HEADER + (0.3 if any(name for name, _, _ in panels) else 0.08), 0.85
    whole = left + len(panels) * (width + gap) - gap + right + MARGIN
    sheet = Sheet(top + height + 0.45 + MARGIN / 2, whole, title, subtitle)
    return sheet, [
        sheet.plot(top, left + index * (width + gap), height, width, title=name, x=x, y=y)
        for index, (name, x, y) in enumerate(panels)
    ]


def shades(count: int) -> list[Any]:
    """Dark to light along viridis; its pale end is left out."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * index / max(1, count - 1)) for index in range(count)]


def plain_log(axes: Axes, both: bool = False) -> None:
    """Ticks of 1, 2 and 5, written as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def note(
    axes: Axes, words: str, at: tuple[Any, float], *, right: float = 0, up: float = 0, colour: Any = INK, **style: Any
) -> None:
    """Words beside a point, so many points right of it and up, with a white edge that keeps them legible over lines."""
    from matplotlib.patheffects import withStroke

    place = {"xytext": (right, up), "textcoords": "offset points", "annotation_clip": False}
    edge = [withStroke(linewidth=3, foreground=PAPER, alpha=0.9)]
    axes.annotate(words, at, **place, fontsize=9, color=colour, path_effects=edge, **style)


def legend(axes: Axes, *, reverse: bool = False) -> None:
    """The names of what was drawn, at the right of a plot."""
    if axes.get_legend_handles_labels()[0]:
        place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.02), "reverse": reverse}
        axes.legend(**place, frameon=False, fontsize=8.5, labelcolor=INK)


def limit(axes: Axes, left: float, value: float, name: str) -> None:
    """A red line across, and what it is."""
    axes.axhline(value, color=RED, linewidth=1.2)
    note(axes, name, (left, value), right=4, up=3, colour=RED)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, pushed up until neighbours are a gap apart."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, gap / 2))
    return moved
