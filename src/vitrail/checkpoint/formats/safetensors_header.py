"""The header of a safetensors file: types, shapes and byte ranges of its tensors, fully validated; needs no torch.

A file is eight bytes of header length, a JSON header with type, shape and byte range of every tensor, then the bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vitrail.codec import LONGEST_JSON, parse_json
from vitrail.errors import require

__all__ = ["DAMAGED", "MOST_TENSORS", "Entry", "is_safetensors", "read_header"]

ITEM_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
MOST_TENSORS = 20_000
"""A 7-billion-parameter ViT has 1,200; a file with more is not a ViT."""
LONGEST_HEADER = LONGEST_JSON
"""In bytes, 400 per tensor. The format allows 100 MB, which take half a minute to parse."""
DAMAGED = "the file is damaged or was not written whole; fetch it again"


class Entry(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Byte offset in the file."""
    end: int


def is_safetensors(start: bytes) -> bool:
    """Whether a file with these first bytes is in the safetensors format."""
    return start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] < 2**40


def read_header(file: BinaryIO, path: Path) -> tuple[list[Entry], dict[str, str]]:
    """Return the tensors' entries, in the order of their bytes, and the metadata."""
    size = file.seek(0, 2)
    require(size > 8, f"{path} has {size} bytes, less than a safetensors header; {DAMAGED}")
    file.seek(0)
    (length,) = struct.unpack("<Q", file.read(8))
    require(length <= size - 8, f"{path} claims a header of {length:,} bytes in a file of {size:,}; {DAMAGED}")
    require(
        length <= LONGEST_HEADER,
        f"{path} has a header of {length:,} bytes, and at most {LONGEST_HEADER:,} are read; save the model's "
        "weights alone, with less metadata",
    )
    header = parse_json(file.read(length), f"the header of {path}", DAMAGED)
    require(isinstance(header, dict), f"{path} has a header that is not a JSON object; {DAMAGED}")
    metadata = _metadata(path, header.pop("__metadata__", {}))
    start = 8 + length
    entries = _entries(path, header, size - start)
    return [entry._replace(begin=start + entry.begin, end=start + entry.end) for entry in entries], metadata


def _metadata(path: Path, metadata: Any) -> dict[str, str]:
    require(
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()),
        f"{path} has metadata that is not text by name; {DAMAGED}",
    )
    return metadata


def _entries(path: Path, header: dict[str, Any], size: int) -> list[Entry]:
    require(
        len(header) <= MOST_TENSORS,
        f"{path} names {len(header):,} tensors, and vitrail reads at most {MOST_TENSORS:,}; no ViT has that many",
    )
    entries = sorted((_entry(path, name, fields) for name, fields in header.items()), key=lambda e: (e.begin, e.end))
    reached = 0
    for entry in entries:
        require(
            entry.begin == reached,
            f"{path}: {entry.name} starts at byte {entry.begin:,} where {reached:,} is due, "
            f"so tensors overlap or leave a hole; {DAMAGED}",
        )
        reached = entry.end
    require(reached == size, f"{path} holds {size:,} bytes of tensors and its header tells of {reached:,}; {DAMAGED}")
    return entries


def _entry(path: Path, name: str, fields: Any) -> Entry:
    require(isinstance(fields, dict), f"{path}: {name} is not described by an object; {DAMAGED}")
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    require(
        isinstance(dtype, str) and dtype in ITEM_BYTES,
        f"{path}: {name} has type {dtype!r}, which vitrail does not read; it reads {', '.join(ITEM_BYTES)}",
    )
    assert isinstance(dtype, str)
    shape, (begin, end) = _counts(path, name, shape), _counts(path, name, offsets, length=2)
    count = 1
    for side in shape:
        count *= side
    require(
        end - begin == count * ITEM_BYTES[dtype],
        f"{path}: {name} of shape {shape} in {dtype} does not fill bytes {begin:,} to {end:,}; {DAMAGED}",
    )
    return Entry(name, dtype, shape, begin, end)


def _counts(path: Path, name: str, values: Any, *, length: int | None = None) -> tuple[int, ...]:
    require(
        isinstance(values, list)
        and (len(values) == length if length is not None else len(values) <= 8)
        and all(type(value) is int and 0 <= value < 2**63 for value in values),
        f"{path}: {name} has shape or offsets {str(values)[:60]}, which are not counts; {DAMAGED}",
    )
    return tuple(values)
