"""vitrail search: the nearest of the vectors that vitrail embed made."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import Flag
from vitrail.cli.tables import show, table, write_json
from vitrail.errors import require

__all__ = ["search"]


def search(
    vectors: Path,
    /,
    *,
    image: Path | None = None,
    known: Annotated[str | None, Parameter(name="--id")] = None,
    top: int = 12,
    out: Path | None = None,
    weights: Path | None = None,
    json: Flag = False,
) -> None:
    """Find the images nearest to one, by exact cosine, as a table and a contact sheet.

    Parameters
    ----------
    vectors
        A folder that vitrail embed wrote, finished or not.
    image
        The image to look for; it is embedded as the others were.
    known
        An id of the folder's own, in place of an image.
    top
        How many to find.
    out
        A contact sheet to draw: a .png.
    weights
        Where the weights are now, if not where they were.
    json
        Exact values as JSON.
    """
    require((image is None) != (known is None), "give either --image FILE or --id ID to look for")
    from vitrail.atomic import write_file
    from vitrail.charts.contact_sheet import contact_sheet
    from vitrail.charts.raster import encode_png
    from vitrail.charts.sheet import check_path
    from vitrail.embed.found import match_tile, original, query_tile
    from vitrail.embed.job.part_files import require_arrow
    from vitrail.embed.job.plan import read_plan
    from vitrail.embed.search import embed_query, nearest, stored

    require_arrow()
    if out is not None:
        check_path(out, (".png",))
    plan = read_plan(vectors)
    if image is not None:
        query, name = embed_query(vectors, plan, image, weights=weights), image.name
        first = partial(Path, image)
    else:
        name = known or ""
        query, itself = stored(vectors, plan, name)
        first = partial(original, vectors, plan, itself)
    found = nearest(vectors, plan, query, top)
    if json:
        write_json(found)
    else:
        rows = [
            (str(rank), f"{match.score:.4f}", f"{match.height} × {match.width}", match.id)
            for rank, match in enumerate(found.matches, 1)
        ]
        unfinished = f"; {found.missing:,} of {plan.shards:,} parts are not done yet" if found.missing else ""
        caption = f"exact cosine over {found.searched:,} vectors of {Path(plan.weights).name}{unfinished}"
        show(table(f"Nearest to {name}", ("", "cosine", "pixels", "id"), rows, "rrll", caption=caption))
    if out is not None:
        subtitle = f"{Path(plan.weights).name} · exact cosine over {found.searched:,} vectors in {vectors}"
        tiles = [match_tile(vectors, plan, match) for match in found.matches]
        drawn = encode_png(contact_sheet(f"Nearest to {name}", subtitle, query_tile(name, first), tiles))
        write_file(out, lambda file: file.write(drawn))
        if not json:
            show(f"sheet: {out}")
