"""vitrail cards: the graphics cards that are known by name."""

from __future__ import annotations

from vitrail.charts.numbers import bytes_text, number_text
from vitrail.cli.options import Json
from vitrail.cli.tables import show, table, write_json
from vitrail.plan.hardware import CARDS

__all__ = ["cards"]


def cards(*, json: Json = False) -> None:
    """List the graphics cards that are known by name: memory, speed and bandwidth."""
    if json:
        write_json(CARDS)
        return
    rows = [
        (
            card.key,
            bytes_text(card.visible_bytes),
            *(number_text(card.tflops[kind]) if kind in card.tflops else "–" for kind in ("fp32", "fp16", "bf16")),
            f"{card.gigabytes_per_second:,.0f}",
            "yes" if card.flash else "no",
        )
        for card in CARDS
    ]
    headings = ("card", "memory", "fp32", "fp16", "bf16", "GB/s", "flash")
    caption = (
        "memory: what programs see; fp32, fp16, bf16: dense TFLOP/s, 16-bit with tensor cores; GB/s: memory bandwidth; "
        "flash: whether PyTorch's flash attention runs on it; from data sheets, not measured"
    )
    notes = [f" [dim]{card.key}: {card.note}[/]" for card in CARDS if card.note]
    show(table("", headings, rows, "lrrrrrl", caption=caption), *notes)
    show("use one with: vitrail plan B/16 --gpu CARD; any other by its memory: --gpu 24GiB")
