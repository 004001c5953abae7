"""What vitrail search shows: a table, and a contact sheet that is drawn if it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL.Image import Image

from vitrail.charts.contact_sheet import contact_sheet, row_sheet
from vitrail.checkpoint.assess.describe import few
from vitrail.errors import require
from vitrail.vectors.collection import Collection
from vitrail.vectors.duplicates import Duplicates
from vitrail.vectors.found import group_tiles, match_tile, outlier_tiles, query_tile
from vitrail.vectors.outliers import Outliers
from vitrail.vectors.search import Found, Match

__all__ = ["View", "duplicates_view", "nearest_view", "outliers_view"]

NAMED = 3
"""Images of a group that the table names."""


@dataclass(frozen=True, kw_only=True)
class View:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    caption: str
    draw: Callable[[], Image]


def nearest_view(
    collection: Collection, found: Found, name: str, query: Callable[[], Path | bytes], region: str = ""
) -> View:
    """Show what was found; `region` says what the vector of a part of the query was made of."""
    caption = _how(collection, found) + (f"; the query is {region}" if region else "")
    if found.left_out:
        caption += f"; left out as the query itself: {few(found.left_out)}"

    def draw() -> Image:
        tiles = [match_tile(collection, match) for match in found.matches]
        return contact_sheet(f"Nearest to {name}", _subtitle(collection, found), query_tile(name, query), tiles)

    return View(
        title=f"Nearest to {name}",
        columns=("", "cosine", "pixels", "id"),
        rows=_ranked(found.matches),
        align="rrlw",
        caption=caption,
        draw=draw,
    )


def outliers_view(collection: Collection, found: Outliers) -> View:
    title = f"Furthest from their {found.neighbours} nearest images"
    return View(
        title=title,
        columns=("", "mean cosine", "pixels", "id"),
        rows=_ranked(found.matches),
        align="rrlw",
        caption=_how(collection, found),
        draw=lambda: row_sheet(title, _subtitle(collection, found), outlier_tiles(collection, found.matches)),
    )


def duplicates_view(collection: Collection, found: Duplicates, top: int) -> View:
    groups, images = found.groups[:top], sum(map(len, found.groups))
    title = f"Near duplicates, cosine at least {found.threshold:g}"
    counts = f"{len(found.groups):,} groups with {images:,} images"
    if len(groups) < len(found.groups):
        counts += f", of which {len(groups):,} are shown"

    def draw() -> Image:
        require(len(groups) > 0, f"no two images have a cosine of {found.threshold:g}; try a lower --threshold")
        tiles = [group_tiles(collection, group) for group in groups]
        return row_sheet(title, f"{counts} · {_subtitle(collection, found)}", tiles)

    rows = [
        (str(len(group)), f"{min(each.score for each in group):.4f}", few([each.id for each in group], NAMED))
        for group in groups
    ]
    return View(
        title=title,
        columns=("images", "least cosine to the first", "ids"),
        rows=rows,
        align="rrw",
        caption=f"{counts}; {_how(collection, found)}",
        draw=draw,
    )


def _ranked(matches: Sequence[Match]) -> list[tuple[str, ...]]:
    return [
        (str(rank), f"{match.score:.4f}", f"{match.height} × {match.width}", match.id)
        for rank, match in enumerate(matches, 1)
    ]


def _how(collection: Collection, found: Found | Duplicates | Outliers) -> str:
    """Say what was compared, how, and what was not."""
    assert collection.plan is not None
    words = f"{_method(found)} over {found.searched:,} vectors of {collection.plan.weights_name}"
    if found.missing:
        words += f"; {found.missing:,} of {collection.plan.shards:,} parts are not done yet"
    return words


def _subtitle(collection: Collection, found: Found | Duplicates | Outliers) -> str:
    assert collection.plan is not None
    return f"{collection.plan.weights_name} · {_method(found)} over {found.searched:,} vectors in {collection.folder}"


def _method(found: Found | Duplicates | Outliers) -> str:
    recall = found.recall
    if recall is None:
        return "exact cosine"
    return f"index with recall@10 {recall.at_10:.3f} on {recall.queries:,} sampled queries,"
