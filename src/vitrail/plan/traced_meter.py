"""Count the live bytes of a run whose sizes are `Traced`: a log of what appears and dies, to find the peak in."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from vitrail.plan.meter import LogMeter, Storage
from vitrail.traced import Trace, Traced

__all__ = ["TracedMeter"]

Event = tuple[int, int]
"""The place of a kind of storage (a component and a size), and how many of it appear, or die if negative."""


class TracedMeter(LogMeter):
    """A meter that keeps a log of a phase. Where its peak is depends on the inputs, and is a step of the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._number = trace.number
        self._places: dict[Any, int] = {}
        self._kinds: list[tuple[str, Any]] = []
        self._log: list[Event] = []
        self._looks: list[int] = []
        """Events after which something dies: the peak is after one of them."""

    def end_phase(self) -> tuple[Any, dict[str, Any]]:
        self._look()
        names = [*dict.fromkeys(component for component, _ in self._kinds)]
        rows, sizes = [names.index(component) for component, _ in self._kinds], [size for _, size in self._kinds]
        found = self._number(_Peak(self._log, self._looks, sizes, rows), *sizes)
        parts = {name: self._number(operator.getitem, found, row) for row, name in enumerate(names)}
        self._log, self._looks = _sum(self._log), []
        return sum(parts.values()), parts

    def storage(self, component: str, size: Any) -> Storage:
        made = super().storage(component, size)
        made.kind = self._kind(made)
        self._log.append((made.kind, 1))
        return made

    def died(self, storage: Storage) -> None:
        self._look()
        self._log.append((storage.kind, -1))

    def move(self, storage: Storage, component: str) -> None:
        self.died(storage)
        storage.component = component
        storage.kind = self._kind(storage)
        self._log.append((storage.kind, 1))

    def state(self) -> dict[str, Any]:
        return self._bytes(self._log)

    def enter(self) -> tuple[int, int]:
        self._look()
        return len(self._log), len(self._looks)

    def change(self, entered: tuple[int, int], component: str) -> Any:
        return self._bytes(self._log[entered[0] :]).get(component, 0)

    def leave(self, entered: tuple[int, int], more: int) -> None:
        """Write the last of equal stretches event by event, too, and those between as their sum."""
        self._look()
        if more:
            stretch, looks = self._log[entered[0] :], self._looks[entered[1] :]
            self._log += [(kind, count * (more - 1)) for kind, count in _sum(stretch)]
            later = len(self._log) - entered[0]
            self._log += stretch
            self._looks += [place + later for place in looks]

    def _look(self) -> None:
        if self._log and self._log[-1][1] > 0:
            self._looks.append(len(self._log) - 1)

    def _kind(self, storage: Storage) -> int:
        component, size = storage.component, storage.size
        key = (component, size.place, None) if type(size) is Traced else (component, size)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._kinds)
            self._kinds.append((component, size))
        return place

    def _bytes(self, log: list[Event]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, count in _sum(log):
            component, size = self._kinds[kind]
            found[component] = found.get(component, 0) + size * count
        return found


class _Peak:
    """The operation that returns the bytes of every component at the peak of a log, from the sizes of its kinds."""

    def __init__(self, log: list[Event], looks: list[int], sizes: list[Any], rows: list[int]) -> None:
        self._log, self._rows, self._height = log, rows, max(rows) + 1
        """What happened, and which component each kind of storage belongs to."""
        self._units = _units(sizes)
        self._moments = _moments(log, looks, self._units)
        self._known: dict[int, list[tuple[int, int, int | None]]] = {}

    def __call__(self, *sizes: Any) -> Any:
        if all(type(size) is int for size in sizes):
            level, levels = 0, []
            for _, same, changes in self._moments:
                level += same
                for unit, count in changes:
                    level += count * sizes[unit]
                levels.append(level)
            found = [0] * self._height
            for row, count, unit in self._alive(levels.index(max(levels))):
                found[row] += count if unit is None else count * sizes[unit]
            return found
        import numpy as np

        dtype, inputs = np.result_type(*sizes), max(size.size for size in sizes if type(size) is not int)
        places, found = self._places(sizes, inputs, dtype), np.zeros((self._height, inputs), dtype)
        for place in np.unique(places):
            here = np.flatnonzero(places == place)
            for row, count, unit in self._alive(int(place)):
                found[row, here] += count if unit is None else count * sizes[unit][here]
        return found

    def bound(self, *sizes: int) -> int:
        return sum(count * sizes[kind] for kind, count in self._log if count > 0)

    def _places(self, sizes: tuple[Any, ...], inputs: int, dtype: Any) -> Any:
        """Return the moment of each input's peak."""
        import numpy as np

        live, level, most = np.zeros(inputs, dtype), np.zeros(inputs, dtype), np.full(inputs, -1, dtype)
        places, whole = np.zeros(inputs, int), 0
        for place, (_, same, changes) in enumerate(self._moments):
            whole += same
            for unit, count in changes:
                live += sizes[unit] if count == 1 else sizes[unit] * count
            np.add(live, whole, out=level)
            higher = level > most
            if higher.any():
                places[higher] = place
                np.maximum(level, most, out=most)
        return places

    def _alive(self, place: int) -> list[tuple[int, int, int | None]]:
        """Return what is alive at a moment: components, and how many bytes or how many of a unit."""
        if place not in self._known:
            found: dict[tuple[int, int | None], int] = {}
            for kind, count in _sum(self._log[: self._moments[place][0] + 1]):
                unit, times = self._units[kind]
                key = self._rows[kind], unit
                found[key] = found.get(key, 0) + times * count
            self._known[place] = [(row, count, unit) for (row, unit), count in found.items()]
        return self._known[place]


def _sum(log: Iterable[Event]) -> list[Event]:
    """Return how many of each kind a log leaves, where that is not zero."""
    found: dict[int, int] = {}
    for kind, count in log:
        found[kind] = found.get(kind, 0) + count
    return [event for event in found.items() if event[1]]


def _units(sizes: list[Any]) -> list[tuple[int | None, int]]:
    """Return for each size the place of another and how many times that it is; a constant is a number of bytes."""
    found: list[tuple[int | None, int]] = []
    first: dict[int, tuple[int, int]] = {}
    for place, size in enumerate(sizes):
        if type(size) is int:
            found.append((None, size))
            continue
        factor, times = size.product
        unit, smallest = first.setdefault(factor, (place, times))
        found.append((unit, times // smallest) if times % smallest == 0 else (place, 1))
    return found


def _moments(log: list[Event], looks: list[int], units: list[tuple[int | None, int]]) -> list[tuple[int, int, list]]:
    """Return the events after which the peak can be: the place in the log, and what was added since the last, as bytes
    and as numbers of units. One is left out if the next has all that is alive in it."""
    ends: list[int] = []
    changes: list[dict[int | None, int]] = []
    change: dict[int | None, int] = {}
    start = 0
    for look in looks:
        for kind, count in log[start : look + 1]:
            unit, times = units[kind]
            change[unit] = change.get(unit, 0) + times * count
        start = look + 1
        if max(change.values(), default=0) <= 0:
            continue
        if ends and min(change.values()) >= 0:
            last = changes[-1]
            for unit, count in change.items():
                last[unit] = last.get(unit, 0) + count
            ends[-1] = look
        else:
            ends.append(look)
            changes.append(change)
        change = {}
    return [
        (look, each.pop(None, 0), [(unit, count) for unit, count in each.items() if count])
        for look, each in zip(ends, changes, strict=True)
    ]
