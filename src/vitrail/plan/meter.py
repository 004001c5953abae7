"""Count live bytes: a storage adds itself when it is created and subtracts itself when nothing refers to it."""

from __future__ import annotations

from collections import defaultdict

__all__ = ["Meter", "Storage", "Stretch"]


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
        size, components = storage.size, self.components
        components[storage.component] += size
        live = self.live = self.live + size
        if live > self.peak:
            self.peak, self.at_peak = live, components.copy()

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

    def extrapolate(self, before: dict[str, int], times: int) -> dict[str, int]:
        """Apply the change since `before` another `times` times, and return it by component."""
        changes = {name: (size - before.get(name, 0)) * times for name, size in self.components.items()}
        for name, change in changes.items():
            self.components[name] += change
            self.live = self.live + change
        return changes


class Stretch:
    """A part of a run that stands for itself and for `more` equal ones after it.

    Each of them changes the live bytes by the same amount, so the highest peak is that of the first or of the last.
    """

    __slots__ = ("_before", "_meter", "_outer", "more")

    def __init__(self, meter: Meter) -> None:
        self._meter, self.more = meter, 0

    def begin(self) -> None:
        meter = self._meter
        self._outer, self._before = (meter.peak, meter.at_peak), meter.state()
        meter.peak, meter.at_peak = meter.live, self._before

    def end(self) -> None:
        meter = self._meter
        if self.more:
            changes = meter.extrapolate(self._before, self.more)
            risen = sum(changes.values())
            if risen > 0:
                at_peak = {name: meter.at_peak.get(name, 0) + change for name, change in changes.items()}
                meter.peak, meter.at_peak = meter.peak + risen, at_peak
        if self._outer[0] >= meter.peak:
            meter.peak, meter.at_peak = self._outer


class Storage:
    """Bytes that live as long as something refers to them."""

    __slots__ = ("component", "meter", "saved", "size")

    def __init__(self, meter: Meter, component: str, size: int) -> None:
        self.meter = meter
        self.component = component
        self.size = size
        self.saved = False
        meter.born(self)

    def __del__(self) -> None:
        self.meter.died(self)
