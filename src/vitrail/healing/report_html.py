"""A healing as a section of an adaptation's page (`vitrail.checkpoint.assess.report_html`)."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from vitrail.charts.notebook import curve
from vitrail.charts.raster import data_uri
from vitrail.healing.report import Colours, Healing, score_rows

__all__ = ["STYLE", "to_section"]

MOST_PARTS = 12
STYLE = """
.colours { display: grid; grid-template-columns: repeat(4, 1fr); gap: 10px; margin-top: 8px; max-width: 760px; }
.colours h3 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 0; align-self: end; }
.colours img { width: 100%; aspect-ratio: 1; object-fit: contain; display: block; image-rendering: pixelated;
  border-radius: 4px; }
.colours img.photo { image-rendering: auto; } .narrow { max-width: 560px; }
th.number { text-align: right; }
"""


def to_section(healing: Healing) -> str:
    """Return the section as HTML; it needs STYLE on its page."""
    return (
        f"<section><h2>{'Healed' if healing.healed else 'Not healed'}</h2><p>{escape(_headline(healing))}</p>"
        f"{''.join(_parts(healing))}</section>"
    )


def _headline(healing: Healing) -> str:
    images = healing.images
    return (
        f"The target is {healing.target}. {healing.reason[0].upper()}{healing.reason[1:]}. Measured on "
        f"{images.judging:,} images that it neither learned from ({images.training:,} others) nor chose by "
        f"({images.choosing:,})."
    )


def _parts(healing: Healing) -> Iterator[str]:
    rows = "".join(
        f'<tr><td>{name}</td><td class="number">{old}</td><td class="number">{new}</td></tr>'
        for name, old, new in score_rows(healing.before, healing.after)
    )
    head = (
        '<tr><th>with the original</th><th class="number">after surgery</th><th class="number">after healing</th></tr>'
    )
    yield f'<table class="narrow">{head}{rows}</table>'
    if healing.steps:
        rows = "".join(
            f'<tr><td>{escape(step.name)}</td><td class="number">{step.error:.5f}</td>'
            f"<td>{'kept' if step.kept else 'left out: it did not help'}</td></tr>"
            for step in healing.steps
        )
        yield (
            '<p class="apart">The steps, each kept only if it lowers the error (1 − cosine) on images to choose by:</p>'
            f'<table class="narrow">{rows}</table>'
        )
    if len(healing.curve) > 1:
        points = [(float(each.step), each.error) for each in healing.curve]
        yield f'<div class="narrow">{curve("Error by step", {"error": points})}</div>'
    if healing.colours:
        yield (
            '<p class="apart">Tokens as colours, by their three principal components; in a row, the same colour is the '
            f'same direction.</p><div class="colours">{"".join(_colours(healing.colours))}</div>'
        )
    if healing.parts:
        most = sorted(healing.parts, key=lambda each: -each.change)[:MOST_PARTS]
        rows = "".join(
            f'<tr><td><code>{escape(each.part)}</code></td><td class="number">{each.change:.3%}</td></tr>'
            for each in most
        )
        yield (
            f"<details><summary>what healing changed: {len(healing.parts)} parts, relative to their norm</summary>"
            f'<table class="narrow">{rows}</table></details>'
        )
    yield "".join(f"<p>! {escape(note)}</p>" for note in healing.notes)


def _colours(found: tuple[Colours, ...]) -> Iterator[str]:
    for label in ("image", "original", "after surgery", "after healing"):
        yield f"<h3>{label}</h3>"
    for each in found:
        yield f'<img class="photo" src="{data_uri(each.image)}" alt="image">'
        for name, picture in (("original", each.original), ("surgery", each.before), ("healing", each.after)):
            yield f'<img src="{data_uri(picture)}" alt="tokens, {name}">'
