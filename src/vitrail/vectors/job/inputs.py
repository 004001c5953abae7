"""One image of a run: where it is stored, and what its file was when it was listed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from vitrail.remote import Location, location_of

__all__ = ["Input", "Inputs", "Place", "Source", "distinct", "id_of", "is_remote"]

Place = Literal["file", "tar", "table", "clip"]


class Input(NamedTuple):
    """One image, or a clip: its id, where it is stored, and its file's size and time when it was listed."""

    id: str
    place: Place
    file: bytes
    """The absolute path, as bytes of the file system, or the URL; of a clip, its folder."""
    start: int
    """Byte offset in a tar, or row number in a table."""
    length: int
    """Size of the tar member, in bytes; the number of a clip's frames."""
    size: int
    """Size of the file; −1 if it did not exist, or for a URL in a list, which is not asked about."""
    modified: int
    """Modification time of the file, in nanoseconds; for a URL, a number that changes with its ETag."""
    content: str = ""
    """Hash of the image's bytes, if changes are to be found by content."""
    stamp: int = 0
    """Hash by which an input is known to be the same in a later listing (see `vitrail.vectors.job.listing`)."""


class Source(NamedTuple):
    """A file that was listed."""

    name: str
    """Path relative to the input."""
    file: bytes
    size: int
    modified: int

    @property
    def location(self) -> Location:
        return location_of(self.file.decode()) if not self.file.startswith(b"/") else Path(os.fsdecode(self.file))


@dataclass
class Inputs:
    """An iterable of inputs that also counts what it skipped."""

    each: Iterator[Input]
    repeated: int = 0
    """Repeated lines of a list."""
    unread: int = 0
    """Tables and tars beside a folder's images, which are not read."""
    unasked: int = 0
    """URLs of a list, whose size and version are not asked for."""

    def __iter__(self) -> Iterator[Input]:
        return self.each


def is_remote(item: Input) -> bool:
    return not item.file.startswith(b"/")


def id_of(name: str) -> str:
    return name if name.isascii() else name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def distinct(inputs: Iterable[Input], *, all_names: bool = False) -> Iterator[Input]:
    """Number repeated ids. Paths repeat only if they have a backslash, with which non-UTF-8 bytes are written."""
    seen: dict[str, int] = {}
    for each in inputs:
        if all_names or "\\" in each.id:
            seen[each.id] = times = seen.get(each.id, 0) + 1
            if times > 1:
                each = each._replace(id=f"{each.id}#{times}")
        yield each
