"""vitrail search: the nearest of the vectors that vitrail embed made, near duplicates, and outliers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vitrail.cli.options import Flag, Json, LocationOption, one
from vitrail.cli.tables import plain, show, table, write_json, written
from vitrail.errors import require
from vitrail.images.boxes import Box

if TYPE_CHECKING:
    from vitrail.vectors.collection import Collection, Watch

__all__ = ["search"]


def search(
    vectors: LocationOption,
    photo: Path | None = None,
    /,
    *,
    id_: Annotated[str | None, Parameter(name="--id")] = None,
    near_duplicates: Flag = False,
    outliers: Flag = False,
    threshold: float | None = None,
    top: int = 12,
    with_itself: Flag = False,
    exact: Flag = False,
    box: Annotated[Box | None, one(Box.of)] = None,
    explain: Flag = False,
    out: Path | None = None,
    weights: str | None = None,
    json: Json = False,
) -> None:
    """Find the images nearest to one, near duplicates or outliers, as a table and a contact sheet.

    Up to a million vectors, a search compares all of them, by exact cosine; beyond that it uses an index (extra
    index), and says what share of the exact ten nearest it finds. Near duplicates and outliers compare all pairs of
    up to 100,000 vectors.

    Parameters
    ----------
    vectors
        Folder that vitrail embed wrote, finished or not; a path, s3:// or gs://.
    photo
        Image to search for, which is embedded as the others were (default: none; give --id).
    id_
        Id of an image in the folder to search for, e.g. holidays/0042.jpg (default: none; give a photo).
    near_duplicates
        Find groups of images that are nearly the same, instead of searching for one.
    outliers
        Find the images that are least like their ten nearest neighbours, instead of searching for one.
    threshold
        Least cosine of two near duplicates; what is right depends on the model (default: 0.98).
    top
        Number of images to find, or groups to show; --json has all groups.
    with_itself
        Also find the query itself and exact copies of its file, which are left out otherwise.
    exact
        Compare every vector, however many there are.
    box
        Region of the query to search for, TOP,LEFT,HEIGHT,WIDTH in its pixels, e.g. 10,20,64,80: its tokens are pooled
        as the model pools all of them, or, if its vector is a CLS token, the region is embedded alone (default: all).
    explain
        Show why each hit is alike: the part of every patch in the score, on the contact sheet and in --json.
    out
        PNG file to draw a contact sheet into (default: none).
    weights
        The weights that the folder was embedded with, if they have moved (default: where they were).
    """
    asked = (photo is not None, id_ is not None, near_duplicates, outliers)
    require(sum(asked) == 1, "give one of an image file, --id ID, --near-duplicates and --outliers to search for")
    require(threshold is None or near_duplicates, "--threshold is for --near-duplicates; give both")
    require(
        not (near_duplicates or outliers) or not (explain or box),
        "--explain and --box are for the images nearest to one; give an image file or --id",
    )
    require(not explain or out is not None or json, "--explain draws into a contact sheet; give --out or --json")
    require(top > 0, f"--top {top} is not positive; give 1 or more")
    from vitrail.atomic import write_file
    from vitrail.charts.raster import encode_png
    from vitrail.charts.sheet import check_path
    from vitrail.cli.progress import working
    from vitrail.vectors.job.part_files import require_arrow
    from vitrail.vectors.search import collection_of

    require_arrow()
    if out is not None:
        check_path(out, (".png",))
    with working("reading the vectors") as tell:

        def watch(words: str, done: int, total: int) -> None:
            tell(words, done, total)

        collection = collection_of(vectors, watch)
        if near_duplicates:
            found, view = _duplicates(collection, 0.98 if threshold is None else threshold, top, exact, watch)
        elif outliers:
            found, view = _outliers(collection, top, exact, watch)
        else:
            query = photo if photo is not None else id_ or ""
            found, view = _nearest(collection, query, top, with_itself, exact, weights, box, explain, watch)
    if json:
        write_json(found)
    else:
        show(table(view.title, view.columns, view.rows, view.align, caption=view.caption))
    if out is not None:
        drawn = encode_png(view.draw())
        write_file(out, lambda file: file.write(drawn))
        if not json:
            written(out)


def _nearest(
    collection: Collection,
    query: Path | str,
    top: int,
    with_itself: bool,
    exact: bool,
    weights: str | None,
    box: Box | None,
    explain: bool,
    watch: Watch,
) -> tuple[Any, Any]:
    """Search for an image file, or for the id of an image that has a vector."""
    from vitrail.cli.search_view import nearest_view
    from vitrail.vectors.search import embed_query, nearest, stored

    if isinstance(query, Path):
        name, itself, source, vector = query.name, query, lambda: query, None
    else:
        vector, item = stored(collection, query)
        name, itself, source = query, item, lambda: collection.original(item)
    watch(f"embedding {name}", 0, 1)
    seen = None
    if box is not None or explain:
        from vitrail.cli.search_explain import Query

        seen = Query(collection, source(), box, weights)
    if seen is not None and box is not None:
        name, itself, vector = f"{name} at {box}", None, seen.vector  # a region is not its image
    elif vector is None:
        vector = embed_query(collection, query, weights=weights)
    found = nearest(
        collection, vector, top, leave_out=None if with_itself else itself, exact=exact or None, watch=watch
    )
    view = nearest_view(collection, found, name, source, "" if seen is None else seen.region)
    if seen is None or not explain:
        return found, view
    explained = seen.explain(found, watch)
    drawn = replace(view, draw=lambda: seen.draw(explained, view.title, name, source))
    return {**plain(found), "explained": [each.plain() for each in explained]}, drawn


def _duplicates(collection: Collection, threshold: float, top: int, exact: bool, watch: Watch) -> tuple[Any, Any]:
    from vitrail.cli.search_view import duplicates_view
    from vitrail.vectors.duplicates import find_duplicates

    found = find_duplicates(collection, threshold, exact=exact or None, watch=watch)
    return found, duplicates_view(collection, found, top)


def _outliers(collection: Collection, top: int, exact: bool, watch: Watch) -> tuple[Any, Any]:
    from vitrail.cli.search_view import outliers_view
    from vitrail.vectors.outliers import find_outliers

    found = find_outliers(collection, top, exact=exact or None, watch=watch)
    return found, outliers_view(collection, found)
