"""vitrail cards: the graphics cards that are known by name, and what fits cards of usual sizes."""

from __future__ import annotations

from vitrail.charts.numbers import bytes_text, number_text
from vitrail.cli.options import Flag, Json, SizeOption
from vitrail.cli.tables import show, table, write_json
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.plan.allocators import allocator_of
from vitrail.plan.cards import CARDS
from vitrail.plan.tiers import TIERS_GIB, Tier
from vitrail.plan.tiers import tiers as tiers_of

__all__ = ["cards"]


def cards(*, tiers: Flag = False, image: SizeOption | None = None, json: Json = False) -> None:
    """List the cards that are known by name: memory, speed and bandwidth.

    Parameters
    ----------
    tiers
        Show instead the largest batch of each ViT on cards of 8, 16, 24, 40 and 80 GiB.
    image
        With --tiers: image size for all models, HEIGHTxWIDTH or one number for a square (default: each model's own).
    """
    require(tiers or image is None, f"--image {image} goes with --tiers; add it, or see vitrail plan --image")
    if tiers:
        found = tiers_of(image=image)
        write_json(found) if json else _show_tiers(found)
    elif json:
        write_json([vars(card) | {"allocator": allocator_of(card)} for card in CARDS])
    else:
        _show_cards()


def _show_cards() -> None:
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
        "flash: whether PyTorch's flash attention runs on it; from data sheets, not measured; --json has each source"
    )
    notes: dict[str, list[str]] = {}
    for card in CARDS:
        if card.note:
            notes.setdefault(card.note, []).append(card.key)
    lines = [f" [dim]{', '.join(keys)}: {note}[/]" for note, keys in notes.items()]
    show(table("", headings, rows, "lrrrrrl", caption=caption), *lines)
    show("use one with: vitrail plan B/16 --gpu CARD; any other by its memory: --gpu 24GiB")


def _show_tiers(found: tuple[Tier, ...]) -> None:
    by_model: dict[tuple[str, Size], list[Tier]] = {}
    for tier in found:
        by_model.setdefault((tier.model, tier.image), []).append(tier)
    headings = ("model", "image", *(f"{gib} GiB" for gib in TIERS_GIB))
    for title, batch in (("Training", "train_batch"), ("Inference", "inference_batch")):
        rows = [
            (name, str(image), *(f"{getattr(tier, batch):,}" if getattr(tier, batch) else "–" for tier in row))
            for (name, image), row in by_model.items()
        ]
        show(table(f"{title}: the largest batch that likely fits", headings, rows, "ll" + "r" * len(TIERS_GIB)))
    show(
        " [dim]mixed bf16, AdamW, flash attention; tensors plus context, workspaces and allocator: modelled, not "
        "measured. More: vitrail plan MODEL --train --gpu 24GiB[/]"
    )
