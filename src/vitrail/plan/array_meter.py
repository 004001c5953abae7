"""Count the live bytes of many plans at once: a meter whose sizes are `Many`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.many import LIMIT, Many, TooLarge, count_true
from vitrail.plan.meter import Meter, Storage

__all__ = ["ArrayMeter", "highest"]

Moment = tuple[Any, dict[str, Any]]
"""Live bytes, and the same by component."""


def highest(moments: Sequence[Moment]) -> Moment:
    """Return the moment with the most bytes, the first of equal ones; for `Many`, each number's own."""
    if all(isinstance(level, int) for level, _ in moments):
        return max(moments, key=lambda moment: moment[0])
    peak = _Peak()
    for level, components in moments:
        peak.add(_raw(level), {name: _raw(size) for name, size in components.items()})
    level, components = peak.found()
    return _many(level), {name: _many(size) for name, size in components.items()}


def _raw(size: Any) -> Any:
    return size.values if type(size) is Many else size


def _many(size: Any) -> Any:
    return size if isinstance(size, int) else Many(size, LIMIT - 1)  # its bound is found out where it is needed


def _most(change: Any) -> int:
    return abs(change) if isinstance(change, int) else int(abs(change).max())


class _Peak:
    """The highest of some moments, for every plan its own: their levels are arrays, or one number for all."""

    def __init__(self) -> None:
        self._level: Any = -1
        self._tops: list[dict[str, Any]] = []
        """The components of moments that are the highest of some plan."""
        self._places: Any = 0
        """Which of them is each plan's."""

    def add(self, level: Any, components: dict[str, Any]) -> None:
        higher = level > self._level
        plans = 1 if isinstance(higher, bool) else len(higher)
        found = int(higher) if isinstance(higher, bool) else count_true(higher)
        if found == plans:
            self._level, self._tops, self._places = level, [components], 0
        elif found:
            import numpy as np

            self._level = np.where(higher, level, self._level)
            self._places = np.where(higher, len(self._tops), self._places)
            self._tops.append(components)

    def found(self) -> Moment:
        if isinstance(self._places, int):
            return self._level, self._tops[0]
        import numpy as np

        found = {}
        for name in dict.fromkeys(name for top in self._tops for name in top):
            values = np.empty(len(self._places), dtype=np.int64)
            for place, top in enumerate(self._tops):
                np.copyto(values, top.get(name, 0), where=self._places == place)
            found[name] = values
        return self._level, found


class ArrayMeter(Meter):
    """A meter for `Many`: live bytes are arrays, and each plan has a peak of its own.

    `_bound` is at least what any plan has alive, in Python's integers; nothing is added that could exceed 64 bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bound = 0
        self._top = _Peak()
        self._risen = True
        """Whether bytes were added since the last look at the peak: levels between are lower."""

    def end_phase(self) -> Moment:
        self._look()
        level, components = self._top.found()
        self._top, self._risen = _Peak(), True
        return _many(level), {name: _many(size) for name, size in components.items()}

    def born(self, storage: Storage) -> None:
        size: Any = storage.size
        if type(size) is Many:
            self._limit(size.bound)
            size = size.values
        else:
            self._limit(size)
        self.components[storage.component] = self.components[storage.component] + size
        self.live = self.live + size
        self._risen = True

    def died(self, storage: Storage) -> None:
        self._look()
        size = _raw(storage.size)
        self.components[storage.component] = self.components[storage.component] - size
        self.live = self.live - size

    def move(self, storage: Storage, component: str) -> None:
        self._look()
        size = _raw(storage.size)
        self.components[storage.component] = self.components[storage.component] - size
        self.components[component] = self.components[component] + size
        storage.component = component

    def bytes_of(self, component: str) -> Any:
        return _many(self.components[component])

    def state(self) -> dict[str, Any]:
        return {name: _many(size) for name, size in self.components.items()}

    def extrapolate(self, before: dict[str, Any], times: int) -> dict[str, Any]:
        changes = {name: size - _raw(before.get(name, 0)) for name, size in self.components.items()}
        self._limit(times * sum(_most(change) for change in changes.values()))
        for name, change in changes.items():
            changes[name] = change * times
            self.components[name] = self.components[name] + changes[name]
            self.live = self.live + changes[name]
        return changes

    def enter(self) -> Any:
        self._look()
        outer, self._top, self._risen = self._top, _Peak(), True
        return outer, self.state()

    def leave(self, entered: Any, more: int) -> None:
        self._look()
        inner, (self._top, before) = self._top, entered
        level, components = inner.found()
        self._top.add(level, components)
        if more:
            changes = self.extrapolate(before, more)
            last = {name: components.get(name, 0) + change for name, change in changes.items()}
            self._top.add(level + sum(changes.values()), last)

    def _look(self) -> None:
        if self._risen:
            self._risen = False
            self._top.add(self.live, self.components.copy())

    def _limit(self, size: int) -> None:
        """Raise `TooLarge` before something is added that could exceed 64 bits."""
        self._bound += size
        if self._bound >= LIMIT:
            self._bound = size + (self.live if isinstance(self.live, int) else int(self.live.max()))
            if self._bound >= LIMIT:
                raise TooLarge
