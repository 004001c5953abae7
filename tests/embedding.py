"""Small jobs for the tests of embedding: a model of one block, images of a few pixels, and decoders that misbehave."""

from __future__ import annotations

import ctypes
import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import Prepared, prepare
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, Patches
from vitrail.remote import Location
from vitrail.vectors.job.freeze import freeze
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import Plan, read_plan

__all__ = [
    "CONFIG",
    "bad_decoder",
    "drawn",
    "frozen",
    "gated_decoder",
    "photos",
    "png",
    "read_rows",
    "save_weights",
    "tar",
    "thread_counting_decoder",
]

CONFIG = ViTConfig(
    image=Size(8, 12), embedding=Patches(patch=Size(4, 4)), width=24, depth=1, num_heads=3, mlp=Mlp(width=40), classes=0
)


def save_weights(path: Path, config: ViTConfig = CONFIG, *, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    tensors = build(config).state_dict()
    half = (0.5,) * config.channels
    preprocessing = Preprocessing(image=config.image, mean=half, std=half)
    save(Checkpoint(config=config, tensors=tensors, preprocessing=preprocessing), path)
    return path


def drawn(seed: int, height: int = 10, width: int = 14) -> np.ndarray:
    """Large soft spots: what resizing changes little."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def png(seed: int, height: int = 10, width: int = 14) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(drawn(seed, height, width)).save(buffer, "PNG")
    return buffer.getvalue()


def photos(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        (folder / f"{seed:05d}.png").write_bytes(png(seed))
    return folder


def frozen(folder: Location, source: Location, weights: Path, shard_size: int | None = None, **options: Any) -> Plan:
    return freeze(folder, source, weights, load(weights), Options(**options), shard_size=shard_size).plan


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Every row of every part, in order."""
    from pyarrow import parquet

    plan = read_plan(folder)
    parts = sorted(folder.glob("part-*.parquet"))
    assert len(parts) == plan.shards
    return [row for part in parts for row in parquet.read_table(part).to_pylist()]


# ── decoders for worker processes, which import them by name ────────────────────────────────────────────────────


def gated_decoder(source: Path | bytes, steps: Preprocessing, **options: Any) -> Prepared:
    """Of shards of five images every fourth waits until there is a file that GATE names: a run cannot end before."""
    assert isinstance(source, Path)
    while int(source.stem) // 5 % 4 == 3 and not Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
    return prepare(source, steps, **options)


def bad_decoder(source: Path | bytes, steps: Preprocessing, **options: Any) -> Prepared:
    """Does what the file's name says."""
    assert isinstance(source, Path)
    name = source.name
    if "hang" in name:
        source.with_suffix(".hangs").touch()
        time.sleep(3600)
    if "crash" in name:
        ctypes.string_at(0)
    if "raise" in name:
        raise KeyError("no decoder should")
    if "once" in name and not (marker := source.with_suffix(".died")).exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    return prepare(source, steps, **options)


def thread_counting_decoder(source: Path | bytes, steps: Preprocessing, **options: Any) -> Prepared:
    """Notes beside the image how many threads torch has to resize it."""
    assert isinstance(source, Path)
    with source.with_suffix(".threads").open("a") as file:
        file.write(f"{torch.get_num_threads()}\n")
    return prepare(source, steps, **options)


def tar(paths: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in paths:
            archive.add(path, path.name)
    return buffer.getvalue()
