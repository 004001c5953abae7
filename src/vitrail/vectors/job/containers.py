"""Images inside other files: the members of a tar, the rows of a Parquet table.

A store's tar is read once from end to end, by blocks, to find where its members are; a table's footer says how many
rows it has. Neither is copied to disk.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import Any

from vitrail.data.parquet import IMAGES, open_table
from vitrail.errors import VitrailError
from vitrail.images.folder import SUFFIXES
from vitrail.remote import BLOCK, Location, Remote
from vitrail.vectors.job.inputs import Input, Source, distinct, id_of

__all__ = ["image_column", "table_inputs", "tar_inputs"]


def tar_inputs(source: Source) -> Iterator[Input]:
    path = source.location

    def members() -> Iterator[Input]:
        try:
            with _open_tar(path) as archive:
                for member in archive:
                    last = member.name.rpartition("/")[2]
                    if not member.isfile() or last.startswith(".") or os.path.splitext(last)[1].lower() not in SUFFIXES:
                        continue
                    where = (member.offset_data, member.size, source.size, source.modified)
                    yield Input(id_of(f"{source.name}/{member.name}"), "tar", source.file, *where)
                    archive.members = []  # type: ignore[assignment] — an archive of millions must not be kept in memory
        except (tarfile.TarError, OSError) as error:
            raise VitrailError(f"{path} is not a readable tar ({error}); if it is compressed, uncompress it") from None

    return distinct(members(), all_names=True)


def _open_tar(path: Location) -> tarfile.TarFile:
    if isinstance(path, Remote):
        return tarfile.open(fileobj=path.open(block=BLOCK), mode="r:")
    return tarfile.open(path, mode="r:")


def table_inputs(source: Source) -> Iterator[Input]:
    table = open_table(source.location)
    image_column(table, source.location)
    name = id_of(source.name)
    for row in range(table.metadata.num_rows):
        yield Input(f"{name}#{row}", "table", source.file, row, -1, source.size, source.modified)


def image_column(table: Any, path: Location) -> str:
    names = table.schema_arrow.names
    column = next((name for name in IMAGES if name in names), None)
    if column is None:
        raise VitrailError(f"{path} has columns {', '.join(names)}; images are sought in one named {', '.join(IMAGES)}")
    return column
