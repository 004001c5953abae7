"""A file or folder that is named by a URL, with the part of pathlib's interface that jobs use.

Most code takes either kind of place (`Location`). Bytes are read by ranges; nothing is copied to disk. A write is one
PUT, which an object store makes visible whole or not at all, and with `replace=False` a conditional one, of which
exactly one succeeds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from vitrail.errors import require
from vitrail.remote.range_file import RangeFile
from vitrail.remote.requests import ask, http_status

__all__ = ["Entry", "Location", "Remote", "local_copy", "location_of"]

SCHEMES = ("s3", "gs", "hf", "hdfs", "http", "https")
WRITABLE = ("s3", "gs")
"""Stores with a conditional PUT, by which two runs at one moment are told apart."""
UNKNOWN = 2**25
"""Bytes that a read of unknown length is given time for."""


class Entry(NamedTuple):
    """A file or folder of a listing."""

    name: str
    is_folder: bool
    size: int
    version: int
    """A number that changes with the content: made of the ETag, or of what the store has in its place."""


@dataclass(frozen=True)
class Remote:
    """A file or folder that is named by a URL.

    >>> place = Remote("s3://bucket/vectors") / "part-00000.parquet"
    >>> str(place), place.name, place.suffix
    ('s3://bucket/vectors/part-00000.parquet', 'part-00000.parquet', '.parquet')
    """

    url: str

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def name(self) -> str:
        path = urlsplit(self.url).path if self.scheme.startswith("http") else self.url
        return path.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> Remote:
        return Remote(self.url.rstrip("/").rpartition("/")[0])

    def with_suffix(self, suffix: str) -> Remote:
        return self.with_name(f"{Path(self.name).stem}{suffix}")

    def with_name(self, name: str) -> Remote:
        return self.parent / name

    def absolute(self) -> Remote:
        return self

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def exists(self) -> bool:
        try:
            self.entry()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        if self.scheme.startswith("http"):
            return False
        try:
            return self.entry().is_folder
        except FileNotFoundError:
            return False

    def entry(self) -> Entry:
        """Ask for the size and the version."""
        return _entry(ask(self.url, "info", length=0))

    def entries(self) -> list[Entry]:
        """List a folder, by name."""
        listed = ask(self.url, "ls", detail=True, length=UNKNOWN)
        own = self.url.partition("://")[2].strip("/")  # an object of the folder's own name, which consoles create
        return sorted(_entry(each) for each in listed if each["name"].strip("/") != own)

    def names(self, prefix: str = "") -> list[str]:
        """List the names in a folder that begin with a prefix; none if there is no such folder."""
        try:
            return [each.name for each in self.entries() if each.name.startswith(prefix)]
        except FileNotFoundError:
            return []

    def read_bytes(self, start: int = 0, length: int | None = None) -> bytes:
        """Read the file, or a range of it, in one request."""
        if length is None:
            return ask(self.url, "cat_file", length=UNKNOWN)
        return ask(self.url, "cat_file", start=start, end=start + length, length=length) if length else b""

    def open(self, *, block: int = 0) -> RangeFile:
        """Open the file for reads at any place; with `block`, at least as many bytes are read at a time."""
        return RangeFile(self, self.entry().size, block)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check_writable(self) -> None:
        require(
            self.scheme in WRITABLE,
            f"{self} cannot be written: outputs go to a folder, s3:// or gs://, whose commits are atomic; choose one",
        )

    def write(self, data: bytes, *, replace: bool = True) -> bool:
        """Write the file whole, or with `replace=False` keep one that exists; return whether it was written."""
        self.check_writable()
        tries = 0

        def put(call: Callable[..., Any], path: str) -> bool:
            nonlocal tries
            tries += 1
            try:
                call(path, data, mode="overwrite" if replace else "create")
            except FileExistsError:
                # after a lost answer the file may be our own
                return tries > 1 and self.read_bytes() == data
            except OSError as error:
                if replace or http_status(error) != 412:
                    raise
                return tries > 1 and self.read_bytes() == data
            return True

        return ask(self.url, "pipe_file", length=len(data), use=put)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            ask(self.url, "rm_file", length=0)
        except FileNotFoundError:
            if not missing_ok:
                raise


Location = Path | Remote


def location_of(place: str | Path | Remote) -> Location:
    """Return the path or the URL that a text names; a scheme that is not read is refused.

    >>> location_of("photos").name, location_of("s3://bucket/photos").name
    ('photos', 'photos')
    """
    if not isinstance(place, str):
        return place
    scheme, mark, rest = place.partition("://")
    if not mark or "/" in scheme:
        return Path(place)
    require(
        scheme in SCHEMES and bool(rest.strip("/")),
        f"{place!r} is not a URL that is read; give a path or one of {', '.join(f'{each}://…' for each in SCHEMES)}",
    )
    return Remote(place if scheme.startswith("http") else place.rstrip("/"))


@contextmanager
def local_copy(place: Location) -> Iterator[Path]:
    """Give a path at which the file can be mapped: its own, or that of a temporary copy."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.NamedTemporaryFile(prefix="vitrail-", suffix=place.suffix) as file:
        file.write(place.read_bytes())
        file.flush()
        yield Path(file.name)


def _entry(info: dict[str, Any]) -> Entry:
    fields = ("ETag", "etag", "generation", "blob_id", "mtime", "LastModified", "last_modified", "Last-Modified")
    token = next((str(info[field]).strip('"') for field in fields if info.get(field)), "")
    version = int.from_bytes(blake2b(token.encode(), digest_size=8).digest()) >> 1
    name = info["name"].rstrip("/").rpartition("/")[2]
    return Entry(name, info["type"] == "directory", int(info.get("size") or 0), version)
