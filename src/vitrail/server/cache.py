"""A cache with a bound on its entries and on the memory that they hold."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Cache", "held_bytes"]

V = TypeVar("V")


class Cache(Generic[V]):
    """A thread-safe cache that evicts the least recently used values; the newest is always kept."""

    def __init__(self, capacity: int, max_bytes: float = float("inf")) -> None:
        self._capacity, self._max_bytes = capacity, max_bytes
        self._values, self._bytes = OrderedDict[Hashable, V](), dict[Hashable, int]()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        size = held_bytes(value)
        with self._lock:
            self._values[key], self._bytes[key] = value, size
            self._values.move_to_end(key)
            while len(self._values) > 1 and (
                len(self._values) > self._capacity or sum(self._bytes.values()) > self._max_bytes
            ):
                oldest, _ = self._values.popitem(last=False)
                del self._bytes[oldest]


def held_bytes(value: Any) -> int:
    """Return the memory of the arrays, tensors or model in a value; memory that several of them share counts once.

    A model inside another value does not count: the session caches it by itself.
    """
    if hasattr(value, "state_dict"):  # by attributes: another thread may be loading torch right now
        value = list(value.state_dict().values())
    found: dict[int, int] = {}
    for array in _arrays(value):
        if hasattr(array, "untyped_storage"):
            memory = array.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
        else:
            found[id(array)] = array.nbytes
    return sum(found.values())


def _arrays(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage") or hasattr(value, "nbytes"):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _arrays(getattr(value, field.name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _arrays(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _arrays(each)
