"""Contact sheets of what was found, drawn from the original files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from vitrail.charts.contact_sheet import COLUMNS_ALONE, LARGE, PICTURE, Tile
from vitrail.images.decode import ImageError, decode
from vitrail.vectors.collection import Collection
from vitrail.vectors.search import Match

__all__ = ["group_tiles", "match_tile", "outlier_tiles", "query_tile", "sized"]


def query_tile(name: str, source: Callable[[], Path | bytes]) -> Tile:
    return _tile(Tile(name=name, detail="query"), source, LARGE)


def match_tile(collection: Collection, match: Match) -> Tile:
    """Return the tile of a match, drawn from its original image."""
    tile = Tile(name=match.id, detail=f"{match.height} x {match.width}", score=match.score)
    return _tile(tile, lambda: collection.original(match), PICTURE)


def group_tiles(collection: Collection, group: Sequence[Match]) -> list[Tile]:
    """Return a row of near duplicates; the last tile says how many are not shown."""
    shown = [match_tile(collection, match) for match in group[:COLUMNS_ALONE]]
    rest = len(group) - len(shown)
    if rest:
        shown[-1] = replace(shown[-1], name=f"and {rest:,} more, after {shown[-1].name}")
    return shown


def outlier_tiles(collection: Collection, matches: Sequence[Match]) -> list[list[Tile]]:
    tiles = [match_tile(collection, match) for match in matches]
    return [tiles[start : start + COLUMNS_ALONE] for start in range(0, len(tiles), COLUMNS_ALONE)]


def _tile(tile: Tile, source: Callable[[], Path | bytes], side: int) -> Tile:
    try:
        picture = Image.fromarray(decode(source()))
    except ImageError as error:
        return replace(tile, fault=str(error).rpartition(": ")[2])
    return sized(tile, picture, side)


def sized(tile: Tile, picture: Image.Image, side: int) -> Tile:
    """Return the tile with a picture whose longer side has so many pixels."""
    scale = side / max(picture.size)
    height, width = (max(1, round(scale * length)) for length in (picture.height, picture.width))
    return replace(tile, picture=picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0))
