"""A grouped bar chart as standalone SVG, for embedding in HTML, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

from vitrail.charts.palette import SERIES

__all__ = ["bars"]


def bars(
    title: str,
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    *,
    width: int = 940,
    height: int = 280,
) -> str:
    """Draw shares as grouped bars in standalone SVG: a group per label, a colour per series, scaled to the largest."""
    top, left, bottom = 44, 44, 46
    inner, ground = width - left - 12, height - bottom
    peak = _round_up(max((value for _, values in series for value in values), default=0.0))
    step = inner / len(groups)
    thickness = min(34.0, step * 0.8 / max(1, len(series)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">',
        f'<text x="0" y="16" font-size="14" font-weight="600" fill="currentColor">{escape(title)}</text>',
    ]
    ink = 'fill="currentColor"'
    for mark in range(5):
        y = ground - (ground - top) * mark / 4
        label = f"{peak * mark / 4:.0%}" if peak >= 0.04 else f"{peak * mark / 4:.1%}"
        parts += [
            f'<line x1="{left}" y1="{y:.1f}" x2="{width - 12}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>',
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" {ink} opacity="0.7">{label}</text>',
        ]
    for group, label in enumerate(groups):
        middle = left + step * (group + 0.5)
        parts.append(f'<text x="{middle:.1f}" y="{ground + 18}" text-anchor="middle" {ink}>{escape(label)}</text>')
        for index, (name, values) in enumerate(series):
            length = (ground - top) * values[group] / peak
            x = middle + (index - len(series) / 2) * thickness + 1
            parts.append(
                f'<rect x="{x:.1f}" y="{ground - length:.1f}" width="{thickness - 2:.1f}" height="{length:.1f}" rx="2" '
                f'fill="{SERIES[index % len(SERIES)]}">'
                f"<title>{escape(name)}, {escape(label)}: {values[group]:.2%}</title></rect>"
            )
    x = float(left)
    for index, (name, _) in enumerate(series):
        colour = SERIES[index % len(SERIES)]
        parts += [
            f'<rect x="{x:.0f}" y="{height - 16}" width="10" height="10" rx="2" fill="{colour}"/>',
            f'<text x="{x + 15:.0f}" y="{height - 7}" {ink}>{escape(name)}</text>',
        ]
        x += 30 + 6.6 * len(name)
    return "".join(parts) + "</svg>"


def _round_up(value: float) -> float:
    """Round up to 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 0.01
    power = 10.0 ** floor(log10(value))
    return next(nice * power for nice in (1, 2, 4, 5, 8, 10) if value <= nice * power * (1 + 1e-9))
