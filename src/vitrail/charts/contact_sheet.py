"""A contact sheet: the query, and beside it what was found, each with its score; what cannot be shown says why."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vitrail.atomic import write_file
from vitrail.embed.job.inputs import Opener
from vitrail.embed.job.plan import Plan, read_shard
from vitrail.embed.search import Match
from vitrail.errors import require
from vitrail.images.decode import ImageError, decode

__all__ = ["Tile", "check_sheet_path", "draw_sheet", "match_tile", "original", "query_tile", "save_sheet"]

INK, GREY, FAINT, PAPER, ACCENT, RED = "#1d2733", "#66727f", "#edf0f2", "#ffffff", "#0b7fab", "#b3401f"
PICTURE, LARGE, GAP, MARGIN, HEADER, LABEL = 300, 620, 36, 64, 150, 78
COLUMNS = 4


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A picture or the reason why there is none, and what is written below it."""

    name: str
    detail: str = ""
    picture: Image.Image | None = None
    fault: str = ""
    score: float | None = None
    """None for the query."""


def query_tile(name: str, source: Callable[[], Path | bytes]) -> Tile:
    return _tile(Tile(name=name, detail="query"), source, LARGE)


def match_tile(folder: Path, plan: Plan, match: Match) -> Tile:
    """What was found, with its original opened again."""
    tile = Tile(name=match.id, detail=f"{match.height} x {match.width}", score=match.score)
    return _tile(tile, lambda: original(folder, plan, match), PICTURE)


def original(folder: Path, plan: Plan, match: Match) -> Path | bytes:
    """What the vector was made of, if it is still there."""
    return Opener()(read_shard(folder, plan, match.shard)[match.row])


def _tile(tile: Tile, source: Callable[[], Path | bytes], side: int) -> Tile:
    try:
        picture = Image.fromarray(decode(source()))
    except ImageError as error:
        return replace(tile, fault=str(error).rpartition(": ")[2])
    scale = side / max(picture.size)
    height, width = (max(1, round(scale * length)) for length in (picture.height, picture.width))
    return replace(tile, picture=picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0))


# ── drawing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_sheet(title: str, subtitle: str, query: Tile, matches: Sequence[Tile]) -> Image.Image:
    columns = min(COLUMNS, len(matches))
    rows = -(-len(matches) // columns)
    right = MARGIN + LARGE + 2 * GAP
    width = right + columns * PICTURE + (columns - 1) * GAP + MARGIN
    height = HEADER + max(rows * (PICTURE + LABEL + GAP), LARGE + LABEL + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    room = width - 2 * MARGIN
    pen.text((MARGIN, 78), _fitted(title, 38, room), INK, _font(38), anchor="ls")
    pen.text((MARGIN, 112), _fitted(subtitle, 20, room), GREY, _font(20), anchor="ls")
    _draw_tile(sheet, query, MARGIN, HEADER, LARGE)
    for number, tile in enumerate(matches):
        left = right + number % columns * (PICTURE + GAP)
        _draw_tile(sheet, tile, left, HEADER + number // columns * (PICTURE + LABEL + GAP), PICTURE)
    return sheet


def _draw_tile(sheet: Image.Image, tile: Tile, left: int, top: int, side: int) -> None:
    """A square with the picture in its middle, the name and its details below, and a bar as long as the score."""
    pen = ImageDraw.Draw(sheet)
    pen.rounded_rectangle((left, top, left + side, top + side), 10, FAINT)
    if tile.picture is not None:
        picture = tile.picture
        corners = Image.new("L", picture.size)
        ImageDraw.Draw(corners).rounded_rectangle((0, 0, picture.width - 1, picture.height - 1), 10, 255)
        sheet.paste(picture, (left + (side - picture.width) // 2, top + (side - picture.height) // 2), corners)
    else:
        pen.text((left + side // 2, top + side // 2 - 16), "cannot be shown", RED, _font(20), anchor="ms")
        for line, words in enumerate(_wrapped(tile.fault, 16, side - 32)[:5]):
            pen.text((left + side // 2, top + side // 2 + 14 + 22 * line), words, GREY, _font(16), anchor="ms")
    below = top + side
    if tile.score is None:
        pen.rectangle((left, below + 14, left + side, below + 17), ACCENT)
        score = tile.detail
    else:
        pen.rectangle((left, below + 14, left + side, below + 17), FAINT)
        pen.rectangle((left, below + 14, left + round(side * max(0.0, min(1.0, tile.score))), below + 17), ACCENT)
        score = f"{tile.score:.4f}"
        pen.text((left + side, below + 46), tile.detail, GREY, _font(17), anchor="rs")
    pen.text((left, below + 46), score, INK, _font(23), anchor="ls")
    pen.text((left, below + 72), _fitted(tile.name, 17, side), GREY, _font(17), anchor="ls")


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _fitted(text: str, size: int, room: int) -> str:
    """The text, with its middle left out if it is too long: names differ at their ends."""
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    if _font(size).getlength(text) <= room:
        return text
    kept = len(text)
    while kept > 2 and _font(size).getlength(f"{text[: kept // 3]}…{text[-(kept - kept // 3) :]}") > room:
        kept -= 1
    return f"{text[: kept // 3]}…{text[-(kept - kept // 3) :]}"


def _wrapped(text: str, size: int, room: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if _font(size).getlength(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_fitted(line, size, room) for line in lines]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check_sheet_path(path: Path) -> None:
    require(path.suffix.lower() == ".png", f"--out {path} is not a .png; name one, like sheet.png")
    require(path.parent.is_dir() and not path.is_dir(), f"--out {path} has no folder to be in; make it first")


def save_sheet(path: Path, sheet: Image.Image) -> None:
    """Whole or not at all."""
    data = io.BytesIO()
    sheet.save(data, "PNG", optimize=True)
    write_file(path, lambda file: file.write(data.getvalue()))
