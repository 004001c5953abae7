"""PyTorch's own files: pickles, read only by torch's weights-only reader.

A pickle gives every tensor's storage and strides. Both are checked against the file's size, because strides may claim
any number of values from a storage that has one.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.formats.archive import open_archive
from vitrail.checkpoint.formats.safetensors_header import DAMAGED, MOST_TENSORS
from vitrail.errors import VitrailError, require

__all__ = ["is_torch_archive", "read_torch"]

WRAPPERS = ("model", "state_dict", "model_state_dict", "teacher", "model_ema")
"""Keys under which training scripts save the weights."""
LONGEST_PICKLE = 32 * 2**20
"""In bytes, without the storages: 200 per tensor. Unpickling may take sixty times as much memory."""
MOST_SHARED = 64
"""Largest ratio of tensor bytes to file bytes: blocks may share storages, within reason."""


def is_torch_archive(names: list[str]) -> bool:
    return any(name.rpartition("/")[2] == "data.pkl" for name in names)


def read_torch(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict, memory-mapped if the file is a zip."""
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\3\4"
    if zipped:
        _check_archive(path)
        value = _unpickled(path, path, mapped=True)
    else:
        with path.open("rb") as file:
            value = _unpickled(path, _BoundedPickle(file), mapped=False)
    tensors = _weights_in(path, value)
    _check_storages(path, tensors)
    return tensors


def _check_archive(path: Path) -> None:
    with open_archive(path) as archive:
        members = archive.infolist()
    require(
        not any(member.filename.rpartition("/")[2] == "constants.pkl" for member in members),
        f"{path} is TorchScript, a program with its weights, and vitrail runs no code from files; where you trust it, "
        "save its state_dict as safetensors",
    )
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    require(
        not packed,
        f"{path} has compressed members ({', '.join(packed[:2])[:80]}), which PyTorch never writes and does not read "
        "right when it maps a file; zip it without compression, or save it again with torch.save",
    )
    unpacked, size = sum(member.file_size for member in members), path.stat().st_size
    require(
        unpacked <= size,
        f"{path} claims members of {unpacked:,} bytes in a file of {size:,}; {DAMAGED}",
    )
    for member in members:
        require(
            not member.filename.endswith(".pkl") or member.file_size <= LONGEST_PICKLE,
            f"{path} has a pickle of {member.file_size:,} bytes besides its tensors, and at most {LONGEST_PICKLE:,} "
            "are read; save the model's state_dict alone",
        )


class _BoundedPickle(io.RawIOBase):
    """A file of torch's legacy format: pickles, whose bytes are counted here, then storages."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.left = file, LONGEST_PICKLE

    def read(self, size: int = -1, /) -> bytes:
        return self._counted(self.file.read(min(size, self.left + 1) if size >= 0 else self.left + 1))

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._counted(self.file.readline(self.left + 1))

    def readinto(self, buffer: Any, /) -> int:
        return self.file.readinto(buffer)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def _counted(self, data: bytes) -> bytes:
        self.left -= len(data)
        if self.left < 0:
            raise EOFError(f"more than {LONGEST_PICKLE:,} bytes of pickles")
        return data


def _unpickled(path: Path, file: Any, *, mapped: bool) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unusual pickles: they open, or the error says why not
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        reason = re.sub(r"\s+", " ", str(error)).partition("WeightsUnpickler error:")[2].strip() or "not only tensors"
        raise VitrailError(
            f"{path} holds more than weights ({reason[:100]}), and vitrail runs no code from files; "
            "where you trust it, save its state_dict as safetensors"
        ) from None
    except Exception as error:  # a pickle passes any arguments to torch's functions: any exception may be raised
        reason = re.sub(r"\s+", " ", str(error)) or type(error).__name__
        raise VitrailError(f"{path} does not open as a PyTorch file ({reason[:80]!r}); {DAMAGED}") from None


def _weights_in(path: Path, value: Any) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of the one inside a training script's checkpoint."""
    for _ in range(3):
        if not isinstance(value, Mapping):
            break
        tensors = {name: item for name, item in value.items() if isinstance(name, str) and isinstance(item, Tensor)}
        inside = next((value[key] for key in WRAPPERS if isinstance(value.get(key), Mapping)), None)
        if tensors and inside is None:
            require(
                len(tensors) <= MOST_TENSORS, f"{path} has {len(tensors):,} tensors; at most {MOST_TENSORS:,} are read"
            )
            return tensors
        value = inside
    raise VitrailError(f"{path} holds no tensors by name; save the model's state_dict")


def _check_storages(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose storage has fewer values than their shape claims."""
    claimed, size = 0, path.stat().st_size
    for name, tensor in tensors.items():
        require(
            type(tensor) in (Tensor, torch.nn.Parameter)
            and (tensor.layout, tensor.device.type, tensor.is_quantized) == (torch.strided, "cpu", False),
            f"{path}: {name[:80]} is not a plain tensor ({tensor.layout}, {tensor.device}, {tensor.dtype}); save it "
            "dense, dequantised and with values",
        )
        due, held = tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size()
        require(
            due <= held,
            f"{path}: {name[:80]} of shape {tuple(tensor.shape)} claims {due:,} values and its storage holds {held:,}; "
            "save it with .contiguous(), which stores every value",
        )
        claimed += due * tensor.element_size()
    require(
        claimed <= MOST_SHARED * size,
        f"{path} claims {claimed:,} bytes of tensors in a file of {size:,}, more than {MOST_SHARED} times as many; "
        "save it with every tensor cloned",
    )
