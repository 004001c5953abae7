"""Names as 16-byte digests in NumPy arrays: millions are compared in memory of 16 bytes each, where a set takes 150."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["DigestSet", "digests", "find"]

BYTES = 16


def digests(names: Iterable[bytes]) -> NDArray[np.bytes_]:
    """Return the digest of each name."""
    return np.frombuffer(b"".join(blake2b(name, digest_size=BYTES).digest() for name in names), f"S{BYTES}")


def find(keys: NDArray[np.bytes_], among: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """Return each key's place in a sorted array, or −1."""
    if not len(among):
        return np.full(len(keys), -1)
    places = np.searchsorted(among, keys).clip(max=len(among) - 1)
    return np.where(among[places] == keys, places, -1)


class DigestSet:
    """A set to which names are added in batches; it keeps sorted arrays, each twice as long as the next or more."""

    def __init__(self) -> None:
        self.runs: list[NDArray[np.bytes_]] = []

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def add(self, names: Iterable[bytes]) -> NDArray[np.bool_]:
        """Add names; return whether each was new."""
        keys = digests(names)
        new = np.zeros(len(keys), bool)
        new[np.unique(keys, return_index=True)[1]] = True
        for run in self.runs:
            new &= find(keys, run) < 0
        self.runs.append(np.sort(keys[new]))
        while len(self.runs) > 1 and len(self.runs[-2]) < 2 * len(self.runs[-1]):
            self.runs[-2:] = [np.sort(np.concatenate(self.runs[-2:]))]
        return new
