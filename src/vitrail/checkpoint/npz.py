"""NumPy's .npz, as Google's models come: a zip of arrays, each checked against its own header before it is read."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.safetensors import DAMAGED, MOST_TENSORS, tensor_bytes
from vitrail.errors import VitrailError, require

__all__ = ["read_npz", "write_npz"]

MOST_COMPRESSED = 30
"""Times that a file may grow when unpacked; weights hardly compress, a bomb does a thousandfold."""


def read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            require(
                len(members) <= MOST_TENSORS, f"{path} has {len(members):,} arrays; at most {MOST_TENSORS:,} are read"
            )
            require(len(set(names)) == len(names), f"{path} names an array twice; {DAMAGED}")
            unpacked = sum(member.file_size for member in members)
            require(
                unpacked <= MOST_COMPRESSED * path.stat().st_size + 2**20,
                f"{path} would unpack to {unpacked:,} bytes from {path.stat().st_size:,}; no weights compress so well",
            )
            return {member.filename.removesuffix(".npy"): _read(path, archive, member) for member in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise VitrailError(f"{path} is not a readable .npz ({error}); {DAMAGED}") from None


def _read(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    with archive.open(member) as file:
        shape, fortran, dtype = _header(path, member.filename, file)
        require(
            not dtype.hasobject,
            f"{path}: {member.filename} holds Python objects, which can run code when read; save it as plain arrays",
        )
        data = file.read()
    require(
        len(data) == math.prod(shape) * dtype.itemsize,
        f"{path}: {member.filename} of shape {shape} in {dtype} has {len(data):,} bytes; {DAMAGED}",
    )
    half = dtype.kind == "V" and dtype.itemsize == 2  # NumPy has no bfloat16: JAX's is written as two raw bytes
    require(
        half or (dtype.kind in "fiub" and dtype.itemsize <= 8 and dtype.str not in ("<u4", "<u8")),
        f"{path}: {member.filename} is {dtype}, which is not a type of weights; save it as float32",
    )
    array = np.frombuffer(bytearray(data), np.uint16 if half else dtype).reshape(shape, order="F" if fortran else "C")
    tensor = torch.from_numpy(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="), copy=False))
    return tensor.view(torch.bfloat16) if half else tensor


def _header(path: Path, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        return readers[np.lib.format.read_magic(file)](file)
    except (ValueError, KeyError) as error:
        raise VitrailError(f"{path}: {name} is not an array ({str(error)[:80]}); {DAMAGED}") from None


def write_npz(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    """Stream tensors, uncompressed as NumPy's savez does, one at a time."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
                tensor = tensor.float()  # NumPy has neither bfloat16 nor float8
            member = zipfile.ZipInfo(f"{name}.npy")
            dtype = np.lib.format.dtype_to_descr(np.dtype(str(tensor.dtype).removeprefix("torch.")))
            header = {"descr": dtype, "fortran_order": False, "shape": tuple(tensor.shape)}
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                stream.write(tensor_bytes(tensor))
