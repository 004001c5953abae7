"""Sources of labelled images: random access by index, with labels validated before any image is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError, Pixels, decode

__all__ = ["SPLITS", "ArraySource", "Source", "Split", "Subset", "check_labels", "decode_named"]

Split = Literal["train", "test"]
SPLITS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),
}
"""Names of folders and files that hold a split."""


class Source(Protocol):
    """Labelled images by index, in a fixed order."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def channels(self) -> int: ...

    @property
    def labels(self) -> Sequence[int] | np.ndarray:
        """The label of every image, known without decoding any."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        """Return uint8 (height, width, channel) and the label; raise `ImageError` if the image cannot be decoded."""
        ...


class ArraySource:
    """Images of one size, in memory: (N, height, width, channel)."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: Sequence[str], *, name: str) -> None:
        require(
            len(images) == len(labels) and len(images) > 0,
            f"{name} has {len(images)} images and {len(labels)} labels; fetch it again",
        )
        check_labels(labels, len(classes), name)
        self.images, self.labels, self.classes = images, labels.astype(np.int64), tuple(classes)
        self.channels: int = 1 if images.shape[3] == 1 else 3

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        return self.images[index], int(self.labels[index])


class Subset:
    """A subset of another source, by index."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source, self.indices = source, indices
        self.classes, self.channels = source.classes, source.channels

    @property
    def labels(self) -> np.ndarray:
        return np.asarray(self.source.labels)[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        return self.source[int(self.indices[index])]


def check_labels(labels: np.ndarray, classes: int, name: str) -> None:
    """Raise an error if a label is out of range or there is only one class."""
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        first = int(outside[0])
        raise VitrailError(
            f"{name}: image {first} has label {int(labels[first])}, out of range for {classes} classes "
            f"(0–{classes - 1}), as have {len(outside)} images in all; correct the labels"
        )
    require(classes > 1, f"{name} has one class, and classification needs two; give two or more")


def decode_named(data: bytes, name: str) -> Pixels:
    """Decode bytes from inside a larger file, with `name` in the error."""
    try:
        return decode(data)
    except ImageError as error:
        raise ImageError(f"{name}: {str(error).partition(': ')[2]}") from None
