"""NumPy's .npz, the format of Google's models: a zip of arrays, each checked against its header before it is read."""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.formats.archive import open_archive
from vitrail.checkpoint.formats.safetensors import tensor_bytes
from vitrail.checkpoint.formats.safetensors_header import DAMAGED, MOST_TENSORS
from vitrail.errors import VitrailError, require

__all__ = ["read_npz", "write_npz"]

MOST_COMPRESSED = 30
"""Largest ratio of unpacked to stored size: weights hardly compress, and zip bombs do a thousandfold."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods of numpy.savez and numpy.savez_compressed."""


class _Array(NamedTuple):
    """The contents of an array's header."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


def read_npz(path: Path) -> dict[str, Tensor]:
    with open_archive(path) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        require(len(members) <= MOST_TENSORS, f"{path} has {len(members):,} arrays; at most {MOST_TENSORS:,} are read")
        require(len(set(names)) == len(names), f"{path} names an array twice; {DAMAGED}")
        odd = [member.filename for member in members if member.compress_type not in METHODS]
        require(
            not odd, f"{path} compresses {', '.join(odd[:2])[:80]} as NumPy does not; save it again with numpy.savez"
        )
        unpacked, size = sum(member.file_size for member in members), path.stat().st_size
        require(
            unpacked <= MOST_COMPRESSED * size + 2**20,
            f"{path} would unpack to {unpacked:,} bytes from {size:,}, more than {MOST_COMPRESSED} times as many, and "
            "no weights compress so well; save it again with numpy.savez, which does not compress",
        )
        try:
            return {
                name: _read(f"{path}: {member.filename[:80]}", archive, member)
                for name, member in zip(names, members, strict=True)
            }
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise VitrailError(f"{path} is not a readable .npz ({error}); {DAMAGED}") from None


def _read(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    with archive.open(member) as file:
        array = _header(name, file)
        shape, _, dtype = array
        require(
            not dtype.hasobject,
            f"{name} holds Python objects, which can run code when read; save it as plain arrays",
        )
        half = dtype.kind == "V" and dtype.itemsize == 2  # NumPy has no bfloat16: JAX's is written as two raw bytes
        require(
            half or (dtype.kind in "fiub" and dtype.itemsize <= 8 and dtype.str not in ("<u4", "<u8")),
            f"{name} is {dtype}, which is not a type of weights; save it as float32",
        )
        due, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        require(due == held, f"{name} of shape {shape} in {dtype} has {held:,} bytes and needs {due:,}; {DAMAGED}")
        data = bytearray(file.read(due))  # at most what the header declares, whatever the member unpacks to
    require(len(data) == due, f"{name} ends after {len(data):,} of {due:,} bytes; {DAMAGED}")
    order = "F" if array.fortran else "C"
    values = np.frombuffer(data, np.uint16 if half else dtype).reshape(shape, order=order)
    tensor = torch.from_numpy(np.ascontiguousarray(values).astype(values.dtype.newbyteorder("="), copy=False))
    return tensor.view(torch.bfloat16) if half else tensor


def _header(name: str, file: IO[bytes]) -> _Array:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers of Python 2, as in (3L, 4L), are read all the same
            array = _Array(*readers[np.lib.format.read_magic(file)](file))
    except Exception as error:  # a header is a Python expression: any exception may be raised
        reason = " ".join(str(error).split()) or type(error).__name__
        raise VitrailError(f"{name} is not an array ({reason[:80]}); {DAMAGED}") from None
    require(
        len(array.shape) <= 8 and all(type(side) is int and 0 <= side < 2**63 for side in array.shape),
        f"{name} has shape {str(array.shape)[:60]}, which is not one of counts; {DAMAGED}",
    )
    return array


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
