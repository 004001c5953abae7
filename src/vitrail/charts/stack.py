"""Stacked areas with a label per band, and stacked bars with their totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vitrail.charts.palette import INK
from vitrail.charts.plots import keep_apart, legend, note, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["stacked_areas", "stacked_bars"]


def stacked_areas(
    axes: Axes, x: Sequence[float], parts: Mapping[str, Sequence[float]], colours: Mapping[str, str], top: float
) -> None:
    """Plot the parts of a total as stacked areas, from the bottom up; the y axis ends at `top`."""
    axes.stackplot(x, *parts.values(), colors=[colours[part] for part in parts], linewidth=0, alpha=0.92)
    axes.plot(x, [sum(values) for values in zip(*parts.values(), strict=True)], color=INK, linewidth=1.4)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(0, top)
    axes.grid(visible=False, axis="x")
    level, centres = 0.0, []
    for values in parts.values():
        centres.append(level + values[-1] / 2)
        level += values[-1]
    for part, centre, place in zip(parts, centres, keep_apart(centres, top * 0.045), strict=True):
        line = {"arrowstyle": "-", "color": colours[part], "linewidth": 1.8, "shrinkA": 2, "shrinkB": 0}
        axes.annotate(
            part.replace("_", " "),
            xy=(x[-1], centre),
            xytext=(1.035, place / top),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=INK,
            annotation_clip=False,
            arrowprops={**line, "relpos": (0, 0.5)},
        )


def stacked_bars(axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[float]], unit: str) -> None:
    """Plot a stacked bar per name, with its total above it."""
    base = [0.0] * len(names)
    for (part, values), colour in zip(parts.items(), shades(len(parts)), strict=True):
        axes.bar(range(len(names)), values, 0.55, bottom=base, color=colour, label=part)
        base = [below + value for below, value in zip(base, values, strict=True)]
    for place, total in enumerate(base):
        note(axes, f"{total:.1f} {unit}", (place, total), up=4, ha="center")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 1.12 * max(base))
    axes.grid(visible=False, axis="x")
    legend(axes, reverse=True)
