"""List what there is to embed: a path → inputs in a fixed order, each with a unique id.

    a folder    every image below it, in the order of the paths; if it has none, its Parquet tables or its tars
    .txt        a path per line, relative to the list's own folder; repeated lines count once
    .parquet    an image per row: a column of bytes, or of {bytes, path}
    .tar        an image per member, not compressed
    an image    one input

Files are chosen by name, as in `vitrail.images.folder`: hidden files are skipped, links to folders are not followed,
and a dangling link is an input that will fail. An id is the path relative to the input, with / between its parts,
followed by the member of a tar (a.tar/cat.jpg) or the row of a table (a.parquet#7). Bytes that are not UTF-8 are
written \\xff. If two inputs would have the same id, the later one ends in #2.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitrail.data.parquet import IMAGES, open_table
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.images.folder import SUFFIXES

__all__ = ["Input", "Inputs", "Opener", "Place", "find_inputs"]

Place = Literal["file", "tar", "table"]
KNOWN = SUFFIXES | {".parquet", ".tar"}


class Input(NamedTuple):
    """One image: its id, where it is stored, and its file's size and time when it was listed."""

    id: str
    place: Place
    file: bytes
    """The path, as bytes of the file system."""
    start: int
    """Byte offset in a tar, or row number in a table."""
    length: int
    """Size of the tar member, in bytes."""
    size: int
    """Size of the file; −1 if it did not exist."""
    modified: int
    """Modification time of the file, in nanoseconds."""


@dataclass
class Inputs:
    """An iterable of inputs that also counts what it skipped."""

    each: Iterator[Input]
    repeated: int = 0
    """Repeated lines of a list."""
    unread: int = 0
    """Tables and tars beside a folder's images, which are not read."""

    def __iter__(self) -> Iterator[Input]:
        return self.each


def find_inputs(path: Path) -> Inputs:
    """Return the inputs of a path; files are opened lazily, while iterating."""
    require(path.exists(), f"{path} does not exist; give a folder, a list (.txt), a .parquet, a .tar or an image")
    if path.is_dir():
        return _folder(path)
    match path.suffix.lower():
        case ".txt":
            return _list(path)
        case ".parquet":
            return Inputs(_table(path, path.name))
        case ".tar":
            return Inputs(_tar(path, path.name))
        case suffix if suffix in SUFFIXES:
            return Inputs(iter([_file(os.fsencode(path), path.name)]))
    raise VitrailError(f"{path} is not a folder, a list (.txt), a .parquet, a .tar or an image; give one of these")


def _file(path: bytes, name: str) -> Input:
    try:
        status = os.stat(path)
    except OSError:
        return Input(_id(name), "file", path, -1, -1, -1, -1)
    return Input(_id(name), "file", path, -1, -1, status.st_size, status.st_mtime_ns)


def _id(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _distinct(inputs: Iterable[Input], *, all_names: bool = False) -> Iterator[Input]:
    """Number repeated ids. Paths repeat only if they have a backslash, with which non-UTF-8 bytes are written."""
    seen: dict[str, int] = {}
    for each in inputs:
        if all_names or "\\" in each.id:
            seen[each.id] = times = seen.get(each.id, 0) + 1
            if times > 1:
                each = each._replace(id=f"{each.id}#{times}")
        yield each


# ── folders and lists ───────────────────────────────────────────────────────────────────────────────────────────


def _folder(root: Path) -> Inputs:
    found = Inputs(iter(()))

    def images() -> Iterator[Input]:
        containers: list[str] = []
        empty = True
        for name in _names(root):
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                empty = False
                yield _file(os.fsencode(root / name), name)
            else:
                containers.append(name)
        if not empty:
            found.unread = len(containers)
            return
        endings = {os.path.splitext(name)[1].lower() for name in containers}
        require(len(endings) > 0, f"{root} holds no images; use files ending in {', '.join(sorted(SUFFIXES))}")
        require(len(endings) == 1, f"{root} holds both tables and tars; give a folder with one kind, or one file")
        for name in containers:
            yield from (_table if endings == {".parquet"} else _tar)(root / name, name)

    found.each = _distinct(images())
    return found


def _names(root: Path, below: str = "") -> Iterator[str]:
    """Yield the images, tables and tars below a folder, relative to it, sorted by path components."""
    try:
        with os.scandir(root / below) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise VitrailError(
            f"{root / below} cannot be listed ({error.strerror}), and its images would be skipped; give access to it"
        ) from None
    for entry in listed:
        name = f"{below}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _names(root, f"{name}/")
        elif os.path.splitext(entry.name)[1].lower() in KNOWN and (
            entry.is_file() or (entry.is_symlink() and not entry.is_dir())
        ):
            yield name


def _list(path: Path) -> Inputs:
    found = Inputs(iter(()))

    def lines() -> Iterator[Input]:
        seen: set[bytes] = set()
        try:
            with path.open("rb") as file:
                for line in file:
                    name = line.rstrip(b"\r\n")
                    if name in seen:
                        found.repeated += 1
                    elif name.strip():
                        seen.add(name)
                        yield _file(os.fsencode(path.parent / os.fsdecode(name)), os.fsdecode(name))
        except OSError as error:
            raise VitrailError(f"{path} cannot be read ({error.strerror}); check the path") from None
        require(len(seen) > 0, f"{path} is empty; write a path on each line")

    found.each = _distinct(lines())
    return found


# ── images inside other files ───────────────────────────────────────────────────────────────────────────────────


def _tar(path: Path, name: str) -> Iterator[Input]:
    def members() -> Iterator[Input]:
        raw, status = os.fsencode(path), path.stat()
        try:
            with tarfile.open(path, mode="r:") as archive:
                for member in archive:
                    last = member.name.rpartition("/")[2]
                    if not member.isfile() or last.startswith(".") or os.path.splitext(last)[1].lower() not in SUFFIXES:
                        continue
                    where = (member.offset_data, member.size, status.st_size, status.st_mtime_ns)
                    yield Input(_id(f"{name}/{member.name}"), "tar", raw, *where)
                    archive.members = []  # type: ignore[assignment] — an archive of millions must not be kept in memory
        except (tarfile.TarError, OSError) as error:
            raise VitrailError(f"{path} is not a readable tar ({error}); if it is compressed, uncompress it") from None

    return _distinct(members(), all_names=True)


def _table(path: Path, name: str) -> Iterator[Input]:
    table, status = open_table(path), path.stat()
    _image_column(table, path)
    for row in range(table.metadata.num_rows):
        yield Input(_id(f"{name}#{row}"), "table", os.fsencode(path), row, -1, status.st_size, status.st_mtime_ns)


def _image_column(table: Any, path: Path) -> str:
    names = table.schema_arrow.names
    column = next((name for name in IMAGES if name in names), None)
    if column is None:
        raise VitrailError(f"{path} has columns {', '.join(names)}; images are sought in one named {', '.join(IMAGES)}")
    return column


# ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Opener:
    """Open an input for decoding; refuse it if its file changed since the plan was made.

    The latest row group of a table is cached: neighbours in a shard are neighbours in the file.
    """

    def __init__(self) -> None:
        self.table: Any = None
        self.path = b""
        self.column = ""
        self.group, self.first, self.last = None, 0, 0

    def __call__(self, item: Input) -> Path | bytes:
        if item.size >= 0:
            _check_unchanged(item)
        path = Path(os.fsdecode(item.file))
        if item.place == "file":
            return path
        if item.place == "tar":
            with path.open("rb") as file:
                file.seek(item.start)
                return file.read(item.length)
        return self._row(item, path)

    def _row(self, item: Input, path: Path) -> bytes:
        if self.path != item.file:
            self.table, self.path, self.group = open_table(path), item.file, None
            self.column = _image_column(self.table, path)
        if self.group is None or not self.first <= item.start < self.last:
            self.last = 0
            for number in range(self.table.num_row_groups):
                self.first, self.last = self.last, self.last + self.table.metadata.row_group(number).num_rows
                if item.start < self.last:
                    self.group = self.table.read_row_group(number, columns=[self.column]).column(0)
                    break
        assert self.group is not None
        value = self.group[item.start - self.first].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        return data if isinstance(data, bytes) else b""


def _check_unchanged(item: Input) -> None:
    try:
        status = os.stat(item.file)
    except OSError as error:
        raise ImageError(f"{item.id}: cannot be read ({error.strerror}), gone since the plan was made") from None
    if (status.st_size, status.st_mtime_ns) != (item.size, item.modified):
        what = "its size" if status.st_size != item.size else "its time"
        raise ImageError(f"{item.id}: changed since the plan was made ({what}); embed it into another folder")
