"""Read IDX files, the format of MNIST and Fashion-MNIST: type and rank, the shape, then bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from vitrail.data.source import ArraySource, Split
from vitrail.errors import VitrailError, require

__all__ = ["has_idx", "open_idx", "read_idx"]

FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS = tuple("0123456789")
STEMS = {"train": "train", "test": "t10k"}


def has_idx(folder: Path) -> bool:
    return _file(folder, "train-images-idx3-ubyte") is not None


def open_idx(folder: Path, split: Split) -> ArraySource:
    """Open the four files of MNIST's layout; classes are Fashion-MNIST's if "fashion" is in the folder's name."""
    images, labels = (
        read_idx(_needed(folder, f"{STEMS[split]}-{kind}-ubyte")) for kind in ("images-idx3", "labels-idx1")
    )
    require(
        images.ndim == 3 and labels.ndim == 1,
        f"{folder} has IDX files of rank {images.ndim} and {labels.ndim}, not 3 and 1 as MNIST; fetch it again",
    )
    names = FASHION if "fashion" in folder.resolve().name.lower() else DIGITS
    return ArraySource(images[..., None], labels, names, name=str(folder))


def read_idx(path: Path) -> np.ndarray:
    """Read a uint8 array, in the shape that the header gives."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VitrailError(f"{path} is damaged ({error}); fetch it again") from None
    except OSError as error:
        raise VitrailError(f"{path} cannot be read ({error.strerror}); check the path") from None
    require(len(data) >= 4 and data[:3] == b"\x00\x00\x08", f"{path} is not an IDX file of bytes; give MNIST's files")
    rank = data[3]
    require(len(data) >= 4 + 4 * rank, f"{path} ends in its header; fetch it again")
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    size, expected = len(data) - 4 - 4 * rank, int(np.prod(shape, dtype=object))
    require(size == expected, f"{path} has {size:,} bytes of data and its header says {expected:,}; fetch it again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _needed(folder: Path, name: str) -> Path:
    path = _file(folder, name)
    if path is None:
        raise VitrailError(f"{folder} has no {name} (nor .gz), one of the four files of the dataset; add it")
    return path
