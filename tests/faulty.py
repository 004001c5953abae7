"""Small weights, and files made of them byte by byte, for the tests of what is damaged or means harm."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any

import numpy as np
import torch

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp

__all__ = ["CONFIG", "entry", "npy", "npz", "pickled", "raw", "small", "zipped"]

CONFIG = ViTConfig(image=Size(32, 48), width=12, depth=1, num_heads=3, mlp=Mlp(width=24), classes=5)


def small() -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(
        config=CONFIG, tensors=build(CONFIG).state_dict(), preprocessing=Preprocessing(image=CONFIG.image)
    )


def raw(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape if shape is not None else [(end - begin) // 4], "data_offsets": [begin, end]}


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(header: str, body: bytes = b"") -> bytes:
    """A .npy member with this very header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()
