"""An atlas as a picture: a thumbnail in every cell of a grid that has images, and a contact sheet of doubts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from vitrail.charts.contact_sheet import COLUMNS_ALONE, PICTURE, Tile, fitted, row_sheet
from vitrail.charts.palette import FAINT, GREY, INK, PAPER
from vitrail.charts.raster import font
from vitrail.maps.atlas import Atlas
from vitrail.maps.colours import class_colours
from vitrail.maps.flatten import METHODS
from vitrail.maps.thumbnails import thumbnails
from vitrail.vectors.cosine import Floats
from vitrail.vectors.found import sized

__all__ = ["doubt_sheet", "in_cells", "map_picture"]

WIDTH, MARGIN, HEADER, FRAME, GAP, LINE = 2400, 96, 170, 4, 4, 34
CELLS = (52, 150)
"""Least and largest side of a thumbnail's cell, in pixels."""
HEIGHTS = (0.45, 1.0)
"""Least and largest height of the map, as a share of its width."""

Tell = Callable[[int], None]


def map_picture(atlas: Atlas, title: str, tell: Tell = lambda done: None) -> Image.Image:
    """Draw the map, with the same scale across and up."""
    spans = np.maximum(np.ptp(atlas.points, axis=0), 1e-12)
    room = WIDTH - 2 * MARGIN
    tall = round(room * float(np.clip(spans[1] / spans[0], *HEIGHTS)))
    colours, legend = class_colours(len(atlas.classes)), _legend(atlas, room)
    height = HEADER + tall + MARGIN + LINE * len(legend)
    sheet = Image.new("RGB", (WIDTH, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    cell = float(np.clip(room / (1.6 * len(atlas) ** 0.5), *CELLS))
    scale = ((room - cell) / spans[0], (tall - cell) / spans[1])
    middle = (atlas.points.min(axis=0) + atlas.points.max(axis=0)) / 2
    places = (atlas.points - middle) * (min(scale), -min(scale)) + (WIDTH / 2, HEADER + tall / 2)  # (N, 2) pixels
    shown = in_cells(places, cell)
    pen.text((MARGIN, 78), fitted(title, 42, room), INK, font(42), anchor="ls")
    pen.text((MARGIN, 118), fitted(_subtitle(atlas, len(shown)), 22, room), GREY, font(22), anchor="ls")
    side = round(cell) - 2 * FRAME - GAP
    for place, picture in thumbnails(atlas.collection, shown, side, tell):
        if picture is None:  # gone since it was embedded
            continue
        picture = sized(Tile(name=""), picture, side).picture or picture
        left, top = (round(c - length / 2) for c, length in zip(shown[place], picture.size, strict=True))
        box = (left - FRAME, top - FRAME, left + picture.width + FRAME - 1, top + picture.height + FRAME - 1)
        pen.rectangle(box, colours[int(atlas.labels[place])] if atlas.classes else FAINT)
        sheet.paste(picture, (left, top))
    _draw_legend(pen, legend, height - MARGIN // 2 - LINE * (len(legend) - 1), colours)
    return sheet


def in_cells(places: Floats, side: float) -> dict[int, tuple[float, float]]:
    """Give a cell of a square grid to the image that is nearest to its centre; return its centre by the image."""
    centres = (np.floor(places / side) + 0.5) * side
    apart = np.square(places - centres).sum(axis=1)
    best: dict[tuple[float, float], int] = {}
    for place in np.argsort(apart, kind="stable").tolist():
        best.setdefault((float(centres[place, 0]), float(centres[place, 1])), place)
    return {place: centre for centre, place in best.items()}


def _subtitle(atlas: Atlas, shown: int) -> str:
    plan = atlas.collection.plan
    words = [plan.weights_name] if plan is not None else []
    cells = f", of which {shown:,} have a cell" if shown < len(atlas) else ""
    words.append(f"{len(atlas):,} images by {METHODS[atlas.method]}{cells}")
    if atlas.flat.variance is not None:
        words.append(f"two components have {atlas.flat.variance:.1%} of the variance")
    if atlas.kept is not None:
        words.append(f"{atlas.kept.share:.1%} of the {atlas.kept.neighbours} nearest neighbours stay nearest")
    if atlas.judged is not None:
        words.append(f"a linear probe names {atlas.judged.accuracy:.1%} right")
    return " · ".join(words)


def _legend(atlas: Atlas, room: int) -> list[list[tuple[int, str]]]:
    """Return the classes in lines that fit."""
    lines: list[list[tuple[int, str]]] = []
    used = room + 1.0
    for number, name in enumerate(atlas.classes):
        name = fitted(name, 22, room // 4)
        wide = font(22).getlength(name) + 64
        if used + wide > room:
            lines.append([])
            used = 0
        lines[-1].append((number, name))
        used += wide
    return lines


def _draw_legend(pen: ImageDraw.ImageDraw, lines: list[list[tuple[int, str]]], top: int, colours: list[str]) -> None:
    for row, line in enumerate(lines):
        left = float(MARGIN)
        for number, name in line:
            pen.rectangle((left, top + LINE * row - 16, left + 18, top + LINE * row + 2), colours[number])
            pen.text((left + 28, top + LINE * row), name, INK, font(22), anchor="ls")
            left += font(22).getlength(name) + 64


def doubt_sheet(atlas: Atlas, top: int, tell: Tell = lambda done: None) -> Image.Image:
    """Draw the images that the probe finds least probable in their own class."""
    judged, doubts = atlas.judged, atlas.doubts[:top]
    assert judged is not None
    pictures = dict(thumbnails(atlas.collection, [each.place for each in doubts], PICTURE, tell))
    tiles = []
    for each in doubts:
        detail = each.label if each.guess == each.label else f"{each.label} or {each.guess}?"
        tile = Tile(name=each.id, detail=detail, score=each.probability, fault="changed since it was embedded")
        picture = pictures[each.place]
        tiles.append(tile if picture is None else sized(tile, picture, PICTURE))
    rows = [tiles[start : start + COLUMNS_ALONE] for start in range(0, len(tiles), COLUMNS_ALONE)]
    plan = atlas.collection.plan
    subtitle = (
        f"{plan.weights_name if plan is not None else ''} · the probability of its own class, by a linear probe "
        f"that has not seen the image; {judged.accuracy:.1%} of {judged.images:,} are named right"
    )
    return row_sheet("Images that the probe doubts", subtitle, rows)
