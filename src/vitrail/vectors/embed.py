"""Embed images from Python (`vitrail.embed`): the job of `vitrail embed`, with its rows as a table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from vitrail.checkpoint.pixels import Image, file_of
from vitrail.errors import VitrailError, require
from vitrail.remote import Location, Remote, location_of
from vitrail.vectors.job.embed import embed_source
from vitrail.vectors.job.options import EngineOption, Options
from vitrail.vectors.job.part_files import read_part, require_arrow
from vitrail.vectors.job.run import LocalCrew, OwnProcess, Progress
from vitrail.vectors.job.worker import WorkerOptions

if TYPE_CHECKING:
    import pyarrow

__all__ = ["embed"]


def embed(
    images: str | Path | Remote | Sequence[Image] | NDArray[np.uint8],
    weights: str | Path = "default",
    *,
    out: str | Path | Remote | None = None,
    engine: EngineOption = "auto",
    dtype: Literal["float32", "float16"] = "float32",
    exact: bool = False,
    native: bool = False,
    token_budget: int | None = None,
    scales: Sequence[float] = (1.0,),
    merge: float = 0.0,
    keep_cosine: float | None = None,
    adaptive: float | None = None,
    workers: int | None = None,
    batch: int = 4,
    changed_by: Literal["time", "content"] = "time",
    drop_vanished: bool = False,
    new_version: bool = False,
    force: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> pyarrow.Table:
    """Return a table with a row per image, in order: id, status, error, height, width, vector.

    `images` is a folder, a list of paths (.txt), a .parquet, a .tar or an image file; a sequence of files, bytes,
    Pillow images and uint8 arrays; or one uint8 array (N, H, W, C). Files and folders may be URLs: s3://, gs://, hf://,
    hdfs://, https://. For a model of clips, it is a folder with a folder of frames for each clip. An image that cannot
    be read has its reason as `error` and no vector. The id of a file is its path, and of any other image in a sequence
    its number.

    `out` keeps the job in a folder, as `vitrail embed` does: the same call resumes it or embeds what is new, and
    `vitrail.search` reads it.
    The options are those of the command. By default, each core gets a worker process, which survives decoders that
    crash or hang; `workers=0` computes in this process, which starts at once and suits a few images.

    >>> from vitrail import embed, synthesize_image
    >>> table = embed([synthesize_image(seed) for seed in range(3)], "default", workers=0)
    >>> table.column("id").to_pylist(), len(table.column("vector")[0])
    (['0', '1', '2'], 96)
    """
    require_arrow()
    options = Options(
        engine=engine,
        dtype=dtype,
        exact=exact,
        native=native,
        token_budget=token_budget,
        scales=tuple(scales),
        merge=merge,
        keep_cosine=keep_cosine,
        adaptive=adaptive,
    )
    with tempfile.TemporaryDirectory(prefix="vitrail-") as temporary:
        scratch = Path(temporary)
        source, names = _source(images, scratch, kept=out is not None)
        folder = scratch / "vectors" if out is None else location_of(out)
        done = embed_source(
            source,
            weights,
            folder,
            options,
            workers=1 if workers == 0 else workers,
            worker=WorkerOptions(batch=batch),
            crew=OwnProcess if workers == 0 else LocalCrew,
            by=changed_by,
            drop_vanished=drop_vanished,
            new_version=new_version,
            force=force,
            watch=watch,
        )
        if done.tally is None:
            raise KeyboardInterrupt
        table = _read(done.folder, done.plan.shards)
    if names is None:
        return table
    rows = {name: row for row, name in enumerate(dict.fromkeys(names))}  # a repeated file is embedded once
    return table.take([rows[name] for name in names]).set_column(0, "id", [names])


def _source(images: Any, scratch: Path, *, kept: bool) -> tuple[Location, list[str] | None]:
    """Return the images as a path that a job reads; for a sequence, also the id of each."""
    if isinstance(images, str | Path | Remote):
        return location_of(images), None
    require(not kept, "out keeps a job, whose images must stay; give a folder, or a list of paths in a .txt file")
    if isinstance(images, bytes | Pillow.Image) or (isinstance(images, np.ndarray) and images.ndim < 4):
        raise VitrailError("images is one image; give a sequence: [image]")
    require(len(images) > 0, "images is empty; give at least one image")
    names = [str(image) if isinstance(image, str | Path) else str(place) for place, image in enumerate(images)]
    files = [_file(image, scratch / f"image-{place}") for place, image in enumerate(images)]
    (scratch / "images.txt").write_bytes(b"".join(os.fsencode(str(file)) + b"\n" for file in files))
    return scratch / "images.txt", names


def _file(image: Image, path: Path) -> Location:
    """Return the image's own file, or write one to `path`."""
    if isinstance(image, str | Path):
        require("\n" not in str(image), f"{str(image)!r} has a line break in its name; rename the file")
        return location_of(image).absolute()
    path.write_bytes(image if isinstance(image, bytes) else file_of(image))
    return path


def _read(folder: Location, shards: int) -> Any:
    import pyarrow as arrow

    parts = [read_part(folder, shard).replace_schema_metadata(None) for shard in range(shards)]
    return arrow.concat_tables(parts).combine_chunks()
