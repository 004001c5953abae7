"""Files: a path → names, tensors and the configs beside them; and back, whole or not at all.

Reading runs no code: safetensors, plain arrays, and pickles by torch's weights-only reader, with no way around it.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitrail.atomic import write_file
from vitrail.checkpoint.npz import read_npz, write_npz
from vitrail.checkpoint.safetensors import DAMAGED, MOST_TENSORS, read_safetensors, write_safetensors
from vitrail.errors import VitrailError, require

__all__ = ["Stored", "open_stored", "write_tensors"]

WEIGHTS = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
CONFIGS = ("config.json", "open_clip_config.json")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WRAPPERS = ("model", "state_dict", "model_state_dict", "teacher", "model_ema")
"""Where training scripts keep the weights among their other state."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What lies in a file, or a directory, before anything is made of it."""

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json beside the weights; empty where there is none."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """preprocessor_config.json beside the weights; empty where there is none."""


def open_stored(path: Path) -> Stored:
    """Open a weights file, or a directory with weights and their config."""
    require(path.exists(), f"{path} does not exist; give a weights file or a directory that holds one")
    if path.is_dir():
        return _open_directory(path)
    stored = _open_file(path)
    if path.name in WEIGHTS:  # by these names a config.json beside them is theirs
        return _with_configs(stored, path.parent)
    return stored


def _open_directory(path: Path) -> Stored:
    require(
        any((path / name).is_file() for name in CONFIGS),
        f"{path} has no config.json to say what its weights are; add it, or name the weights file itself",
    )
    for name in INDEXES:
        if (path / name).is_file():
            return _with_configs(_open_shards(path, path / name), path)
    for name in WEIGHTS:
        if (path / name).is_file():
            return _with_configs(_open_file(path / name), path)
    raise VitrailError(f"{path} has none of {', '.join(WEIGHTS)}; name the weights file itself")


def _open_shards(path: Path, index: Path) -> Stored:
    placed = _read_json(index).get("weight_map")
    require(
        isinstance(placed, dict) and all(isinstance(file, str) for file in placed.values()),
        f"{index} has no weight_map of file names; {DAMAGED}",
    )
    assert isinstance(placed, dict)
    files = sorted(set(placed.values()))
    tensors: dict[str, Tensor] = {}
    kind = ""
    for file in files:
        require(
            Path(file).name == file and file not in ("", ".", ".."),
            f"{index} points to {file!r}, outside its own directory; {DAMAGED}",
        )
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
        for names in (CONFIGS, ("preprocessor_config.json",))
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
    try:
        value = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise VitrailError(f"{path} is not JSON ({error}); mend it or fetch it again") from None
    require(isinstance(value, dict), f"{path} is not a JSON object; fetch it again")
    return value


def _open_file(path: Path) -> Stored:
    require(path.is_file(), f"{path} is not a file; give a weights file or a directory that holds one")
    with path.open("rb") as file:
        start = file.read(9)
    metadata: dict[str, str] = {}
    if start[:4] == b"PK\x03\x04":
        kind, tensors = _open_zip(path)
    elif start[8:] == b"{" and struct.unpack("<Q", start[:8])[0] < 2**40:
        kind = "safetensors"
        tensors, metadata = read_safetensors(path)
    elif start[:1] == b"\x80":
        kind, tensors = "pickle", _open_pickle(path, mapped=False)
    else:
        raise VitrailError(f"{path} is neither safetensors, .npz nor a PyTorch file; {DAMAGED}")
    for name in tensors:
        require(
            not re.search(r"(^|/)\.\.(/|$)|^/|[\x00-\x1f\\]", name),
            f"{path} has a tensor named {name[:60]!r}, which is a path and not a name; {DAMAGED}",
        )
    return Stored(path=path, format=kind, tensors=tensors, metadata=metadata)


def _open_zip(path: Path) -> tuple[str, dict[str, Tensor]]:
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = any(name.endswith("data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise VitrailError(f"{path} is a zip that does not open ({error}); {DAMAGED}") from None
    return ("pickle", _open_pickle(path, mapped=True)) if pickled else ("npz", read_npz(path))


def _open_pickle(path: Path, *, mapped: bool) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles: they open, or the error says why not
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        reason = re.sub(r"\s+", " ", str(error)).partition("WeightsUnpickler error:")[2].strip() or "not only tensors"
        raise VitrailError(
            f"{path} holds more than weights ({reason[:100]}), and vitrail runs no code from files; "
            "where you trust it, save its state_dict as safetensors"
        ) from None
    # what torch.load raises on bytes that are not a pickle is not documented: these are what it was seen to raise
    except (
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        AssertionError,
        OSError,
    ) as error:
        raise VitrailError(f"{path} does not open as a PyTorch file ({str(error)[:80]!r}); {DAMAGED}") from None
    return _weights_in(path, value)


def _weights_in(path: Path, value: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, or of the one inside a training script's state."""
    for _ in range(3):
        if not isinstance(value, Mapping):
            break
        tensors = {
            name: item.detach() for name, item in value.items() if isinstance(name, str) and isinstance(item, Tensor)
        }
        inside = next((value[key] for key in WRAPPERS if isinstance(value.get(key), Mapping)), None)
        if tensors and inside is None:
            require(
                len(tensors) <= MOST_TENSORS, f"{path} has {len(tensors):,} tensors; at most {MOST_TENSORS:,} are read"
            )
            return tensors
        value = inside
    raise VitrailError(f"{path} holds no tensors by name; save the model's state_dict")


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write in the format that the name's ending asks for; metadata has a place in safetensors only."""

    def torch_file(file: BinaryIO) -> None:
        try:
            torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        except RuntimeError as error:  # closing its zip, torch hides what stopped the writing
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    writers: dict[str, Callable[[BinaryIO], None]] = {
        ".safetensors": lambda file: write_safetensors(file, tensors, metadata),
        ".npz": lambda file: write_npz(file, tensors),
        **dict.fromkeys((".pth", ".pt", ".bin"), torch_file),
    }
    require(
        path.suffix in writers,
        f"{path} ends in {path.suffix or 'nothing'!r}, which names no format; use {', '.join(writers)}",
    )
    write_file(path, writers[path.suffix])
