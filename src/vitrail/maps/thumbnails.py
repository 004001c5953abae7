"""Small pictures of a collection's images, from their original files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from PIL import Image

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.decode import ImageError, decode_at_least
from vitrail.vectors.collection import Collection
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.plan import read_shard

__all__ = ["shrunk", "thumbnails"]


def thumbnails(
    collection: Collection, places: Iterable[int], side: int, tell: Callable[[int], None] = lambda done: None
) -> Iterator[tuple[int, Image.Image | None]]:
    """Yield a place and its picture, whose longer side has `side` pixels; None if the file is gone or has changed.

    The order is that of the files, which are read once; `tell` is called with the number that are done.
    """
    folder, plan = collection.folder, collection.plan
    require(folder is not None, "a table does not say where its images are; give the folder of the run")
    assert folder is not None
    assert plan is not None
    wanted = sorted(places)
    items = collection.items(wanted)
    shard, inputs, opener = -1, {}, Opener()
    for done, (place, item) in enumerate(zip(wanted, items, strict=True)):
        if item.shard != shard:
            shard, inputs = item.shard, {each.id: each for each in read_shard(folder, plan, item.shard)}
        try:
            yield place, shrunk(opener.picture(inputs[item.id]), side)
        except (ImageError, KeyError):
            yield place, None
        tell(done + 1)


def shrunk(source: Path | bytes, side: int) -> Image.Image:
    """Decode an image, and shrink it so that its longer side has at most `side` pixels."""
    pixels, size = decode_at_least(source, Size(side, side))
    picture = Image.fromarray(pixels)
    scale = min(1.0, side / max(size))
    height, width = (max(1, round(scale * length)) for length in size)
    return picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
