"""Count live bytes: a storage adds itself when it is created and subtracts itself when nothing refers to it."""

from __future__ import annotations

from collections import defaultdict

__all__ = ["Meter", "Storage"]


class Meter:
    """Live bytes by component, now and at the peak since the last `restart`."""

    def __init__(self) -> None:
        self.live: int = 0
        self.peak: int = 0
        self.components: dict[str, int] = defaultdict(int)
        self.at_peak: dict[str, int] = {}

    def restart(self) -> None:
        self.peak, self.at_peak = self.live, dict(self.components)

    def born(self, storage: Storage) -> None:
        self.components[storage.component] += storage.size
        self.live += storage.size
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, self.components.copy()

    def died(self, storage: Storage) -> None:
        self.components[storage.component] -= storage.size
        self.live -= storage.size

    def move(self, storage: Storage, component: str) -> None:
        """Move a storage's bytes to another component."""
        self.components[storage.component] -= storage.size
        self.components[component] += storage.size
        storage.component = component

    def state(self) -> dict[str, int]:
        return self.components.copy()

    def extrapolate(self, before: dict[str, int], times: int) -> None:
        """Apply the change since `before` another `times` times."""
        for component, size in self.components.items():
            change = (size - before.get(component, 0)) * times
            self.components[component] = size + change
            self.live = self.live + change


class Storage:
    """Bytes that live as long as something refers to them."""

    __slots__ = ("component", "meter", "saved", "size")

    def __init__(self, meter: Meter, component: str, size: int) -> None:
        self.meter, self.component, self.size, self.saved = meter, component, size, False
        meter.born(self)

    def __del__(self) -> None:
        self.meter.died(self)
