"""vitrail search: the nearest of the vectors that vitrail embed made."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import Flag, Json
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require

__all__ = ["search"]


def search(
    vectors: Path,
    photo: Path | None = None,
    /,
    *,
    id_: Annotated[str | None, Parameter(name="--id")] = None,
    top: int = 12,
    with_itself: Flag = False,
    out: Path | None = None,
    weights: str | None = None,
    json: Json = False,
) -> None:
    """Find the images nearest to one, by exact cosine, as a table and a contact sheet.

    Parameters
    ----------
    vectors
        Folder that vitrail embed wrote, finished or not.
    photo
        Image to search for, which is embedded as the others were (default: none; give --id).
    id_
        Id of an image in the folder to search for, e.g. holidays/0042.jpg (default: none; give a photo).
    top
        Number of images to find.
    with_itself
        Also find the query itself and exact copies of its file, which are left out otherwise.
    out
        PNG file to draw a contact sheet into (default: none).
    weights
        The weights that the folder was embedded with, if they have moved (default: where they were).
    """
    require((photo is None) != (id_ is None), "give either an image file or --id ID to search for")
    from vitrail.atomic import write_file
    from vitrail.charts.contact_sheet import contact_sheet
    from vitrail.charts.raster import encode_png
    from vitrail.charts.sheet import check_path
    from vitrail.checkpoint.assess.describe import few
    from vitrail.cli.progress import working
    from vitrail.vectors.found import match_tile, query_tile
    from vitrail.vectors.job.part_files import require_arrow
    from vitrail.vectors.job.plan import read_plan
    from vitrail.vectors.search import embed_query, nearest, original, stored

    require_arrow()
    if out is not None:
        check_path(out, (".png",))
    plan = read_plan(vectors)
    if photo is not None:
        name = photo.name
        with working(f"embedding {name}"):
            query = embed_query(vectors, plan, photo, weights=weights)
        itself, first = photo, partial(Path, photo)
    else:
        name = id_ or ""
        query, itself = stored(vectors, plan, name)
        first = partial(original, vectors, plan, itself)
    found = nearest(vectors, plan, query, top, leave_out=None if with_itself else itself)
    if json:
        write_json(found)
    else:
        rows = [
            (str(rank), f"{match.score:.4f}", f"{match.height} × {match.width}", match.id)
            for rank, match in enumerate(found.matches, 1)
        ]
        unfinished = f"; {found.missing:,} of {plan.shards:,} parts are not done yet" if found.missing else ""
        caption = f"exact cosine over {found.searched:,} vectors of {plan.weights_name}{unfinished}"
        if found.left_out:
            caption += f"; left out as the query itself: {few(found.left_out)}"
        show(table(f"Nearest to {name}", ("", "cosine", "pixels", "id"), rows, "rrlw", caption=caption))
    if out is not None:
        subtitle = f"{plan.weights_name} · exact cosine over {found.searched:,} vectors in {vectors}"
        tiles = [match_tile(vectors, plan, match) for match in found.matches]
        drawn = encode_png(contact_sheet(f"Nearest to {name}", subtitle, query_tile(name, first), tiles))
        write_file(out, lambda file: file.write(drawn))
        if not json:
            written(out)
