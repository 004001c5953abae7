"""A timeline in the format of PyTorch's memory snapshots, which its viewer (pytorch.org/memory_viz) reads."""

from __future__ import annotations

import pickle
from bisect import insort
from pathlib import Path
from typing import Any

from vitrail.atomic import write_file
from vitrail.plan.timeline import Event, Timeline

__all__ = ["snapshot", "write_snapshot"]

BASE = 0x7F0000000000
"""Where addresses begin; any number will do."""


def snapshot(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline as `torch.cuda.memory._snapshot()` would, on one device.

    Blocks are placed first-fit in one segment as large as they need; PyTorch's allocator is not modelled.
    """
    space, trace = _Space(), [_entry("alloc", BASE - 512, 0, [], "unknown")]  # the viewer fails without this category
    placed: dict[int, tuple[int, int]] = {}
    frames: dict[int, list[dict[str, Any]]] = {}
    for event in timeline.events:
        if event.bytes > 0:
            frames[event.block] = _frames(event)
            placed[event.block] = (space.take(event.bytes), event.bytes)
            trace.append(_entry("alloc", *placed[event.block], frames[event.block], event.component))
        elif event.bytes < 0:
            address, size = placed.pop(event.block)
            space.release(address, size)
            trace += [_entry(what, address, size, _frames(event)) for what in ("free_requested", "free_completed")]
    alive = sorted((address, size, frames[block]) for block, (address, size) in placed.items())
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": space.end - BASE,
        "allocated_size": sum(size for _, size, _ in alive),
        "active_size": sum(size for _, size, _ in alive),
        "stream": 0,
        "segment_type": "large",
        "blocks": _blocks(alive, space.end),
    }
    return {"segments": [segment], "device_traces": [trace]}


def write_snapshot(timeline: Timeline, path: Path) -> None:
    """Write a snapshot that `torch.cuda._memory_viz` and PyTorch's viewer read."""
    data = pickle.dumps(snapshot(timeline), protocol=4)  # the highest that the viewer reads
    write_file(path, lambda file: file.write(data))


def _frames(event: Event) -> list[dict[str, Any]]:
    """The operation, its module and its phase, where a snapshot has the lines of a program."""
    names = (event.operation, event.module, event.phase)
    return [{"name": name, "filename": event.component, "line": 0} for name in names if name]


def _entry(action: str, address: int, size: int, frames: list[dict[str, Any]], category: str = "") -> dict[str, Any]:
    entry = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
    return entry | ({"category": category} if category else {})


def _blocks(alive: list[tuple[int, int, list[dict[str, Any]]]], end: int) -> list[dict[str, Any]]:
    """Return the blocks of a segment from its beginning to its end, free ones included."""
    blocks, at = [], BASE
    for address, size, frames in alive:
        if address > at:
            blocks.append(_block(address - at, "inactive", []))
        blocks.append(_block(size, "active_allocated", frames))
        at = address + size
    return [*blocks, _block(end - at, "inactive", [])] if end > at else blocks


def _block(size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": state, "frames": frames}


class _Space:
    """Addresses, given first-fit: the lowest gap that is large enough, or the end."""

    def __init__(self) -> None:
        self.end = BASE
        self._gaps: list[tuple[int, int]] = []
        """(address, size), ascending; neighbours are joined."""

    def take(self, size: int) -> int:
        for place, (address, room) in enumerate(self._gaps):
            if room >= size:
                self._gaps[place : place + 1] = [(address + size, room - size)] if room > size else []
                return address
        self.end += size
        return self.end - size

    def release(self, address: int, size: int) -> None:
        insort(self._gaps, (address, size))
        place = self._gaps.index((address, size))
        joined: list[tuple[int, int]] = []
        for start, room in self._gaps[max(0, place - 1) : place + 2]:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        self._gaps[max(0, place - 1) : place + 2] = joined
