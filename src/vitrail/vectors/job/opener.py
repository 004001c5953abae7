"""Open an input for decoding; refuse it if its file changed since the plan was made."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vitrail.data.parquet import open_table
from vitrail.images.decode import ImageError
from vitrail.remote import Location, Remote, RemoteError
from vitrail.vectors.job.clips import facts_of_frames, frames_of
from vitrail.vectors.job.containers import image_column
from vitrail.vectors.job.inputs import Input, is_remote

__all__ = ["Opener"]

AHEAD = 8
"""Images that are read from a store while earlier ones are decoded."""


class Opener:
    """Give each input as a path or as bytes, and a clip as the paths of its frames.

    The latest row group of a table is cached: neighbours in a shard are neighbours in the file. `ahead` are the inputs
    that will be asked for, in order: those of a store are read before they are.
    """

    def __init__(self, ahead: Iterable[Input] = ()) -> None:
        self.coming = deque(each for each in ahead if is_remote(each) and each.place != "table")
        self.readers = ThreadPoolExecutor(AHEAD) if self.coming else None
        self.reads: dict[Input, Future[bytes]] = {}
        self.versions: dict[bytes, tuple[int, int]] = {}
        self.table: Any = None
        self.path = b""
        self.column = ""
        self.group, self.first, self.last = None, 0, 0

    def __call__(self, item: Input) -> Path | bytes | list[Path]:
        if is_remote(item):
            return self._from_store(item)
        if item.place == "clip":
            return _frames(item)
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

    def picture(self, item: Input) -> Path | bytes:
        """Give an image of an input: itself, or the frame in the middle of a clip."""
        found = self(item)
        return found[len(found) // 2] if isinstance(found, list) else found

    # ── stores ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _from_store(self, item: Input) -> bytes:
        while self.readers is not None and self.coming and len(self.reads) < AHEAD:
            soon = self.coming.popleft()
            self.reads[soon] = self.readers.submit(self._read, soon)
        begun = self.reads.pop(item, None)
        return self._read(item) if begun is None else begun.result()

    def _read(self, item: Input) -> bytes:
        """Read an image of a store. A missing one is its row's failure; a store that does not answer ends the run."""
        place = Remote(item.file.decode(errors="surrogateescape"))
        try:
            if item.size >= 0:
                self._check_version(item, place)
            if item.place == "table":
                return self._row(item, place)
            if item.place == "tar":
                return place.read_bytes(item.start, item.length)
            return place.read_bytes(0, item.size) if item.size >= 0 else place.read_bytes()
        except FileNotFoundError:
            reason = "gone since the plan was made" if item.size >= 0 else "check its URL"
            raise ImageError(f"{item.id}: cannot be read (not found), {reason}") from None
        except RemoteError as error:
            if not place.scheme.startswith("http"):
                raise
            reason = str(error).removeprefix(f"{place} ").partition(";")[0]  # a list's URLs are of many hosts
            raise ImageError(f"{item.id}: {reason}") from None

    def _check_version(self, item: Input, place: Remote) -> None:
        held = self.versions.get(item.file)
        if held is None:
            entry = place.entry()
            held = self.versions[item.file] = entry.size, entry.version
        _compare(item, *held, "its ETag")

    # ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _row(self, item: Input, path: Location) -> bytes:
        if self.path != item.file:
            self.table, self.path, self.group = open_table(path), item.file, None
            self.column = image_column(self.table, path)
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


def _frames(item: Input) -> list[Path]:
    try:
        frames = frames_of(Path(os.fsdecode(item.file)))
        count, size, modified = facts_of_frames(frames)
    except OSError as error:
        raise ImageError(f"{item.id}: cannot be read ({error.strerror}), gone since the plan was made") from None
    if count != item.length:
        raise ImageError(f"{item.id}: changed since the plan was made (its frames); run the same command again")
    _compare(item, size, modified, "its time")
    return frames


def _check_unchanged(item: Input) -> None:
    try:
        status = os.stat(item.file)
    except OSError as error:
        raise ImageError(f"{item.id}: cannot be read ({error.strerror}), gone since the plan was made") from None
    _compare(item, status.st_size, status.st_mtime_ns, "its time")


def _compare(item: Input, size: int, modified: int, version: str) -> None:
    if (size, modified) != (item.size, item.modified):
        what = "its size" if size != item.size else version
        raise ImageError(f"{item.id}: changed since the plan was made ({what}); run the same command again")
