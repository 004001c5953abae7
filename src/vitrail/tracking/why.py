"""Where two followed modules differ: the bytes at the peak of a step, by what they hold and by what made them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from vitrail.tracking.module import Tracked

__all__ = ["Difference", "differences"]

WHOLE = ("weights", "gradients", "optimizer", "input")
"""Components that are one cause; the others are split by operation."""


@dataclass(frozen=True)
class Difference:
    """The bytes of one cause at each module's peak."""

    name: str
    before: int
    after: int

    @property
    def bytes(self) -> int:
        return self.after - self.before


def differences(before: Tracked, after: Tracked) -> list[Difference]:
    """Return the causes of the difference between two peaks, largest first; they sum exactly to it.

    >>> import torch
    >>> from torch import nn
    >>> from vitrail.plan import Workload
    >>> from vitrail.tracking.module import Input, track
    >>> with torch.device("meta"):
    ...     models = [nn.Linear(5, width) for width in (7, 11)]
    >>> found = differences(*(track(each, (Input((2, 5)),), Workload()) for each in models))
    >>> [(each.name, each.bytes) for each in found]
    [('weights', 96), ('activations: addmm', 32)]
    """
    first, second = _at_peak(before), _at_peak(after)
    found = [Difference(name, first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys([*first, *second])]
    return sorted((each for each in found if each.bytes), key=lambda each: -abs(each.bytes))


def _at_peak(tracked: Tracked) -> dict[str, int]:
    timeline = tracked.timeline
    last = max(enumerate(timeline.levels()), key=lambda place: place[1])[0]
    found: dict[str, int] = defaultdict(int)
    for event in timeline.events[: last + 1]:
        kind, operation = event.component.replace("_", " "), re.sub(r"^aten\.(\w+)\..*", r"\1", event.operation)
        found[kind if kind in WHOLE or not operation else f"{kind}: {operation}"] += event.bytes
    return {name: size for name, size in found.items() if size}
