"""vitrail match: which patch is which in two images, and why the images are alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import Flag, Json, SizeOption, Weights
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require

if TYPE_CHECKING:
    from vitrail.look.match import ImageMatch

__all__ = ["match"]

NAMED = 10
"""Pairs that the table names."""


def match(
    first: Path,
    second: Path,
    /,
    *,
    weights: Weights = "default",
    image: SizeOption | None = None,
    whole: Flag = False,
    layer: int | None = None,
    lines: int = 60,
    out: Path | None = None,
    json: Json = False,
) -> None:
    """Match the patches of two images, and show why the images are alike.

    The parts of the score add up to it exactly. If the model does not pool the mean of its patches, they are those of
    the mean patch tokens' cosine, which is shown beside the cosine of the vectors.

    Parameters
    ----------
    first
        First image.
    second
        Second image, of any size.
    image
        Image size that the model takes, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: its own).
    whole
        Keep the shape of each image, with about as many pixels as --image, instead of cropping its centre.
    layer
        Layer whose tokens are compared, from 0; -1 is the last (default: the model's features).
    lines
        Number of best buddies to draw: pairs of patches that are each other's nearest.
    out
        File to draw into: .png, .svg or .pdf (default: none).
    """
    require(lines >= 1, f"--lines {lines} is not positive; give 1 or more")
    from vitrail.cli.progress import working

    if out is not None:
        from vitrail.charts.sheet import check_drawing

        check_drawing(out)
    with working("reading the weights") as tell:
        from vitrail.checkpoint.read import load
        from vitrail.checkpoint.sources.names import short_name
        from vitrail.look.match import Viewer, match_seen

        viewer = Viewer(load(weights), short_name(weights), image=image, whole=whole)
        seen = []
        for number, path in enumerate((first, second)):
            tell(f"looking at {path.name}", number, 2)
            seen.append(viewer.see(path))
        found = match_seen(seen[0], seen[1], layer)
        if out is not None:
            from vitrail.look.views.match import view_match

            tell(f"drawing {out.name}", 2, 2)
            view_match(found, names=(first.name, second.name), lines=lines).save(out)
    if json:
        write_json(_plain(found))
    else:
        _show(found, first.name, second.name)
    if out is not None and not json:
        written(out)


def _plain(found: ImageMatch) -> dict[str, Any]:
    """Return the match as JSON: parts by patch, and best buddies with their places in pixels of the images."""
    alike = found.likeness
    both = zip((found.first, found.second), found.layouts, (alike.first, alike.second), strict=True)
    sides = [
        {"image": side.original, "seen": side.subject.photo.seen, "grid": layout.grid, "parts": parts.tolist()}
        for side, layout, parts in both
    ]
    return {
        "score": alike.score,
        "prefix": alike.prefix,
        "vectors": alike.vectors,
        "approximation": alike.approximation,
        "first": sides[0],
        "second": sides[1],
        "buddies": [
            {"first": one, "second": other, "cosine": cosine, "first_pixel": place, "second_pixel": other_place}
            for (one, other), cosine, place, other_place in _buddies(found)
        ],
    }


def _buddies(found: ImageMatch) -> list[tuple[list[int], float, tuple[float, float], tuple[float, float]]]:
    pairs, cosines = found.buddies.pairs.tolist(), found.buddies.cosines.tolist()
    one, other = found.layouts
    return [
        (pair, cosine, found.first.place(one, pair[0]), found.second.place(other, pair[1]))
        for pair, cosine in zip(pairs, cosines, strict=True)
    ]


def _show(found: ImageMatch, first: str, second: str) -> None:
    alike, buddies = found.likeness, _buddies(found)
    grids = " and ".join(str(layout.grid) for layout in found.layouts)
    rows = [
        (f"{cosine:.4f}", f"{place[0]:.0f}, {place[1]:.0f}", f"{other[0]:.0f}, {other[1]:.0f}")
        for _, cosine, place, other in buddies[:NAMED]
    ]
    show(
        table(
            "",
            ("", "cosine", "what it is"),
            [
                ("score", f"{alike.score:.4f}", "what the parts of the patches add up to"),
                ("vectors", f"{alike.vectors:.4f}", "the cosine that vitrail search compares"),
            ],
            "lrw",
            caption=alike.approximation and f"approximation: {alike.approximation}",
        ),
        table(
            f"Best buddies of {first} and {second}",
            ("cosine", "row, column in the first", "in the second"),
            rows,
            "rrr",
            caption=f"{len(buddies):,} pairs of {grids} patches, of which {len(rows)} are named; pixels of the images",
        ),
    )
