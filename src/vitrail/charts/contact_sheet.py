"""A contact sheet: the query image beside its matches with their scores, or the reason why one cannot be shown.

It is drawn by Pillow, since it contains only photographs and text, and matplotlib is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from vitrail.charts.palette import BLUE, FAINT, GREY, INK, PAPER, RED
from vitrail.charts.raster import font

__all__ = ["COLUMNS_ALONE", "LARGE", "PICTURE", "Tile", "contact_sheet", "fitted", "row_sheet"]

PICTURE, LARGE, GAP, MARGIN, HEADER, LABEL = 300, 620, 36, 64, 150, 78
COLUMNS, COLUMNS_ALONE = 4, 6
"""Tiles in a row beside a query, and without one."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A picture, or the reason why there is none, with the text below it."""

    name: str
    detail: str = ""
    picture: Image.Image | None = None
    fault: str = ""
    score: float | None = None
    """None for the query."""


def contact_sheet(title: str, subtitle: str, query: Tile, matches: Sequence[Tile]) -> Image.Image:
    columns = min(COLUMNS, len(matches))
    rows = -(-len(matches) // columns)
    right = MARGIN + LARGE + 2 * GAP
    width = right + columns * PICTURE + (columns - 1) * GAP + MARGIN
    height = HEADER + max(rows * (PICTURE + LABEL + GAP), LARGE + LABEL + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    _draw_header(sheet, title, subtitle)
    _draw_tile(sheet, query, MARGIN, HEADER, LARGE)
    for number, tile in enumerate(matches):
        left = right + number % columns * (PICTURE + GAP)
        _draw_tile(sheet, tile, left, HEADER + number // columns * (PICTURE + LABEL + GAP), PICTURE)
    return sheet


def row_sheet(title: str, subtitle: str, rows: Sequence[Sequence[Tile]]) -> Image.Image:
    """Draw rows of tiles, such as groups of near duplicates, at most COLUMNS_ALONE in each."""
    columns = max(2, *map(len, rows)) if rows else 2
    width = 2 * MARGIN + columns * PICTURE + (columns - 1) * GAP
    height = HEADER + len(rows) * (PICTURE + LABEL + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    _draw_header(sheet, title, subtitle)
    for down, row in enumerate(rows):
        for across, tile in enumerate(row):
            left, top = MARGIN + across * (PICTURE + GAP), HEADER + down * (PICTURE + LABEL + GAP)
            _draw_tile(sheet, tile, left, top, PICTURE)
    return sheet


def _draw_header(sheet: Image.Image, title: str, subtitle: str) -> None:
    pen, room = ImageDraw.Draw(sheet), sheet.width - 2 * MARGIN
    pen.text((MARGIN, 78), fitted(title, 38, room), INK, font(38), anchor="ls")
    pen.text((MARGIN, 112), fitted(subtitle, 20, room), GREY, font(20), anchor="ls")


def _draw_tile(sheet: Image.Image, tile: Tile, left: int, top: int, side: int) -> None:
    """Draw a square with the picture centred, name and details below it, and a bar for the score."""
    pen = ImageDraw.Draw(sheet)
    pen.rounded_rectangle((left, top, left + side, top + side), 10, FAINT)
    if tile.picture is not None:
        picture = tile.picture
        corners = Image.new("L", picture.size)
        ImageDraw.Draw(corners).rounded_rectangle((0, 0, picture.width - 1, picture.height - 1), 10, 255)
        sheet.paste(picture, (left + (side - picture.width) // 2, top + (side - picture.height) // 2), corners)
    else:
        pen.text((left + side // 2, top + side // 2 - 16), "cannot be shown", RED, font(20), anchor="ms")
        for line, words in enumerate(_wrapped(tile.fault, 16, side - 32)[:5]):
            pen.text((left + side // 2, top + side // 2 + 14 + 22 * line), words, GREY, font(16), anchor="ms")
    below = top + side
    if tile.score is None:
        pen.rectangle((left, below + 14, left + side, below + 17), BLUE)
        score = tile.detail
    else:
        pen.rectangle((left, below + 14, left + side, below + 17), FAINT)
        pen.rectangle((left, below + 14, left + round(side * max(0.0, min(1.0, tile.score))), below + 17), BLUE)
        score = f"{tile.score:.4f}"
        pen.text((left + side, below + 46), tile.detail, GREY, font(17), anchor="rs")
    pen.text((left, below + 46), score, INK, font(23), anchor="ls")
    pen.text((left, below + 72), fitted(tile.name, 17, side), GREY, font(17), anchor="ls")


def fitted(text: str, size: int, room: int) -> str:
    """Shorten a text that is too long by its middle, because names often differ at their ends."""
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    if font(size).getlength(text) <= room:
        return text
    kept = len(text)
    while kept > 2 and font(size).getlength(f"{text[: kept // 3]}…{text[-(kept - kept // 3) :]}") > room:
        kept -= 1
    return f"{text[: kept // 3]}…{text[-(kept - kept // 3) :]}"


def _wrapped(text: str, size: int, room: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font(size).getlength(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [fitted(line, size, room) for line in lines]
