"""Bytes of live tensor storages, followed by their births and deaths: the truth that the planner is held to."""

from __future__ import annotations

import weakref
from bisect import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitrail.plan.timeline import Event, Phase, Timeline

__all__ = ["Tracker"]

COMPONENTS = {"forward": "activations", "backward": "temporary", "optimizer": "temporary"}
"""What a storage is taken for that an operation makes in a phase, until it is known to be something else."""


class Tracker(TorchDispatchMode):
    """Counts every storage of one kind of device, from the operation that makes it to the moment it dies."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.live_bytes = 0
        self.phase_peaks: dict[str, int] = {}
        self.events: list[Event] = []
        self._phase: Phase = "before"
        self._writes = True
        self._alive: dict[int, Event] = {}
        """What is alive, by the storage's address."""
        self._numbers = count()
        self._modules: list[str] = []
        """Paths of the modules that run, the innermost last."""
        self._marks: list[tuple[int, str]] = []
        """The module that ran, from each of these numbers of autograd's nodes on."""

    @property
    def peak_bytes(self) -> int:
        return max(self.phase_peaks.values(), default=0)

    @property
    def timeline(self) -> Timeline:
        return Timeline(tuple(self.events))

    def restart(self) -> None:
        """Forget what has happened, but not what is alive."""
        self.phase_peaks.clear()
        self.events[:] = [event._replace(phase="before") for event in self._alive.values()]
        self._marks.clear()

    def stop(self) -> None:
        """Write no more events: what is released after a step is not part of it."""
        self._writes = False

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        self._phase = name
        self.phase_peaks[name] = max(self.phase_peaks.get(name, 0), self.live_bytes)
        yield

    @contextmanager
    def resizes(self) -> Iterator[None]:
        """Follow storages that are emptied and filled again in place, as FSDP does with gathered weights."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> None:
            resize(storage, size)
            event = self._alive.get(storage._cdata)
            if event is not None:
                self._forget(storage._cdata)
                self._count(storage._cdata, event._replace(phase=self._phase, bytes=size))

        with patch.object(torch.UntypedStorage, "resize_", resized):
            yield

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Attribute storages to the module that makes them, forward or backward."""

        def enter(path: str) -> Any:
            def hook(*_: Any) -> None:
                self._modules.append(path)
                self._mark()

            return hook

        def leave(*_: Any) -> None:
            self._modules.pop()
            self._mark()

        handles = []
        for path, part in model.named_modules():
            handles.append(part.register_forward_pre_hook(enter(path)))
            handles.append(part.register_forward_hook(leave, always_call=True))
        yield
        for handle in handles:
            handle.remove()

    def follow(self, values: Iterable[Any], component: str, module: str = "", operation: str = "") -> None:
        """Count the storages of these values, or move those that are counted to this component and module."""
        for value in _plain(values):
            if value.device.type == self.device:
                event = self._alive.get(value.untyped_storage()._cdata)
                if event is None:
                    self._follow(value, component, module, operation)
                elif event.component != component:
                    self._write(event._replace(phase=self._phase, bytes=-event.bytes))
                    moved = event._replace(phase=self._phase, component=component, module=module or event.module)
                    self._alive[value.untyped_storage()._cdata] = moved
                    self._write(moved)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a tensor that holds others, as a shard does: their operations come here next
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and value.device.type == self.device:
                self._follow(value, self._component(func, args), self._module(), str(func))
        return out

    def _component(self, func: Any, args: Any) -> str:
        if func is torch.ops.aten._to_copy.default and isinstance(args[0], Tensor):
            source = self._alive.get(args[0].untyped_storage()._cdata)
            if source is not None and source.component == "weights":
                return "weight_casts"
        return COMPONENTS.get(self._phase, "activations")

    def _follow(self, tensor: Tensor, component: str, module: str, operation: str) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return
        self._count(key, Event(self._phase, operation, module, component, size, next(self._numbers)))
        weakref.finalize(storage, self._forget, key)

    def _count(self, key: int, event: Event) -> None:
        self._alive[key] = event
        self.live_bytes += event.bytes
        self.phase_peaks[self._phase] = max(self.phase_peaks.get(self._phase, 0), self.live_bytes)
        self._write(event)

    def _forget(self, key: int) -> None:
        event = self._alive.pop(key)
        self.live_bytes -= event.bytes
        self._write(event._replace(phase=self._phase, bytes=-event.bytes))

    def _write(self, event: Event) -> None:
        if event.bytes and self._writes:
            self.events.append(event)

    def _mark(self) -> None:
        self._marks.append((torch.autograd._get_sequence_nr(), self._modules[-1] if self._modules else ""))

    def _module(self) -> str:
        """Return the module that runs, or whose forward made the node that autograd runs."""
        if self._modules:
            return self._modules[-1]
        node = torch._C._current_autograd_node()
        if node is None or not self._marks:
            return ""
        place = bisect(self._marks, node._sequence_nr(), key=lambda mark: mark[0])
        return self._marks[place - 1][1] if place else ""


def _plain(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among these values; for one that holds others, as a shard does, those that it holds."""
    for value in values:
        if hasattr(value, "__tensor_flatten__"):
            yield from _plain(getattr(value, name) for name in value.__tensor_flatten__()[0])
        elif isinstance(value, Tensor):
            yield value
