"""The files of a model's directory: their names, which of them are read, and the JSON among them. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.checkpoint.formats.safetensors_header import DAMAGED
from vitrail.codec import LONGEST_JSON, parse_json
from vitrail.errors import require

__all__ = [
    "CONFIGS",
    "PROCESSORS",
    "SUFFIXES",
    "WEIGHTS",
    "files_of",
    "is_index",
    "read_json",
    "shards_of",
    "weight_map",
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
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
"""The second is that of models of clips; the third that of models with text too, with the first inside."""
READ = (CONFIGS, PROCESSORS, WEIGHTS)
"""What is read of a directory: the first that is there of each."""
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
"""Suffixes of files that are written; the last three are PyTorch's."""


def is_index(path: Path) -> bool:
    return path.name.endswith(".index.json")


def files_of(path: Path) -> list[Path]:
    """Return the files that are read of weights: the file itself; in a directory, configs, weights and shards."""
    if not path.is_dir():
        return [path]
    each = (next((path / name for name in names if (path / name).is_file()), None) for names in READ)
    found = [file for file in each if file is not None]
    shards = [path / shard for file in found if is_index(file) for shard in shards_of(file)]
    return sorted([*found, *shards])


def shards_of(index: Path) -> list[str]:
    """Return the names of the files that an index points to, in order."""
    return sorted(set(weight_map(index).values()))


def weight_map(index: Path) -> dict[str, str]:
    placed = read_json(index).get("weight_map")
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


def read_json(path: Path) -> dict[str, Any]:
    size, remedy = path.stat().st_size, "mend it or fetch it again"
    require(size <= LONGEST_JSON, f"{path} has {size:,} bytes, and at most {LONGEST_JSON:,} of JSON are read; {remedy}")
    value = parse_json(path.read_bytes(), str(path), remedy)
    require(isinstance(value, dict), f"{path} is not a JSON object; fetch it again")
    return value
