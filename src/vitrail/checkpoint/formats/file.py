"""Read tensors and the config files beside them; write tensors atomically.

Reading never runs code: safetensors, plain arrays, and pickles through torch's weights-only reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitrail.atomic import write_file
from vitrail.checkpoint.formats.archive import open_archive
from vitrail.checkpoint.formats.directory import (
    CONFIGS,
    PROCESSORS,
    SUFFIXES,
    WEIGHTS,
    is_index,
    read_json,
    shards_of,
    weight_map,
)
from vitrail.checkpoint.formats.magic import LONGEST_SIGN, UNPACK, foreign
from vitrail.checkpoint.formats.npz import read_npz, write_npz
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.checkpoint.formats.safetensors_header import DAMAGED, is_safetensors
from vitrail.checkpoint.formats.torch_file import is_torch_archive, read_torch
from vitrail.errors import VitrailError, require

__all__ = ["Stored", "open_stored", "write_tensors"]

LONGEST_NAME = 500
"""In characters; the longest names of known models have 100."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The raw contents of a weights file or directory."""

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json beside the weights; empty if there is none."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """preprocessor_config.json beside the weights; empty if there is none."""


def open_stored(path: Path) -> Stored:
    """Open a weights file, or a directory with weights and their config."""
    try:
        return _open(path)
    except OSError as error:
        reason = error.strerror or error
        raise VitrailError(f"{path} cannot be read ({reason}); check its name, and whether you may read it") from None


def _open(path: Path) -> Stored:
    require(path.exists(), f"{path} does not exist; give a weights file or a directory that holds one")
    if path.is_dir():
        return _open_directory(path)
    stored = _open_file(path)
    if path.name in WEIGHTS:  # standard names, so a config.json beside them belongs to them
        return _with_configs(stored, path.parent)
    return stored


def _open_directory(path: Path) -> Stored:
    require(
        any((path / name).is_file() for name in CONFIGS),
        f"{path} has no config.json to say what its weights are; add it, or name the weights file itself",
    )
    weights = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
    require(weights is not None, f"{path} has none of {', '.join(WEIGHTS)}; name the weights file itself")
    assert weights is not None
    return _with_configs(_open_shards(path, weights) if is_index(weights) else _open_file(weights), path)


def _open_shards(path: Path, index: Path) -> Stored:
    placed, files = weight_map(index), shards_of(index)
    tensors: dict[str, Tensor] = {}
    kind = ""
    for file in files:
        require((path / file).is_file(), f"{path} lacks {file}, one of {len(files)} shards; fetch it too")
        shard = _open_file(path / file)
        kind = shard.format
        twice = tensors.keys() & shard.tensors.keys()
        require(not twice, f"{path} holds {min(twice, default='')} in two shards; {DAMAGED}")
        tensors.update(shard.tensors)
    missing = sorted(placed.keys() - tensors.keys())
    require(not missing, f"{index} promises {', '.join(missing[:3])}, which no shard holds; fetch the shards again")
    return Stored(path=path, format=f"{kind}, {len(files)} shards", tensors=tensors)


def _with_configs(stored: Stored, directory: Path) -> Stored:
    config, processor = (
        next((read_json(directory / name) for name in names if (directory / name).is_file()), {})
        for names in (CONFIGS, PROCESSORS)
    )
    if not any((directory / name).is_file() for name in PROCESSORS[:2]):
        inside = processor.get("image_processor")
        processor = inside if isinstance(inside, dict) else {}
    return Stored(
        path=stored.path,
        format=stored.format,
        tensors=stored.tensors,
        metadata=stored.metadata,
        config=config,
        processor=processor,
    )


def _open_file(path: Path) -> Stored:
    require(path.is_file(), f"{path} is not a file; give a weights file or a directory that holds one")
    with path.open("rb") as file:
        start = file.read(LONGEST_SIGN)
    metadata: dict[str, str] = {}
    if start[:4] in (b"PK\3\4", b"PK\5\6"):  # the second starts an empty archive
        kind, tensors = _open_zip(path)
    elif is_safetensors(start):
        kind = "safetensors"
        tensors, metadata = read_safetensors(path)
    elif start[:1] == b"\x80":
        kind, tensors = "pickle", read_torch(path)
    else:
        raise VitrailError(foreign(path, start))
    for name in tensors:
        require(
            not re.search(r"(^|/)\.\.(/|$)|^/|[\x00-\x1f\x7f\\]", name),
            f"{path} has a tensor named {name[:60]!r}, which is a path and not a name; {DAMAGED}",
        )
        require(
            len(name) <= LONGEST_NAME,
            f"{path} has a tensor whose name is {len(name):,} letters long ({name[:60]!r} …); at most {LONGEST_NAME} "
            "are read: rename it",
        )
    return Stored(path=path, format=kind, tensors=tensors, metadata=metadata)


def _open_zip(path: Path) -> tuple[str, dict[str, Tensor]]:
    with open_archive(path) as archive:
        names = archive.namelist()
    if is_torch_archive(names):
        return "pickle", read_torch(path)
    require(
        any(name.endswith(".npy") for name in names),
        f"{path} is a zip without weights (it holds {', '.join(names[:3])[:80] or 'nothing'}); {UNPACK}",
    )
    return "npz", read_npz(path)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors in the format of the path's suffix; only safetensors stores the metadata."""

    def torch_file(file: BinaryIO) -> None:
        try:
            torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        except RuntimeError as error:  # torch hides the OSError when it closes its zip
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    writers: dict[str, Callable[[BinaryIO], None]] = {
        ".safetensors": lambda file: write_safetensors(file, tensors, metadata),
        ".npz": lambda file: write_npz(file, tensors),
        **dict.fromkeys(SUFFIXES[2:], torch_file),
    }
    require(
        path.suffix in writers,
        f"{path} ends in {path.suffix or 'nothing'!r}, which names no format; use {', '.join(writers)}",
    )
    write_file(path, writers[path.suffix])
