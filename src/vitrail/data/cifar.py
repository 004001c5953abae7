"""Read CIFAR-10 and CIFAR-100 as Python pickles, binary rows or PNG sheets.

A row of the first two has 1,024 red, 1,024 green and 1,024 blue values; a row of a sheet has 1,024 RGB pixels.
"""

from __future__ import annotations

import codecs
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.source import ArraySource, Split
from vitrail.errors import VitrailError, require
from vitrail.images.decode import decode

__all__ = ["CIFAR10", "find_cifar", "open_cifar"]

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE, VALUES = 32, 3072


class Form(NamedTuple):
    """One file format of the dataset: its files by split, and a function that reads images and labels from a file."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: int
    read: Callable[[Path], tuple[np.ndarray, np.ndarray]]


def _read_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read an original pickle, which contains a dict of lists and one array; anything else is refused unexecuted."""
    try:
        with path.open("rb") as file:
            batch = _ArraysOnly(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, IndexError, TypeError, KeyError) as error:
        raise VitrailError(f"{path} is not a CIFAR pickle ({error}); fetch it again") from None
    require(isinstance(batch, dict), f"{path} is not a CIFAR pickle; fetch it again")
    rows, labels = batch.get(b"data"), batch.get(b"labels", batch.get(b"fine_labels"))
    require(
        isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.shape[1:] == (VALUES,) and labels is not None,
        f"{path} does not contain rows of 3,072 bytes with labels; fetch it again",
    )
    return _planes(rows), np.asarray(labels)


class _ArraysOnly(pickle.Unpickler):
    ALLOWED = frozenset(
        (module, name)
        for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
        for name in ("ndarray", "dtype", "_reconstruct")
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return codecs.encode
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return getattr(np, name) if name != "_reconstruct" else np._core.multiarray._reconstruct  # type: ignore[attr-defined]


def _read_binary(labels: int) -> Callable[[Path], tuple[np.ndarray, np.ndarray]]:
    """Return a reader of rows with `labels` label bytes, the last of which is the finest, and three colour planes."""

    def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
        data = np.fromfile(path, np.uint8)
        require(
            len(data) > 0 and len(data) % (labels + VALUES) == 0,
            f"{path} has {len(data):,} bytes, not whole rows of {labels + VALUES:,}; fetch it again",
        )
        rows = data.reshape(-1, labels + VALUES)
        return _planes(rows[:, labels:]), rows[:, labels - 1]

    return read


def _planes(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _read_sheet(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a PNG sheet; one JSON list has the labels of the whole split, in the order of the sheets."""
    sheet = decode(path)
    require(sheet.shape[1] == SIDE * SIDE, f"{path} is {sheet.shape[1]} pixels wide, not 1,024; fetch it again")
    test = path.name.startswith("test")
    listed = path.with_name("test_lables.json" if test else "train_lables.json")
    try:
        labels = np.asarray(json.loads(listed.read_bytes()))
    except (OSError, ValueError) as error:
        raise VitrailError(f"{listed} cannot be read ({error}); fetch it again") from None
    first = 0 if test else len(sheet) * (int(path.stem.rpartition("_")[2]) - 1)
    return sheet.reshape(-1, SIDE, SIDE, 3), labels[first : first + len(sheet)]


_TEN = tuple(f"data_batch_{number}" for number in range(1, 6))
FORMS = (
    Form(_TEN, ("test_batch",), 10, _read_python),
    Form(("train",), ("test",), 100, _read_python),
    Form(tuple(f"{name}.bin" for name in _TEN), ("test_batch.bin",), 10, _read_binary(1)),
    Form(("train.bin",), ("test.bin",), 100, _read_binary(2)),
    Form(tuple(f"{name}.png" for name in _TEN), ("test_batch.png",), 10, _read_sheet),
)


def find_cifar(folder: Path) -> Form | None:
    """Return the format of a folder, recognised by its first file; None if there is none."""
    return next((form for form in FORMS if (folder / form.train[0]).is_file()), None)


def open_cifar(folder: Path, split: Split, form: Form) -> ArraySource:
    paths = [folder / name for name in (form.train if split == "train" else form.test)]
    missing = [path.name for path in paths if not path.is_file()]
    require(not missing, f"{folder} lacks {', '.join(missing)}; fetch the whole dataset")
    parts = [form.read(path) for path in paths]
    images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return ArraySource(images, labels, CIFAR10 if form.classes == 10 else _fine(folder), name=str(folder))


def _fine(folder: Path) -> tuple[str, ...]:
    names = folder / "fine_label_names.txt"
    if names.is_file():
        return tuple(names.read_text().split())
    return tuple(str(label) for label in range(100))
