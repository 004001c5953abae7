"""Read tensors and the config files beside them; write tensors atomically.

Reading never runs code: safetensors, plain arrays, and pickles through torch's weights-only reader.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitrail.atomic import write_file
from vitrail.checkpoint.formats.archive import open_archive
from vitrail.checkpoint.formats.magic import LONGEST_SIGN, UNPACK, foreign
from vitrail.checkpoint.formats.npz import read_npz, write_npz
from vitrail.checkpoint.formats.safetensors import DAMAGED, read_safetensors, write_safetensors
from vitrail.checkpoint.formats.torch_file import is_torch_archive, read_torch
from vitrail.codec import LONGEST_JSON, parse_json
from vitrail.errors import VitrailError, require

__all__ = [
    "CONFIGS",
    "PROCESSORS",
    "SUFFIXES",
    "WEIGHTS",
    "Stored",
    "files_of",
    "open_stored",
    "shards_of",
    "write_tensors",
]

WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
"""Names of the weights, or of the index of their shards, in a directory; the first that is there is read."""
CONFIGS = ("config.json", "open_clip_config.json")
PROCESSORS = ("preprocessor_config.json",)
READ = (CONFIGS, PROCESSORS, WEIGHTS)
"""What is read of a directory: the first that is there of each."""
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
"""Suffixes of files that are written; the last three are PyTorch's."""
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
    return _with_configs(_open_shards(path, weights) if _is_index(weights) else _open_file(weights), path)


def _is_index(path: Path) -> bool:
    return path.name.endswith(".index.json")


def files_of(path: Path) -> list[Path]:
    """Return the files that are read of weights: the file itself; in a directory, configs, weights and shards."""
    if not path.is_dir():
        return [path]
    each = (next((path / name for name in names if (path / name).is_file()), None) for names in READ)
    found = [file for file in each if file is not None]
    shards = [path / shard for file in found if _is_index(file) for shard in shards_of(file)]
    return sorted([*found, *shards])


def shards_of(index: Path) -> list[str]:
    """Return the names of the files that an index points to, in order."""
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    placed = _read_json(index).get("weight_map")
    require(
        isinstance(placed, dict) and all(isinstance(file, str) for file in placed.values()),
        f"{index} has no weight_map of file names; {DAMAGED}",
    )
    assert isinstance(placed, dict)
    for file in placed.values():
        require(
            Path(file).name == file and file not in ("", ".", ".."),
            f"{index} points to {file!r}, outside its own directory; {DAMAGED}",
        )
    return placed


def _open_shards(path: Path, index: Path) -> Stored:
    placed, files = _weight_map(index), shards_of(index)
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
        next((_read_json(directory / name) for name in names if (directory / name).is_file()), {})
        for names in (CONFIGS, PROCESSORS)
    )
    return Stored(
        path=stored.path,
        format=stored.format,
        tensors=stored.tensors,
        metadata=stored.metadata,
        config=config,
        processor=processor,
    )


def _read_json(path: Path) -> dict[str, Any]:
    size, remedy = path.stat().st_size, "mend it or fetch it again"
    require(size <= LONGEST_JSON, f"{path} has {size:,} bytes, and at most {LONGEST_JSON:,} of JSON are read; {remedy}")
    value = parse_json(path.read_bytes(), str(path), remedy)
    require(isinstance(value, dict), f"{path} is not a JSON object; fetch it again")
    return value


def _open_file(path: Path) -> Stored:
    require(path.is_file(), f"{path} is not a file; give a weights file or a directory that holds one")
    with path.open("rb") as file:
        start = file.read(LONGEST_SIGN)
    metadata: dict[str, str] = {}
    if start[:4] in (b"PK\3\4", b"PK\5\6"):  # the second starts an empty archive
        kind, tensors = _open_zip(path)
    elif start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] < 2**40:
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
