"""The safetensors format: memory-mapped reading, streamed writing, and a fully validated header."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitrail.checkpoint.formats.safetensors_header import Entry, read_header
from vitrail.errors import require

__all__ = ["read_safetensors", "tensor_bytes", "write_safetensors"]

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


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, memory-mapped, and the header's metadata."""
    with path.open("rb") as file:
        entries, metadata = read_header(file, path)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private: writes do not reach the file
    return {entry.name: _tensor(mapped, entry) for entry in entries}, metadata


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


def _tensor(mapped: mmap.mmap, entry: Entry) -> Tensor:
    dtype, size = DTYPES[entry.dtype], entry.end - entry.begin
    if size == 0:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.begin % dtype.itemsize:  # some writers do not align tensors: copy them
        return torch.frombuffer(bytearray(mapped[entry.begin : entry.end]), dtype=dtype).view(entry.shape)
    count = size // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.begin).view(entry.shape)
