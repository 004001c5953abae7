"""Models side by side, as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.charts.plots import INK, new_figure, plain_log, save, shades, style
from vitrail.plan.hardware import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["compare_chart"]


def compare_chart(models: Sequence[tuple[str, int, int, int]], path: Path, *, memory_label: str) -> None:
    """(name, parameters, forward FLOPs, peak bytes) of each model: parameters and memory against FLOPs, log-log."""
    figure, (left, right) = new_figure(path, panels=2)
    panels = (
        (left, [(flops / 1e9, params / 1e6, name) for name, params, flops, _ in models], "parameters, millions"),
        (right, [(flops / 1e9, peak / GIB, name) for name, _, flops, peak in models], f"peak GiB, {memory_label}"),
    )
    for axes, unsorted, label in panels:
        points = sorted(unsorted)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for (x, y, _), colour in zip(points, shades(len(points)), strict=True):
            axes.plot([x], [y], "o", color=colour, markersize=9, zorder=3)
        axes.margins(0.14, 0.18)
        axes.set_xlabel("forward GFLOP an image")
        axes.set_ylabel(label)
        plain_log(axes, both=True)
        style(axes)
        axes.grid(axis="x", color="#f0f0f0", linewidth=0.7)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.04)  # type: ignore[union-attr]
    figure.suptitle("Models side by side", x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.draw_without_rendering()  # places are known once the layout is
    for axes, points, _ in panels:
        _names(axes, points, figure.dpi)
    save(figure, path)


def _names(axes: Axes, points: Sequence[tuple[float, float, str]], dpi: float) -> None:
    """A name beside each point, above it if nothing is there yet, else below, right or left of it."""
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
