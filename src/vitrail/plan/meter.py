"""Count live bytes: a storage adds itself when it is created and subtracts itself when nothing refers to it."""

from __future__ import annotations

from typing import Any

__all__ = ["COMPONENTS", "LogMeter", "Meter", "NoMeter", "Storage", "Stretch"]

COMPONENTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "attention_maps",
    "weight_casts",
    "input",
    "gathered_weights",
    "reduced_gradients",
    "temporary",
)


class Storage:
    """Bytes that live as long as something refers to them."""

    __slots__ = ("component", "kind", "meter", "saved", "size")
    component: str
    kind: int
    """For a meter that counts by kind."""
    meter: Any
    saved: bool
    size: int


class _Counted(Storage):
    """A storage that counts itself out when nothing refers to it any more."""

    __slots__ = ()

    def __del__(self) -> None:
        meter, size = self.meter, self.size
        live, components = meter.live, meter.components
        if live > meter.peak:  # a peak is the level before something dies: it need not be looked for at every birth
            meter.peak, meter.at_peak = live, components.copy()
        components[self.component] -= size
        meter.live = live - size


class Meter:
    """Live bytes by component, now and at the peak since the last `end_phase`."""

    __slots__ = ("at_peak", "components", "live", "peak")

    def __init__(self) -> None:
        self.live: int = 0
        self.peak: int = 0
        self.components: dict[str, int] = dict.fromkeys(COMPONENTS, 0)
        self.at_peak: dict[str, int] = {}

    def storage(self, component: str, size: int) -> Storage:
        """Count a new storage."""
        made = _Counted()
        made.meter, made.component, made.size, made.saved = self, component, size, False
        self.components[component] += size
        self.live += size
        return made

    def end_phase(self) -> tuple[int, dict[str, int]]:
        """Return the peak since the last phase and its bytes by component, and begin another."""
        self._look()
        ended = self.peak, self.at_peak
        self.peak, self.at_peak = self.live, self.state()
        return ended

    def _look(self) -> None:
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, self.components.copy()

    def move(self, storage: Storage, component: str) -> None:
        """Move a storage's bytes to another component."""
        components, size = self.components, storage.size
        if self.live > self.peak:
            self._look()
        components[storage.component] -= size
        components[component] += size
        storage.component = component

    def shrink(self, storage: Storage, size: int) -> None:
        """Release a part of a storage."""
        self._look()
        self.components[storage.component] -= size
        self.live -= size
        storage.size -= size

    def state(self) -> dict[str, int]:
        return self.components.copy()

    def enter(self) -> Any:
        """Begin a stretch, with a peak of its own."""
        self._look()
        entered = self.peak, self.at_peak, self.state()
        self.peak, self.at_peak = self.live, entered[2]
        return entered

    def change(self, entered: Any, component: str) -> int:
        """Return the change of a component's bytes since a stretch began."""
        return self.components[component] - entered[2][component]

    def leave(self, entered: Any, more: int) -> None:
        """End a stretch that stands for itself and `more` after it.

        Each of them changes the live bytes by the same amount, so the highest peak is that of the first or of the last.
        """
        self._look()
        peak, at_peak, before = entered
        if more:
            changes = {name: (size - before[name]) * more for name, size in self.components.items()}
            for name, change in changes.items():
                self.components[name] += change
            risen = sum(changes.values())
            self.live += risen
            if risen > 0:
                self.peak += risen
                self.at_peak = {name: self.at_peak[name] + change for name, change in changes.items()}
        if peak >= self.peak:
            self.peak, self.at_peak = peak, at_peak


class NoMeter(Meter):
    """A meter that counts nothing, for runs that are asked for parameters and FLOPs."""

    kind = Storage

    def storage(self, component: str, size: int) -> Storage:
        made = self.kind()
        made.meter, made.component, made.size, made.saved = self, component, size, False
        return made

    def move(self, storage: Storage, component: str) -> None:
        pass


class _Told(Storage):
    __slots__ = ()

    def __del__(self) -> None:
        self.meter.died(self)


class LogMeter(NoMeter):
    """A meter that is told of every storage's death, and counts later."""

    kind = _Told

    def died(self, storage: Storage) -> None:
        raise NotImplementedError


class Stretch:
    """A part of a run that stands for itself and for `more` equal ones after it."""

    __slots__ = ("_entered", "_meter", "more")

    def __init__(self, meter: Meter, more: int = 0) -> None:
        self._meter, self.more = meter, more

    def begin(self) -> None:
        self._entered = self._meter.enter()

    def change(self, component: str) -> int:
        return self._meter.change(self._entered, component)

    def end(self) -> None:
        self._meter.leave(self._entered, self.more)
