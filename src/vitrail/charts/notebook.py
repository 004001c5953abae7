"""What a notebook shows of a value: a title, tables and small SVG charts, without scripts.

Text and lines take the notebook's own colour, and series use `palette`, so that everything reads on light and dark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from vitrail.charts.palette import SERIES

__all__ = ["Brief", "Shown", "curve", "facts", "html_table", "panel", "parts_bar", "pictures", "swatch"]

LINE = "rgba(128, 128, 128, 0.35)"
CELL = f"padding: 3px 14px 3px 0; border: 0; border-bottom: 1px solid {LINE}; background: none; vertical-align: top"


class Shown:
    """A value whose `repr` is a short line, and which notebooks show as a panel.

    Subclasses give `_summary`, the line, and `_panel`, the parts of the panel. A dataclass needs `repr=False`.
    """

    def _summary(self) -> str:
        raise NotImplementedError

    def _panel(self) -> Iterable[str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def _repr_html_(self) -> str:
        return panel(f"{type(self).__name__}: {self._summary()}", *self._panel())


class Brief:
    """A dataclass with arrays, whose `repr` gives their types and shapes instead of their numbers."""

    def __repr__(self) -> str:
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(value)}' for name, value in fields)})"


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"<{len(value)} items>"
    if not hasattr(value, "shape"):
        return repr(value)
    return f"<{str(value.dtype).removeprefix('torch.')} {'×'.join(map(str, value.shape)) or 'scalar'}>"


def panel(title: str, *parts: str) -> str:
    style = "font: 13px/1.45 system-ui, sans-serif; max-width: 760px; margin: 6px 0"
    return f'<div style="{style}"><div style="font-weight: 600">{escape(title)}</div>{"".join(parts)}</div>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values."""
    return html_table((), ((escape(name), escape(str(value))) for name, value in rows), "ll")


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """Return a table of cells that are already HTML; `align` has a letter per column: l, or r for numbers."""
    styles = [f"{CELL}; text-align: {'right' if letter == 'r' else 'left'}" for letter in align]
    head = "".join(
        f'<th style="{style}; font-weight: 600">{each}</th>'
        for each, style in zip(headings, styles[: len(headings)], strict=True)
    )
    body = "".join(
        "<tr style='background: none'>"
        + "".join(f'<td style="{style}">{cell}</td>' for cell, style in zip(row, styles, strict=True))
        + "</tr>"
        for row in rows
    )
    style = "border-collapse: collapse; margin: 6px 0; font-variant-numeric: tabular-nums; border: 0"
    return f'<table style="{style}">{f"<tr>{head}</tr>" if headings else ""}{body}</table>'


def swatch(place: int) -> str:
    """Return a square of a series' colour, for the table that is a chart's legend."""
    style = f"display: inline-block; width: 10px; height: 10px; border-radius: 2px; background: {_colour(place)}"
    return f'<span style="{style}"></span>'


def _colour(place: int) -> str:
    return SERIES[place % len(SERIES)]


def parts_bar(title: str, parts: Mapping[str, float]) -> str:
    """Return one horizontal bar, divided into named parts of a whole."""
    whole, x, drawn = sum(parts.values()) or 1.0, 0.0, []
    for place, (name, size) in enumerate(parts.items()):
        width = 700 * size / whole
        drawn.append(
            f'<rect x="{x:.2f}" width="{width:.2f}" height="18" fill="{_colour(place)}">'
            f"<title>{escape(name)}: {size / whole:.1%}</title></rect>"
        )
        x += width
    return _svg(title, 700, 18, drawn)


def curve(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], *, unit: str = "") -> str:
    """Return lines of points (x, y), ordered by x, with their last values as the legend."""
    points = [point for line in lines.values() for point in line]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    width, height, top = 330, 120, 24

    def at(x: float, y: float) -> str:
        across, up = (x - left) / (right - left or 1), (y - low) / (high - low or 1)
        return f"{across * width:.1f},{top + (1 - up) * (height - top - 16):.1f}"

    drawn = [
        f'<text y="12" font-size="12" fill="currentColor">{escape(title)}</text>',
        f'<line y1="{height - 14}" y2="{height - 14}" x2="{width}" stroke="currentColor" opacity="0.3"/>',
        f'<text y="{height - 2}" font-size="10" fill="currentColor" opacity="0.7">{left:g}</text>',
        f'<text x="{width}" y="{height - 2}" font-size="10" text-anchor="end" fill="currentColor" opacity="0.7">'
        f"{right:g}</text>",
    ]
    for place, (name, line) in enumerate(lines.items()):
        drawn += [
            f'<polyline points="{" ".join(at(*point) for point in line)}" fill="none" stroke="{_colour(place)}" '
            'stroke-width="1.6"/>',
            f'<text x="{width}" y="{12 + 13 * place}" font-size="11" text-anchor="end" fill="currentColor">'
            f'{escape(name)} {line[-1][1]:.4g}{unit} <tspan fill="{_colour(place)}">■</tspan></text>',
        ]
    return f'<span style="display: inline-block; margin-right: 24px">{_svg(title, width, height, drawn)}</span>'


def pictures(named: Iterable[tuple[str, str]], side: int = 96) -> str:
    """Return small pictures, given as (caption, data URI), side by side."""
    style = f"width: {side}px; height: auto; display: block; image-rendering: pixelated; border-radius: 3px"
    each = (
        f'<figure style="display: inline-block; margin: 6px 8px 0 0"><img src="{uri}" alt="{escape(name)}" '
        f'style="{style}"><figcaption style="font-size: 11px; opacity: 0.75">{escape(name)}</figcaption></figure>'
        for name, uri in named
    )
    return f"<div>{''.join(each)}</div>"


def _svg(title: str, width: int, height: int, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" style="max-width: 100%; display: block; margin-top: 6px" '
        f'font-family="system-ui, sans-serif">{"".join(drawn)}</svg>'
    )
