"""Parquet tables with an image and a label per row, as on the Hub: image bytes or {bytes, path}, and an integer.

Row groups can be read in any order; recent ones are cached, so a dataset that fits in the cache is read once.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.source import check_labels, decode_named
from vitrail.errors import VitrailError, require
from vitrail.images.decode import Pixels
from vitrail.remote import Location, Remote

__all__ = ["IMAGES", "ParquetTables", "open_table"]

KEPT_BYTES = 2**30
IMAGES = ("image", "img", "jpg", "png", "picture")
LABELS = ("label", "fine_label", "labels", "class", "cls", "target")


class ParquetTables:
    """The rows of all files, in order."""

    channels: int = 3

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = [open_table(path) for path in paths]
        self.paths = list(paths)
        self.image, label = _columns(self.files[0], paths[0])
        self.groups: list[tuple[int, int]] = []  # (file, row group)
        self.starts: list[int] = []  # the first row of each
        labels, rows = [], 0
        for number, file in enumerate(self.files):
            require(
                {self.image, label} <= set(file.schema_arrow.names),
                f"{paths[number]} lacks the columns {self.image} and {label} of {paths[0]}; give tables of one schema",
            )
            for group in range(file.num_row_groups):
                self.groups.append((number, group))
                self.starts.append(rows)
                rows += file.metadata.row_group(group).num_rows
            labels.append(_labels(file, label, paths[number]))
        self.labels = np.concatenate(labels)
        name = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} tables)"
        require(rows > 0, f"{name} has no rows; give a table with images")
        self.classes = _class_names(self.files[0], label) or tuple(str(i) for i in range(int(self.labels.max()) + 1))
        check_labels(self.labels, len(self.classes), name)
        self.kept: OrderedDict[int, Any] = OrderedDict()
        self.kept_bytes = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        group = bisect.bisect_right(self.starts, index) - 1
        value = self._column(group)[index - self.starts[group]].as_py()
        path = self.paths[self.groups[group][0]]
        data = value.get("bytes") if isinstance(value, dict) else value
        return decode_named(data or b"", f"{path}: row {index}"), int(self.labels[index])

    def _column(self, group: int) -> Any:
        with self.lock:
            if group in self.kept:
                self.kept.move_to_end(group)
                return self.kept[group]
            number, row_group = self.groups[group]
            column = self.files[number].read_row_group(row_group, columns=[self.image]).column(0)
            self.kept[group] = column
            self.kept_bytes += column.nbytes
            while self.kept_bytes > KEPT_BYTES and len(self.kept) > 1:
                self.kept_bytes -= self.kept.popitem(last=False)[1].nbytes
            return column


def open_table(path: Location) -> Any:
    """Open a table; that of a URL is read by ranges."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise VitrailError(f"{path} is Parquet, which needs pyarrow; run pip install 'vitrail[parquet]'") from None
    try:
        if isinstance(path, Remote):
            return parquet.ParquetFile(path.open(), pre_buffer=True)
        return parquet.ParquetFile(path, memory_map=True)
    except (arrow.ArrowException, OSError) as error:
        raise VitrailError(f"{path} is not a readable Parquet file ({str(error)[:80]}); fetch it again") from None


def _columns(file: Any, path: Path) -> tuple[str, str]:
    names = file.schema_arrow.names
    image, label = (next((name for name in usual if name in names), None) for usual in (IMAGES, LABELS))
    if image is None or label is None:
        raise VitrailError(
            f"{path} has columns {', '.join(names)}; it needs one of {', '.join(IMAGES)} and one of {', '.join(LABELS)}"
        )
    return image, label


def _labels(file: Any, label: str, path: Path) -> np.ndarray:
    column = file.read(columns=[label]).column(0)
    values = column.to_numpy()
    require(
        np.issubdtype(values.dtype, np.integer),
        f"{path}: {label} is {column.type}{' with nulls' if column.null_count else ''}; use whole numbers from 0",
    )
    return values.astype(np.int64)


def _class_names(file: Any, label: str) -> tuple[str, ...]:
    """Return the class names that the Hub stores in the schema's metadata, or none."""
    try:
        metadata = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        return tuple(map(str, metadata["info"]["features"][label]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()
