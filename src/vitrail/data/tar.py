"""Tar shards in WebDataset's layout: files with the same key, `key.jpg` and `key.cls`, are one sample.

The headers of the shards are read once into an index of offsets, so reading an image needs one seek.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from vitrail.data.source import check_labels, decode_named
from vitrail.errors import VitrailError, require
from vitrail.images.decode import Pixels
from vitrail.images.folder import SUFFIXES

__all__ = ["TarShards"]


class Place(NamedTuple):
    shard: Path
    name: str
    offset: int
    size: int


class TarShards:
    """The samples of all shards, in order."""

    channels: int = 3

    def __init__(self, shards: Sequence[Path]) -> None:
        self.places: list[Place] = []
        labels: list[int] = []
        for shard in shards:
            for place, label in _index(shard):
                self.places.append(place)
                labels.append(label)
        name = str(shards[0]) if len(shards) == 1 else f"{shards[0].parent} ({len(shards)} shards)"
        require(len(labels) > 0, f"{name} has no key.jpg with a key.cls; use WebDataset's layout")
        self.labels = np.asarray(labels)
        self.classes = tuple(str(label) for label in range(max(labels) + 1))
        check_labels(self.labels, len(self.classes), name)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        place = self.places[index]
        with place.shard.open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.size)
        return decode_named(data, f"{place.shard}:{place.name}"), int(self.labels[index])


def _index(shard: Path) -> list[tuple[Place, int]]:
    images: dict[str, Place] = {}
    labels: dict[str, int] = {}
    try:
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                path = PurePosixPath(member.name)
                stem, _, ending = path.name.partition(".")
                key = str(path.with_name(stem))
                place = Place(shard, member.name, member.offset_data, member.size)
                if f".{ending.lower()}" in SUFFIXES:
                    require(key not in images, f"{shard}: {key} has two images; give each sample its own key")
                    images[key] = place
                elif ending in ("cls", "json") and member.size < 1 << 20:
                    header = file.tell()
                    file.seek(place.offset)
                    label = _label(file.read(place.size), ending, f"{shard}:{member.name}")
                    file.seek(header)
                    if label is not None:
                        labels[key] = label
    except tarfile.TarError as error:
        raise VitrailError(f"{shard} is not a readable tar ({error}); if it is compressed, uncompress it") from None
    except OSError as error:
        raise VitrailError(f"{shard} cannot be read ({error.strerror or error}); check the path") from None
    unlabelled = next((key for key in images if key not in labels), None)
    require(unlabelled is None, f"{shard}: {unlabelled} has an image and no label; add {unlabelled}.cls")
    return [(place, labels[key]) for key, place in images.items()]


def _label(data: bytes, ending: str, name: str) -> int | None:
    try:
        value = json.loads(data)
    except ValueError:
        raise VitrailError(f"{name} contains {data[:20]!r}, which is not a label; write a whole number") from None
    if ending == "json":
        value = (
            next((value[key] for key in ("label", "cls") if key in value), None) if isinstance(value, dict) else None
        )
        if value is None:
            return None
    require(type(value) is int and value >= 0, f"{name} has label {value!r}, out of range; write 0 or more")
    return value
