"""Numbers → pictures without a plotting library: maps as PNG, charts as SVG."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

__all__ = ["bars", "data_uri", "encode_png", "filter_picture", "heat", "paired_filters", "tile"]

STOPS = (
    (0.0, (24, 20, 60)),
    (0.25, (58, 72, 150)),
    (0.5, (34, 148, 160)),
    (0.75, (130, 200, 120)),
    (1.0, (253, 231, 120)),
)
"""Dark to bright, blue to yellow: monotonic in lightness, readable without telling red from green."""


def heat(values: Tensor, low: float, high: float) -> np.ndarray:
    """(h, w) → uint8 (h, w, 3), from dark at `low` to bright at `high`."""
    share = ((values.double() - low) / max(high - low, 1e-12)).clamp(0, 1).numpy()
    places = [place for place, _ in STOPS]
    channels = [np.interp(share, places, [colour[channel] for _, colour in STOPS]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def filter_picture(values: Tensor) -> np.ndarray:
    """(C, P, Q) → uint8 (P, Q, 3): grey is zero; one and three channels as they are, others by their mean."""
    values = values.double()
    if values.shape[0] != 3:
        values = values.mean(dim=0, keepdim=True).expand(3, -1, -1)
    share = 0.5 + 0.5 * values / values.abs().amax().clamp(min=1e-12)
    return np.rint(share.permute(1, 2, 0).numpy() * 255).astype(np.uint8)


def paired_filters(before: Tensor, after: Tensor, count: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    """The strongest directions of the old projection, (D, C, P, Q), and the same directions of the new one."""
    directions = torch.linalg.svd(before.flatten(1).double(), full_matrices=False).U.T[:count]
    pairs = zip(
        *((directions @ each.flatten(1).double()).unflatten(1, each.shape[1:]) for each in (before, after)), strict=True
    )
    return [(filter_picture(old), filter_picture(new)) for old, new in pairs]


def tile(
    rows: Sequence[Sequence[np.ndarray]], *, row_labels: Sequence[str], column_labels: Sequence[str], cell: int = 180
) -> np.ndarray:
    """Pictures in labelled rows, each enlarged to fit a square cell without blurring."""
    gap, margin, head = 12, 110, 34
    size = (margin + len(column_labels) * (cell + gap), head + len(rows) * (cell + gap))
    ground = Image.new("RGB", size, (250, 249, 246))
    pen, font = ImageDraw.Draw(ground), ImageFont.load_default(size=14)
    for across, label in enumerate(column_labels):
        pen.text((margin + across * (cell + gap), 9), label, fill=(60, 66, 72), font=font)
    for down, (label, row) in enumerate(zip(row_labels, rows, strict=True)):
        top = head + down * (cell + gap)
        pen.text((gap, top + cell // 2 - 9), label, fill=(60, 66, 72), font=font)
        for across, picture in enumerate(row):
            scale = cell / max(picture.shape[:2])
            size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale)))
            enlarged = Image.fromarray(picture).resize(size, Image.Resampling.NEAREST)
            ground.paste(enlarged, (margin + across * (cell + gap), top + (cell - size[1]) // 2))
    return np.asarray(ground)


def encode_png(picture: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def data_uri(picture: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(encode_png(picture)).decode()


# ── charts ──────────────────────────────────────────────────────────────────────────────────────────────────────

COLOURS = ("#2a7f9e", "#d18a2c", "#6a5acd", "#4c9f70", "#c0504d", "#7f7f7f", "#b565a7", "#8a9a2b", "#1f3b73")


def bars(
    title: str,
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    *,
    width: int = 940,
    height: int = 280,
) -> str:
    """Grouped bars of shares as a standalone SVG: one group per label, one colour per series, drawn to the largest."""
    top, left, bottom = 44, 44, 46
    inner, floor = width - left - 12, height - bottom
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
        y = floor - (floor - top) * mark / 4
        label = f"{peak * mark / 4:.0%}" if peak >= 0.04 else f"{peak * mark / 4:.1%}"
        parts += [
            f'<line x1="{left}" y1="{y:.1f}" x2="{width - 12}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>',
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" {ink} opacity="0.7">{label}</text>',
        ]
    for group, label in enumerate(groups):
        middle = left + step * (group + 0.5)
        parts.append(f'<text x="{middle:.1f}" y="{floor + 18}" text-anchor="middle" {ink}>{escape(label)}</text>')
        for index, (name, values) in enumerate(series):
            length = (floor - top) * values[group] / peak
            x = middle + (index - len(series) / 2) * thickness + 1
            parts.append(
                f'<rect x="{x:.1f}" y="{floor - length:.1f}" width="{thickness - 2:.1f}" height="{length:.1f}" rx="2" '
                f'fill="{COLOURS[index % len(COLOURS)]}">'
                f"<title>{escape(name)}, {escape(label)}: {values[group]:.2%}</title></rect>"
            )
    x = float(left)
    for index, (name, _) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        parts += [
            f'<rect x="{x:.0f}" y="{height - 16}" width="10" height="10" rx="2" fill="{colour}"/>',
            f'<text x="{x + 15:.0f}" y="{height - 7}" {ink}>{escape(name)}</text>',
        ]
        x += 30 + 6.6 * len(name)
    return "".join(parts) + "</svg>"


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 times a power of ten."""
    if value <= 0:
        return 0.01
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(nice * power for nice in (1, 2, 4, 5, 8, 10) if value <= nice * power * (1 + 1e-9)))
