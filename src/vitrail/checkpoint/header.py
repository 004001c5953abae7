"""What vitrail's own metadata say in a weights file: config, preprocessing and tensors, read without torch.

Importing torch takes longer than everything that `inspect` and `plan` do with such a file. The full reader (`read.py`)
takes every other file, and every file about which anything is unusual.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.formats.safetensors_header import Entry, is_safetensors, read_header
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.hub import name_of
from vitrail.checkpoint.sources.names import weights_path
from vitrail.codec import from_plain, parse_json
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig, config_from_json
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.plan.ledger import ledger

__all__ = [
    "CONFIG_KEY",
    "METADATA",
    "PREPROCESSING_KEY",
    "Evidence",
    "Header",
    "check_size",
    "read_own",
    "written_config",
    "written_preprocessing",
]

CONFIG_KEY = "vitrail"
"""Metadata key of the config, in files of every dialect that vitrail writes."""
PREPROCESSING_KEY = "vitrail_preprocessing"
MOST_PIXELS, MOST_TOKENS = 2**28, 2**20
"""Limits on the pixels and tokens of an image, far above practical sizes."""
LEAST_PER_BLOCK = 6
"""Tensors of a block without biases: two norms and four matrices."""
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
"""Types of weights that NumPy has too."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How a checkpoint's config is known, in words."""

    config: str
    """Source of what shapes do not show: a config beside the weights, metadata, or a known preset."""
    grid: str
    """Source of the grid that the positions are on."""
    assumed: tuple[str, ...] = ()
    """Fields that neither a config nor the weights give, set to the usual value for such a model."""


METADATA = Evidence(config="vitrail's metadata in the file", grid="vitrail's metadata in the file")


@dataclass(frozen=True, kw_only=True)
class Header:
    """A file in vitrail's own names, with the fields of a `Checkpoint` that describe it; arrays are memory-mapped."""

    config: Config
    tensors: Mapping[str, NDArray[Any]]
    preprocessing: Preprocessing
    format: str = "safetensors"
    dialect: str = "vitrail"
    family: str = "vit"
    evidence: Evidence = METADATA
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    source: str = ""


def written_config(weights: str | Path) -> Config | None:
    """Return the config that vitrail has written into a file, in whatever names; None if there is none."""
    _, metadata = _open(weights_path(weights))
    return config_from_json(metadata[CONFIG_KEY]) if CONFIG_KEY in metadata else None


def read_own(weights: str | Path) -> Header | None:
    """Read a file of vitrail's own, if every module has as many values as the config says; otherwise return None."""
    path = weights_path(weights)
    entries, metadata = _open(path)
    if CONFIG_KEY not in metadata or PREPROCESSING_KEY not in metadata:
        return None
    config = config_from_json(metadata[CONFIG_KEY])
    check_size(path, config, len(entries))
    held: Counter[str] = Counter()
    for entry in entries:
        held[entry.name.rpartition(".")[0]] += prod(entry.shape)
    expected = {row.path: row.params for row in ledger(config).rows if row.params}
    usual = all(entry.dtype in TYPES for entry in entries)
    if not usual or "embedding.weight" not in (entry.name for entry in entries) or held != expected:
        return None
    mapped = np.memmap(path, np.uint8, "r")
    return Header(
        config=config,
        tensors={entry.name: _array(mapped, entry) for entry in entries},
        preprocessing=written_preprocessing(path, metadata, config.image),
        source=name_of(path),
    )


def written_preprocessing(path: Path, metadata: Mapping[str, str], image: Size) -> Preprocessing:
    """Return the preprocessing that vitrail has written into a file."""
    plain = parse_json(metadata[PREPROCESSING_KEY], f"the preprocessing metadata of {path}", "write it again")
    return dataclasses.replace(from_plain(plain, Preprocessing, "preprocessing"), image=image)


def check_size(path: Path, config: Config, tensors: int) -> None:
    """Refuse a config that is far larger than the file, before anything is computed from it."""
    blocks, image, grid = _blocks(config), config.image, config.position_grid
    require(
        config.frames * image.area <= MOST_PIXELS and config.steps * grid.area <= MOST_TOKENS,
        f"{path} has a config for image {image}, a grid of {grid}; vitrail reads models of at most "
        f"{MOST_PIXELS:,} pixels and {MOST_TOKENS:,} patches: mend the config",
    )
    require(
        blocks * LEAST_PER_BLOCK <= tensors,
        f"{path} has {tensors:,} tensors and a config of {blocks:,} blocks; it is not whole",
    )


def _blocks(config: Config) -> int:
    match config:
        case ViTConfig():
            return config.depth
        case PyramidConfig():
            return sum(stage.depth for stage in config.stages)
        case MobileConfig():
            return sum(stage.depth + stage.transformer_depth for stage in config.stages)


def _open(path: Path) -> tuple[list[Entry], dict[str, str]]:
    """Return entries and metadata of a safetensors file; nothing for what the full reader must take or refuse."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                return read_header(file, path) if is_safetensors(file.read(9)) else ([], {})
    except OSError:
        pass
    return [], {}


def _array(mapped: NDArray[np.uint8], entry: Entry) -> NDArray[Any]:
    return mapped[entry.begin : entry.end].view(TYPES[entry.dtype]).reshape(entry.shape)
