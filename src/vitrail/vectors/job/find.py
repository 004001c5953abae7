"""List what there is to embed: a path or a URL → inputs in a fixed order, each with a unique id.

    a folder    every image below it, in the order of the paths; if it has none, its Parquet tables or its tars
    .txt        a path or a URL per line, paths relative to the list's own folder; repeated lines count once
    .parquet    an image per row: a column of bytes, or of {bytes, path}
    .tar        an image per member, not compressed
    an image    one input

For a model of clips: a folder, in which every folder of frames is a clip (`vitrail.vectors.job.clips`).

Files are chosen by name, as in `vitrail.images.folder`: hidden files are skipped, links to folders are not followed,
and a dangling link is an input that will fail. An id is the path relative to the input, with / between its parts,
followed by the member of a tar (a.tar/cat.jpg) or the row of a table (a.parquet#7). Bytes that are not UTF-8 are
written \\xff. If two inputs would have the same id, the later one ends in #2. Inputs are never held in a list: a
million of them take the memory of one folder's names, or 16 bytes for each line of a list.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, require
from vitrail.images.folder import SUFFIXES
from vitrail.remote import BLOCK, Location, Remote, location_of
from vitrail.vectors.job.clips import clip_inputs, refuse_video
from vitrail.vectors.job.containers import table_inputs, tar_inputs
from vitrail.vectors.job.digests import DigestSet
from vitrail.vectors.job.inputs import Input, Inputs, Source, distinct, id_of

__all__ = ["find_inputs"]

KNOWN = SUFFIXES | {".parquet", ".tar"}
LINES = 2**14
"""Lines of a list that are compared at a time."""
AT_ONCE = 8
"""Tars or tables of a store that are listed at the same time."""


def find_inputs(path: Location, *, clips: bool = False) -> Inputs:
    """Return the inputs of a path or a URL, or its clips; files are opened lazily, while iterating."""
    kinds = "a folder, a list (.txt), a .parquet, a .tar or an image"
    path, suffix = path.absolute(), path.suffix.lower()
    if not path.is_dir():
        refuse_video(path.name if isinstance(path, Remote) else path)
    if clips:
        return _clips(path)
    web = isinstance(path, Remote) and path.scheme.startswith("http")
    if path.is_dir():
        return _folder(path)
    require(web or path.exists(), f"{path} does not exist; give {kinds}")
    match suffix:
        case ".txt":
            return _list(path)
        case ".parquet":
            return Inputs(table_inputs(_source(path, path.name)))
        case ".tar":
            return Inputs(tar_inputs(_source(path, path.name)))
        case _ if suffix in SUFFIXES:
            return Inputs(iter([_input(_source(path, path.name))]))
    raise VitrailError(f"{path} is not {kinds}; give one of these")


def _clips(root: Location) -> Inputs:
    require(
        isinstance(root, Path) and root.is_dir(),
        f"{root} is not a folder on this machine, and the model takes clips; give a folder with a folder of frames for "
        "each clip",
    )
    assert isinstance(root, Path)

    def clips() -> Iterator[Input]:
        found = False
        for each in clip_inputs(root):
            found = True
            yield each
        require(found, f"{root} holds no clips; give a folder with a folder of frames for each clip")

    return Inputs(distinct(clips()))


def _source(path: Location, name: str) -> Source:
    if isinstance(path, Remote):
        entry = path.entry()
        return Source(name, path.url.encode(), entry.size, entry.version)
    return _local(os.fspath(path), name)


def _local(path: str, name: str) -> Source:
    file = path.encode(errors="surrogateescape")
    try:
        status = os.stat(path)
    except OSError:
        return Source(name, file, -1, -1)
    return Source(name, file, status.st_size, status.st_mtime_ns)


def _input(source: Source) -> Input:
    return Input(id_of(source.name), "file", source.file, -1, -1, source.size, source.modified)


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _folder(root: Location) -> Inputs:
    found = Inputs(iter(()))

    def images() -> Iterator[Input]:
        containers: list[Source] = []
        empty = True
        for source in _below(root) if isinstance(root, Remote) else _walk(os.fspath(root)):
            if _ending(source.name) in SUFFIXES:
                empty = False
                yield _input(source)
            else:
                containers.append(source)
        if not empty:
            found.unread = len(containers)
            return
        endings = {_ending(source.name) for source in containers}
        require(len(endings) > 0, f"{root} holds no images; use files ending in {', '.join(sorted(SUFFIXES))}")
        require(len(endings) == 1, f"{root} holds both tables and tars; give a folder with one kind, or one file")
        inside = table_inputs if endings == {".parquet"} else tar_inputs
        if not isinstance(root, Remote):
            for source in containers:
                yield from inside(source)
            return
        waiting = iter(containers)
        with ThreadPoolExecutor(AT_ONCE) as readers:  # a store's answers take long, and it gives many at once
            while batch := list(islice(waiting, AT_ONCE)):
                for listed in readers.map(lambda source: list(inside(source)), batch):
                    yield from listed

    found.each = distinct(images())
    return found


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _walk(root: str, below: str = "") -> Iterator[Source]:
    """Yield the images, tables and tars below a folder, sorted by path components."""
    folder = os.path.join(root, below)
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise VitrailError(
            f"{folder} cannot be listed ({error.strerror}), and its images would be skipped; give access to it"
        ) from None
    for entry in listed:
        name = f"{below}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, f"{name}/")
        elif _ending(entry.name) in KNOWN and (entry.is_file() or (entry.is_symlink() and not entry.is_dir())):
            yield _local(f"{root}/{name}", name)


def _below(root: Remote, below: str = "") -> Iterator[Source]:
    """Yield the images, tables and tars of a store below a URL; one folder's listing is in memory at a time."""
    for entry in (root / below.rstrip("/") if below else root).entries():
        name = f"{below}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_folder:
            yield from _below(root, f"{name}/")
        elif _ending(entry.name) in KNOWN:
            yield Source(name, (root / name).url.encode(), entry.size, entry.version)


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _list(path: Location) -> Inputs:
    found = Inputs(iter(()))

    def lines() -> Iterator[Input]:
        seen, parent = DigestSet(), path.parent if isinstance(path, Remote) else os.fspath(path.parent)
        try:
            with _open_list(path) as file:
                while batch := list(islice(file, LINES)):
                    names = [name for line in batch if (name := line.rstrip(b"\r\n")).strip()]
                    for name, new in zip(names, seen.add(names).tolist(), strict=True):
                        if not new:
                            found.repeated += 1
                            continue
                        listed = _listed(parent, os.fsdecode(name))
                        found.unasked += not listed.file.startswith(b"/")
                        yield _input(listed)
        except OSError as error:
            raise VitrailError(f"{path} cannot be read ({error.strerror or error}); check the path") from None
        require(len(seen) > 0, f"{path} is empty; write a path or a URL on each line")

    found.each = distinct(lines())
    return found


def _open_list(path: Location) -> Any:
    if isinstance(path, Path):
        return path.open("rb")
    if path.scheme.startswith("http"):  # some servers tell no length, or no ranges
        return io.BytesIO(path.read_bytes())
    return io.BufferedReader(path.open(block=BLOCK), BLOCK)


def _listed(parent: str | Remote, name: str) -> Source:
    if "://" in name:
        location = location_of(name)
        if isinstance(location, Remote):
            return Source(name, location.url.encode(errors="surrogateescape"), -1, -1)
    if isinstance(parent, Remote):
        return Source(name, (parent / name).url.encode(errors="surrogateescape"), -1, -1)
    return _local(name if name.startswith("/") else f"{parent}/{name}", name)
