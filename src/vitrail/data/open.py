"""Open any supported data as a source of labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.data.cifar import find_cifar, open_cifar
from vitrail.data.classes import ClassFolder, class_folders
from vitrail.data.idx import has_idx, open_idx
from vitrail.data.parquet import ParquetTables
from vitrail.data.shapes import Shapes
from vitrail.data.source import SPLITS, Source, Split, Subset
from vitrail.data.tar import TarShards
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["HELD_OUT", "open_source"]

HELD_OUT = 10
"""Every tenth image is held out if the data has no test split."""
KINDS = "shapes, a folder with a subfolder per class, CIFAR, MNIST's IDX files, Parquet tables or tar shards"


def open_source(
    data: str | Path | Sequence[str | Path], split: Split = "train", *, image: Size | None = None
) -> Source:
    """Open "shapes", a folder, or one or more Parquet or tar files, recognised by their content and names.

    `image` is the size that shapes are drawn at; other data have their own sizes.
    """
    given = [data] if isinstance(data, str | Path) else list(data)
    require(len(given) > 0, f"no data was given; give {KINDS}")
    if given == ["shapes"]:
        return Shapes(image or Size(32, 32), split=split)
    paths = [Path(each) for each in given]
    for path in paths:
        require(path.exists(), f"{path} does not exist; give {KINDS}")
    if len(paths) == 1 and paths[0].is_dir():
        return _open_folder(paths[0], split)
    endings = {path.suffix for path in paths}
    if endings == {".parquet"}:
        return _open_files(paths, split, ParquetTables)
    if endings == {".tar"}:
        return _open_files(paths, split, TarShards)
    raise VitrailError(f"{', '.join(map(str, paths[:3]))}: not a supported kind of data; give {KINDS}")


def _open_folder(folder: Path, split: Split) -> Source:
    form = find_cifar(folder)
    if form is not None:
        return open_cifar(folder, split, form)
    if has_idx(folder):
        return open_idx(folder, split)
    for ending, kind in ((".parquet", ParquetTables), (".tar", TarShards)):
        files = sorted(folder.rglob(f"*{ending}"))
        if files:
            return _open_files(files, split, kind)
    names = {path.name: path for path in class_folders(folder)}
    by_split = {each: next((names[name] for name in SPLITS[each] if name in names), None) for each in SPLITS}
    if by_split["train"] is not None and by_split["test"] is not None:
        train, test = ClassFolder(by_split["train"]), ClassFolder(by_split["test"])
        require(
            train.classes == test.classes,
            f"{folder}: {by_split['train'].name} and {by_split['test'].name} have different class folders "
            f"({', '.join(sorted(set(train.classes) ^ set(test.classes))[:4])}); give both the same",
        )
        return train if split == "train" else test
    require(len(names) > 0, f"{folder} is not a supported kind of data; give {KINDS}")
    return _held_out(ClassFolder(folder), split, folder)


def _open_files(paths: list[Path], split: Split, kind: type[ParquetTables] | type[TarShards]) -> Source:
    """Open files as train and test splits if their names say so; otherwise hold some images out."""
    by_split = {each: [p for p in paths if any(name in p.stem.lower() for name in SPLITS[each])] for each in SPLITS}
    if by_split["train"] and by_split["test"]:
        return kind(by_split[split])
    return _held_out(kind(paths), split, paths[0])


def _held_out(source: Source, split: Split, name: Path) -> Source:
    last = np.arange(len(source)) % HELD_OUT == HELD_OUT - 1
    indices = np.flatnonzero(last if split == "test" else ~last)
    require(
        len(indices) > 0,
        f"{name} has {len(source)} images, too few to hold any out as a test split; give a test split",
    )
    return Subset(source, indices)
