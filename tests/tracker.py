"""Bytes of live tensor storages, followed by their births and deaths: the truth that the planner is held to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Tracker"]


class Tracker(TorchDispatchMode):
    """Counts every storage of one kind of device, from the operation that makes it to the moment it dies."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.live_bytes = 0
        self.phase_peaks: dict[str, int] = {}
        self._phase = "before"
        self._alive: set[int] = set()
        self.log: list[str] | None = None

    @property
    def peak_bytes(self) -> int:
        return max(self.phase_peaks.values(), default=0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phase = name
        self.phase_peaks[name] = max(self.phase_peaks.get(name, 0), self.live_bytes)
        yield
        self._phase = "between"

    def follow(self, values: Iterable[Any], name: str = "") -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == self.device:
                self._follow(value, name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.log is not None:
            shapes = [tuple(v.shape) for v in tree_leaves(out) if isinstance(v, torch.Tensor)]
            self.log.append(f"{self._phase} {func} → {shapes}")
        self.follow(tree_leaves(out), str(func))
        return out

    def _follow(self, tensor: torch.Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return
        self._alive.add(key)
        self.live_bytes += size
        self.phase_peaks[self._phase] = max(self.phase_peaks.get(self._phase, 0), self.live_bytes)
        if self.log is not None:
            self.log.append(f"    + {size:,} {tuple(tensor.shape)} {tensor.dtype} = {self.live_bytes:,}")
        weakref.finalize(storage, self._forget, key, size, name)

    def _forget(self, key: int, size: int, name: str) -> None:
        self._alive.discard(key)
        self.live_bytes -= size
        if self.log is not None:
            self.log.append(f"    - {size:,} of {name} = {self.live_bytes:,}")
