"""A page for charts and pictures, laid out in inches from the top left corner, and saved as PNG, SVG or PDF.

matplotlib is an optional dependency and is imported on use.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.atomic import write_file
from vitrail.charts.palette import FAINT, GREY, INK, PAPER, RULE
from vitrail.errors import VitrailError, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["HEADER", "MARGIN", "Sheet", "check_drawing", "check_path"]

FORMATS = (".png", ".svg", ".pdf")
MARGIN, HEADER = 0.32, 0.86
DPI = 160


class Sheet:
    """A white page with a title and a subtitle in the top `HEADER` inches."""

    def __init__(self, height: float, width: float, title: str, subtitle: str) -> None:
        check_drawing()
        from matplotlib.figure import Figure

        self.height, self.width = height, width
        self.figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)
        self.text(0.42, MARGIN, title, size=13, weight="bold")
        self.text(0.67, MARGIN, subtitle, size=9.5, colour=GREY)
        for line in self.figure.texts:
            room = (width - 2 * MARGIN) * self.figure.dpi / max(1.0, line.get_window_extent().width)
            line.set_fontsize(float(line.get_fontsize()) * min(1.0, room))

    def text(
        self,
        top: float,
        left: float,
        text: str,
        *,
        size: float = 8.5,
        colour: str = INK,
        weight: str = "normal",
        align: str = "left",
    ) -> None:
        """Write one line; `top` is its baseline."""
        place = (left / self.width, 1 - top / self.height)
        self.figure.text(*place, text, fontsize=size, color=colour, fontweight=weight, ha=align, va="baseline")

    def axes(self, top: float, left: float, height: float, width: float) -> Axes:
        return self.figure.add_axes(
            (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        )

    def picture(self, top: float, left: float, height: float, width: float, *, title: str = "") -> Axes:
        """Add axes without ticks or frame, with a title above."""
        axes = self.axes(top, left, height, width)
        self.text(top - 0.1, left, title, weight="bold", size=9.5)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        return axes

    def plot(
        self, top: float, left: float, height: float, width: float, *, title: str = "", x: str = "", y: str = ""
    ) -> Axes:
        """Add axes for a chart, with a title above, grid lines and axis labels."""
        axes = self.axes(top, left, height, width)
        self.text(top - 0.1, left, title, weight="bold", size=9.5)
        axes.set_xlabel(x, fontsize=8.5, color=INK)
        axes.set_ylabel(y, fontsize=8.5, color=INK)
        axes.tick_params(labelsize=8, colors=INK, length=2.5, width=0.6)
        axes.grid(color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(RULE)
        return axes

    def colour_bar(
        self,
        image: AxesImage,
        top: float,
        left: float,
        height: float,
        label: str,
        *,
        width: float = 0.1,
        **options: Any,
    ) -> None:
        """Add a thin colour bar, vertical or horizontal, with a few ticks and its label."""
        from matplotlib.ticker import MaxNLocator

        orientation = "horizontal" if width > height else "vertical"
        bar = self.figure.colorbar(image, cax=self.axes(top, left, height, width), orientation=orientation, **options)
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.ax.tick_params(labelsize=8, colors=INK, length=2.5, width=0.6)
        bar.long_axis.set_major_locator(MaxNLocator(4))
        bar.set_label(label, fontsize=8.5, color=INK)

    def render(self, suffix: str) -> bytes:
        """Return the file's bytes; the same page always gives the same bytes."""
        from matplotlib import rc_context

        file = io.BytesIO()
        kind = suffix.lower().removeprefix(".")
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with rc_context({"svg.hashsalt": "vitrail", "pdf.fonttype": 42}):
            self.figure.savefig(file, format=kind, metadata=undated)
        return _with_attributes(file.getvalue()) if kind == "svg" else file.getvalue()

    def save(self, path: Path) -> None:
        """Save as PNG, SVG or PDF, by the suffix of `path`, atomically."""
        check_path(path)
        data = self.render(path.suffix)
        write_file(path, lambda file: file.write(data))


def check_drawing(path: Path | None = None) -> None:
    """Raise an error if matplotlib is missing or the path cannot be a picture, before minutes of work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise VitrailError("charts need matplotlib, which is not installed; run pip install 'vitrail[plot]'") from None
    if path is not None:
        check_path(path)


def check_path(path: Path, formats: tuple[str, ...] = FORMATS) -> None:
    named = f"name a file like picture{formats[0]}"
    require(path.suffix.lower() in formats, f"picture {str(path)!r} does not end in {', '.join(formats)}; {named}")
    require(path.parent.is_dir(), f"folder {str(path.parent)!r} does not exist; create it first")
    require(not path.is_dir(), f"picture {str(path)!r} is a folder; {named}")


def _with_attributes(svg: bytes) -> bytes:
    """Turn inline styles into attributes, since a content policy may forbid styles and converters may ignore them."""
    text = svg.decode()
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)

    def attributes(match: re.Match[str]) -> str:
        pairs = (entry.partition(":") for entry in match[1].split(";") if entry.strip())
        return "".join(f' {name}="{value}"' for name, value in {n.strip(): v.strip() for n, _, v in pairs}.items())

    return re.sub(r' style="([^"]*)"', attributes, text).encode()
