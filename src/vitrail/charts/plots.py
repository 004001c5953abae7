"""What all charts share: the canvas, colours, ticks and titles. matplotlib is an extra and is imported on use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FAINT", "INK", "RED", "finish", "halo", "new_figure", "plain_log", "save", "shades", "style"]

INK, FAINT, RED = "#222222", "#8a8a8a", "#b3001b"
SUFFIXES = (".png", ".svg", ".pdf")


def new_figure(path: Path, panels: int = 1) -> tuple[Figure, Any]:
    require(
        path.suffix.lower() in SUFFIXES,
        f"chart {str(path)!r} does not end in {', '.join(SUFFIXES)}; name a file like memory.png",
    )
    require(path.parent.is_dir(), f"chart folder {str(path.parent)!r} does not exist; make it first")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise VitrailError("charts need matplotlib, which is not installed; run pip install 'vitrail[plot]'") from None
    figure = Figure(figsize=(8.6, 5.2) if panels == 1 else (11, 4.8), dpi=150, layout="constrained")
    return figure, figure.subplots(1, panels)


def shades(count: int) -> list[Any]:
    """Dark to light along viridis, which keeps its order in grey and to the colour-blind; its pale end left out."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * index / max(1, count - 1)) for index in range(count)]


def plain_log(axes: Axes, both: bool = False) -> None:
    """Ticks of 1, 2 and 5, written as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def halo() -> list[Any]:
    """A white edge, so that words stay legible over lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground="white", alpha=0.9)]


def style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def finish(figure: Figure, axes: Axes, path: Path, title: str, subtitle: str) -> None:
    style(axes)
    axes.set_title(f"{title}\n", loc="left", fontsize=13, fontweight="bold", color=INK)
    axes.text(0, 1.025, subtitle, transform=axes.transAxes, fontsize=9.5, color=FAINT)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    # no date in the file: the same question gives the same bytes
    figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
