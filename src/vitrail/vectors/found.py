"""Tiles of a contact sheet: the query and its matches, read again from their original files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from PIL import Image

from vitrail.charts.contact_sheet import LARGE, PICTURE, Tile
from vitrail.images.decode import ImageError, decode
from vitrail.vectors.job.plan import Plan
from vitrail.vectors.search import Match, original

__all__ = ["match_tile", "query_tile"]


def query_tile(name: str, source: Callable[[], Path | bytes]) -> Tile:
    return _tile(Tile(name=name, detail="query"), source, LARGE)


def match_tile(folder: Path, plan: Plan, match: Match) -> Tile:
    """Return the tile of a match, drawn from its original image."""
    tile = Tile(name=match.id, detail=f"{match.height} x {match.width}", score=match.score)
    return _tile(tile, lambda: original(folder, plan, match), PICTURE)


def _tile(tile: Tile, source: Callable[[], Path | bytes], side: int) -> Tile:
    try:
        picture = Image.fromarray(decode(source()))
    except ImageError as error:
        return replace(tile, fault=str(error).rpartition(": ")[2])
    scale = side / max(picture.size)
    height, width = (max(1, round(scale * length)) for length in (picture.height, picture.width))
    return replace(tile, picture=picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0))
