"""A file of a store that is read by ranges."""

from __future__ import annotations

import io
from typing import Any, Protocol

__all__ = ["BLOCK", "RangeFile"]

BLOCK = 2**20
"""Bytes that a sequential reader asks for at a time."""


class Ranged(Protocol):
    """What a `RangeFile` reads from."""

    def read_bytes(self, start: int, length: int) -> bytes: ...


class RangeFile(io.RawIOBase):
    """A file that is read by ranges, as `tarfile` and pyarrow read one."""

    def __init__(self, place: Ranged, size: int, block: int = 0) -> None:
        super().__init__()
        self.place, self.size, self.block = place, size, block
        self.at = 0
        self.held, self.held_from = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, count: int = -1) -> bytes:
        end = self.size if count is None or count < 0 else min(self.size, self.at + count)
        if end <= self.at:
            return b""
        if not self.held_from <= self.at <= end <= self.held_from + len(self.held):
            length = min(max(end - self.at, self.block), self.size - self.at)
            self.held, self.held_from = self.place.read_bytes(self.at, length), self.at
        data = self.held[self.at - self.held_from : end - self.held_from]
        self.at = end
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
