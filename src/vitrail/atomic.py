"""Atomic writes: a file or folder appears complete or not at all.

Data is written to a temporary name in the same folder, flushed to disk and then renamed. If anything interrupts the
write, the previous file is unchanged. A writer keeps its temporary file locked while it runs, so an unlocked one was
left by a killed process, and the next write of the same name removes it. A URL's file is written by one PUT, which has
the same effect and leaves nothing behind.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitrail.errors import VitrailError, require
from vitrail.lock import lock
from vitrail.remote import Location, Remote

__all__ = ["flush", "sweep", "temporary_folder", "write_file", "write_json_file"]


def write_file(path: Location, write: Callable[[BinaryIO], Any], *, replace: bool = True) -> bool:
    """Write a file atomically: a reader sees the old or the new content, never a part. Return whether it was written.

    With `replace=False` an existing file is kept, even one that appears during the write.
    """
    if isinstance(path, Remote):
        buffer = io.BytesIO()
        write(buffer)
        return path.write(buffer.getvalue(), replace=replace)
    try:
        with _temporary(path, lambda temporary: temporary.touch(exist_ok=False)) as temporary:
            with temporary.open("r+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            elif not _link(temporary, path):
                return False
            flush(path.parent)
    except OSError as error:
        raise VitrailError(
            f"{path} was not written ({error.strerror or error}) and any previous file is unchanged; free some space "
            "or choose another path"
        ) from None
    return True


def write_json_file(path: Location, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
    write_file(path, lambda file: file.write(text))


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, which the caller renames to `path`; otherwise it is removed at the end."""
    with _temporary(path, Path.mkdir) as temporary:
        yield temporary


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Location, name: str | None = None) -> None:
    """Remove the temporary files that killed processes left for a name, or for every name in the folder."""
    if isinstance(folder, Remote):
        return
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{8}}\.part", re.DOTALL)
    with os.scandir(folder) as entries:
        temporaries = [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]
    for path in temporaries:
        with suppress(OSError):  # already gone, or the disk has no locks, so its owner may still be running
            _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    descriptor = _lock(path)
    if descriptor is not None:
        try:
            _remove(path)
        finally:
            os.close(descriptor)


@contextmanager
def _temporary(path: Path, make: Callable[[Path], Any]) -> Iterator[Path]:
    """Create a locked temporary for `path`, and remove it at the end if it was not renamed."""
    require(bool(path.name) and "\0" not in str(path), f"{str(path)!r} is not a file name; choose another")
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    temporary, descriptor = _create_locked(path, make)
    try:
        yield temporary
    finally:
        _remove(temporary)
        if descriptor is not None:
            os.close(descriptor)


def _create_locked(path: Path, make: Callable[[Path], Any]) -> tuple[Path, int | None]:
    """Create a temporary; return it and its lock's descriptor, or None on a disk without locks, which is not swept."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        make(temporary)
        try:
            descriptor = _lock(temporary)
        except FileNotFoundError:
            continue  # another writer's sweep removed it before it was locked
        except OSError:
            return temporary, None
        if descriptor is not None:
            return temporary, descriptor


def _lock(temporary: Path) -> int | None:
    # network disks lock a file only if it is opened for writing
    return lock(temporary, os.O_RDONLY if temporary.is_dir() else os.O_RDWR)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> bool:
    """Give the file its name atomically unless the name is taken: among several writers exactly one succeeds."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True
