"""A frame of arrays (src/vitrail/server/arrays.py), read back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

__all__ = ["floats", "read_frame"]


def read_frame(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Facts, and arrays of bytes by name."""
    length = int.from_bytes(content[:4], "little")
    header, offset, arrays = json.loads(content[4 : 4 + length]), 4 + length, {}
    for described in header["arrays"]:
        size = int(np.prod(described["shape"]))
        part = np.frombuffer(content[offset : offset + size], np.uint8)
        arrays[described["name"]] = part.reshape(described["shape"])
        offset += size
    assert offset == len(content)
    return header["facts"], arrays


def floats(array: np.ndarray) -> np.ndarray:
    """float32 that travelled as its four bytes."""
    return np.ascontiguousarray(array).view("<f4")[..., 0]
