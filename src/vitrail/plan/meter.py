"""Live bytes: storages add themselves when they are made and take themselves away when nothing refers to them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

__all__ = ["ArrayMeter", "Meter", "Number", "Storage"]

Number = Any
"""An int; or a NumPy array of them, one per config of a sweep."""


class Meter:
    """Live bytes by component, and what they were at the highest point since the last `restart`."""

    def __init__(self) -> None:
        self.live: Number = 0
        self.peak: Number = 0
        self.components: dict[str, Number] = defaultdict(int)
        self.at_peak: dict[str, Number] = {}

    def restart(self) -> None:
        self.peak, self.at_peak = self.live, dict(self.components)

    def add(self, component: str, size: Number) -> None:
        self.components[component] += size
        self.live += size
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, self.components.copy()

    def move(self, storage: Storage, component: str) -> None:
        """Call a storage's bytes by another name."""
        self.components[storage.component] -= storage.size
        self.components[component] += storage.size
        storage.component = component

    def state(self) -> dict[str, Number]:
        return self.components.copy()

    def extrapolate(self, before: dict[str, Number], times: Number) -> None:
        """Make the change since `before` so many times more."""
        for component, size in self.components.items():
            change = (size - before.get(component, 0)) * times
            self.components[component] = size + change
            self.live = self.live + change


class ArrayMeter(Meter):
    """The same for arrays of sizes; the peak alone, without components."""

    def add(self, component: str, size: Number) -> None:
        import numpy as np

        self.live = self.live + size
        self.peak = np.maximum(self.peak, self.live)

    def move(self, storage: Storage, component: str) -> None:
        pass

    def state(self) -> dict[str, Number]:
        return {"live": self.live}

    def extrapolate(self, before: dict[str, Number], times: Number) -> None:
        self.live = self.live + (self.live - before["live"]) * times


class Storage:
    """Bytes that live as long as something refers to them."""

    __slots__ = ("component", "meter", "saved", "size")

    def __init__(self, meter: Meter, component: str, size: Number) -> None:
        self.meter, self.component, self.size, self.saved = meter, component, size, False
        meter.add(component, size)

    def __del__(self) -> None:
        self.meter.add(self.component, -self.size)
