"""The bench's table as a picture: a bar per batch size, its parts stacked."""

from __future__ import annotations

from pathlib import Path

from vitrail.charts.plots import INK, finish, new_figure, shades
from vitrail.embed.engines.profile import SECTIONS, Profile

__all__ = ["draw"]


def draw(found: Profile, path: Path, words: str) -> None:
    figure, axes = new_figure(path)
    batches = sorted({row.batch for row in found.rows})
    base = [0.0] * len(batches)
    for section, colour in zip(SECTIONS, shades(len(SECTIONS)), strict=True):
        times = [
            1e3 * next(row.seconds_per_image for row in found.rows if (row.batch, row.section) == (batch, section))
            for batch in batches
        ]
        axes.bar(range(len(batches)), times, 0.55, bottom=base, color=colour, label=section)
        base = [a + b for a, b in zip(base, times, strict=True)]
    for place, total in enumerate(base):
        axes.text(place, total, f" {total:.1f} ms\n", ha="center", va="bottom", fontsize=9, color=INK)
    axes.set_xticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    axes.set_ylabel("milliseconds per image", color=INK)
    axes.set_ylim(0, 1.15 * max(base))
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    finish(figure, axes, path, "Where the time of an image goes", f"{words} · {found.engine}, {found.threads} threads")
