"""Files and folders that appear whole or not at all.

Writing goes to a temporary name in the same folder, is flushed to the disk and then renamed: whatever stops it, what
was there before stays. A writer holds a lock on its temporary for as long as it lives, so a temporary that nobody holds
was left by a process that was killed, and the next write of the same name removes it.
"""

from __future__ import annotations

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

__all__ = ["flush", "sweep", "temporary_folder", "write_file", "write_json_file"]


def write_file(path: Path, write: Callable[[BinaryIO], Any], *, replace: bool = True) -> bool:
    """Write a file: a reader sees the old one or the new one, never a part. Returns whether it was written.

    With `replace=False` a file that is there already stays, and so does one that appears while this one is written.
    """
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
            f"{path} was not written ({error.strerror or error}); what was there before is untouched: make room or "
            "choose another place"
        ) from None
    return True


def write_json_file(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
    write_file(path, lambda file: file.write(text))


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, to be renamed to it; what is left of it at the end is removed."""
    with _temporary(path, Path.mkdir) as temporary:
        yield temporary


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove the temporaries of a name, or of all names in the folder, that killed processes left."""
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{8}}\.part", re.DOTALL)
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]
    for path in found:
        with suppress(OSError):  # already gone, or on a disk without locks, where nobody can tell
            _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    descriptor = _lock(path)
    if descriptor is not None:
        try:
            _remove(path)
        finally:
            os.close(descriptor)


@contextmanager
def _temporary(path: Path, make: Callable[[Path], Any]) -> Iterator[Path]:
    """Make a temporary for `path`, hold its lock, and remove it at the end if it still has its name."""
    require(bool(path.name) and "\0" not in str(path), f"{str(path)!r} is no name for a file; choose another")
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    temporary, descriptor = _made(path, make)
    try:
        yield temporary
    finally:
        _remove(temporary)
        if descriptor is not None:
            os.close(descriptor)


def _made(path: Path, make: Callable[[Path], Any]) -> tuple[Path, int | None]:
    """A new temporary and the descriptor of its lock; None on a disk without locks, where no sweep touches it."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        make(temporary)
        try:
            descriptor = _lock(temporary)
        except FileNotFoundError:
            continue  # another writer's sweep came between the making and the locking
        except OSError:
            return temporary, None
        if descriptor is not None:
            return temporary, descriptor


def _lock(temporary: Path) -> int | None:
    # network disks lock a file only for those who may write it
    return lock(temporary, os.O_RDONLY if temporary.is_dir() else os.O_RDWR)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> bool:
    """Give the file its name unless the name is taken, in one step: of several writers exactly one succeeds."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True
