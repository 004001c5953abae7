"""The safetensors format: memory-mapped reading, streamed writing, and a fully validated header.

A file is eight bytes of header length, a JSON header with type, shape and byte range of every tensor, then the bytes.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.formats.directory import DAMAGED
from vitrail.codec import LONGEST_JSON, parse_json
from vitrail.errors import require

__all__ = ["MOST_TENSORS", "read_safetensors", "tensor_bytes", "write_safetensors"]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_TENSORS = 20_000
"""A 7-billion-parameter ViT has 1,200; a file with more is not a ViT."""
LONGEST_HEADER = LONGEST_JSON
"""In bytes, 400 per tensor. The format allows 100 MB, which take half a minute to parse."""


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, memory-mapped, and the header's metadata."""
    with path.open("rb") as file:
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
        entries = _entries(path, header, size - 8 - length)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private: writes do not reach the file
    return {entry.name: _tensor(mapped, 8 + length, entry) for entry in entries}, metadata


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors to an open file one at a time, so that mapped or transposed ones are read only then."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        require(tensor.dtype in NAMES, f"{name} is {tensor.dtype}, which safetensors has no type for; convert it first")
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start aligned
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        file.write(tensor_bytes(tensor))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes in row-major order, without a copy if it is contiguous."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _metadata(path: Path, metadata: Any) -> dict[str, str]:
    require(
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()),
        f"{path} has metadata that is not text by name; {DAMAGED}",
    )
    return metadata


def _entries(path: Path, header: dict[str, Any], size: int) -> list[_Entry]:
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


def _entry(path: Path, name: str, fields: Any) -> _Entry:
    require(isinstance(fields, dict), f"{path}: {name} is not described by an object; {DAMAGED}")
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    require(
        isinstance(dtype, str) and dtype in DTYPES,
        f"{path}: {name} has type {dtype!r}, which vitrail does not read; it reads {', '.join(DTYPES)}",
    )
    assert isinstance(dtype, str)
    shape, (begin, end) = _counts(path, name, shape), _counts(path, name, offsets, length=2)
    count = 1
    for side in shape:
        count *= side
    require(
        end - begin == count * DTYPES[dtype].itemsize,
        f"{path}: {name} of shape {shape} in {dtype} does not fill bytes {begin:,} to {end:,}; {DAMAGED}",
    )
    return _Entry(name, DTYPES[dtype], shape, begin, end)


def _counts(path: Path, name: str, values: Any, *, length: int | None = None) -> tuple[int, ...]:
    require(
        isinstance(values, list)
        and (len(values) == length if length is not None else len(values) <= 8)
        and all(type(value) is int and 0 <= value < 2**63 for value in values),
        f"{path}: {name} has shape or offsets {str(values)[:60]}, which are not counts; {DAMAGED}",
    )
    return tuple(values)


def _tensor(mapped: mmap.mmap, start: int, entry: _Entry) -> Tensor:
    begin, size = start + entry.begin, entry.end - entry.begin
    if size == 0:
        return torch.empty(entry.shape, dtype=entry.dtype)
    if begin % entry.dtype.itemsize:  # some writers do not align tensors: copy them
        return torch.frombuffer(bytearray(mapped[begin : begin + size]), dtype=entry.dtype).view(entry.shape)
    count = size // entry.dtype.itemsize
    return torch.frombuffer(mapped, dtype=entry.dtype, count=count, offset=begin).view(entry.shape)
