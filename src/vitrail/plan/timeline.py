"""Bytes alive through a step, event by event: which operation of which module took or released them.

A plan's timeline comes from its tape, a module's from the tracker (`vitrail.tracking`); charts and snapshots show both.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any, Literal, NamedTuple

from vitrail.charts.notebook import Shown, facts
from vitrail.charts.numbers import bytes_text
from vitrail.config import Config
from vitrail.errors import require
from vitrail.plan.graph import Node, Tensor
from vitrail.plan.memory import is_followed, persistent_bytes
from vitrail.plan.meter import LogMeter, Storage
from vitrail.plan.repetition import Run, flat
from vitrail.plan.sharding import micro_batches
from vitrail.plan.step import Step, run_step
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["PHASES", "Event", "Timeline", "timeline"]

Phase = Literal["before", "forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("before", "forward", "backward", "optimizer")
"""What is alive before a step is allocated in the phase "before"."""


class Event(NamedTuple):
    """Bytes that are taken, or released if their number is negative.

    A block that changes its component or shrinks, such as a gradient that becomes a parameter's, is released and taken
    again.
    """

    phase: Phase
    operation: str
    module: str
    component: str
    bytes: int
    block: int
    """The number of the storage."""


@dataclass(frozen=True, repr=False)
class Timeline(Shown):
    """The events of a step, in order, and what follows from them.

    >>> from vitrail import preset
    >>> from vitrail.plan import Workload, memory, timeline
    >>> training = Workload(batch=8, train=True)
    >>> timeline(preset("S/16"), training).peak_bytes == memory(preset("S/16"), training).peak_bytes
    True
    """

    events: tuple[Event, ...]

    @property
    def peak_bytes(self) -> int:
        return max(self.levels())

    @property
    def phase_peaks(self) -> dict[str, int]:
        """The highest level of each phase, what was alive when it began included."""
        peaks: dict[str, int] = {}
        live = 0
        for event in self.events:
            if event.phase != "before":
                peaks.setdefault(event.phase, live)
            live += event.bytes
            if event.phase != "before":
                peaks[event.phase] = max(peaks[event.phase], live)
        return peaks

    def levels(self) -> Iterator[int]:
        """Yield the bytes alive after each event."""
        live = 0
        for event in self.events:
            live += event.bytes
            yield live

    def stack(self, points: int) -> list[tuple[int, Event, dict[str, int]]]:
        """Return at most about `points` places of the step: the highest of each stretch of events.

        A place is the number of the event since the step began, the event, and the bytes alive by component.
        """
        live: dict[str, int] = defaultdict(int)
        found: list[tuple[int, Event, dict[str, int]]] = []
        start = sum(event.phase == "before" for event in self.events)
        stretch, highest = -(-(len(self.events) - start) // points), -1
        for place, event in enumerate(self.events, -start):
            live[event.component] += event.bytes
            if event.phase == "before":
                continue
            level, new = sum(live.values()), not found or place // stretch != found[-1][0] // stretch
            if new or level > highest:
                found[len(found) - (not new) :] = [(place, event, dict(live))]
                highest = level
        return found

    def at_peak(self, by: Literal["component", "module", "operation"] = "component") -> dict[str, int]:
        """Return the bytes alive at the peak by component, module or operation; their sum is `peak_bytes`."""
        last = max(enumerate(self.levels()), key=lambda place: place[1])[0]
        found: dict[str, int] = defaultdict(int)
        for event in self.events[: last + 1]:
            found[getattr(event, by)] += event.bytes
        return {name: size for name, size in found.items() if size}

    def _summary(self) -> str:
        return f"{len(self.events):,} events, {bytes_text(self.peak_bytes)} at the peak"

    def _panel(self) -> Iterator[str]:
        yield facts((f"peak in {phase}", bytes_text(size)) for phase, size in self.phase_peaks.items())


def timeline(config: Config, workload: Workload) -> Timeline:
    """Return the timeline of a planned step. Every block is run, so it takes longer than `memory`.

    >>> from vitrail import preset
    >>> from vitrail.plan import Workload, timeline
    >>> timeline(preset("Ti/16"), Workload())
    <Timeline: 424 events, 24.0 MiB at the peak>
    """
    step, log = _followed(config, workload)
    persistent, temporary = persistent_bytes(workload, step.tape)
    before = [
        Event("before", "", "", component, size, -1 - place)
        for place, (component, size) in enumerate(persistent.items())
        if size
    ]
    events = [*before, *log.events]
    if workload.train:
        taken = Event("optimizer", workload.optimizer, "", "temporary", temporary, -1 - len(before))
        events += [taken, taken._replace(bytes=-temporary)]
    return Timeline(tuple(events))


def _followed(config: Config, workload: Workload) -> tuple[Step, _Log]:
    """Run a step, on one of its devices if there are several; the last micro-batch if it accumulates."""
    logs: list[_Log] = []

    def meter() -> _Log:
        logs.append(_Log(*PHASES[1:3] if workload.train else PHASES[1:2]))
        return logs[-1]

    if workload.shard is None:
        return run_step(config, workload, kind=_NamingTape, meter=meter()), logs[-1]
    require(
        is_followed(workload),
        f"a timeline of {workload.shard.kind} is not modelled: PyTorch has no such stage to follow; use ddp, zero1, "
        "fsdp or tensor",
    )
    *_, last = micro_batches(config, workload, meter=meter, adapt=_naming)
    return last, logs[-1]


def _naming(kind: type[Tape]) -> Callable[..., Tape]:
    return type(f"Naming{kind.__name__}", (_NamingTape, kind), {})


class _Log(LogMeter):
    """A meter that keeps every event."""

    def __init__(self, *phases: Phase) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.operation = ""
        """The operation that autograd runs; otherwise it is found on the stack."""
        self.module = ""
        """The module that was named last."""
        self._phases: Iterator[Phase] = iter(phases)
        self._phase: Phase = next(self._phases)
        self._numbers: dict[int, tuple[int, str, str]] = {}
        self._next = count()

    @contextmanager
    def before(self) -> Iterator[None]:
        """Log what is allocated before a step begins, such as DDP's buckets."""
        first, self._phase = self._phase, "before"
        yield
        self._phase = first

    def end_phase(self) -> tuple[int, dict[str, int]]:
        following = next(self._phases, None)
        self._phase = following or self._phase
        return super().end_phase()

    def storage(self, component: str, size: int) -> Storage:
        made = super().storage(component, size)
        operation = self.operation or _operation(sys._getframe(1))
        self._numbers[id(made)] = (next(self._next), operation, self.module)
        self._write(made, size)
        return made

    def died(self, storage: Storage) -> None:
        self._write(storage, -storage.size)
        del self._numbers[id(storage)]

    def move(self, storage: Storage, component: str) -> None:
        self._write(storage, -storage.size)
        storage.component = component
        self._write(storage, storage.size)

    def shrink(self, storage: Storage, size: int) -> None:
        self._write(storage, -storage.size)
        storage.size -= size
        self._write(storage, storage.size)

    def _write(self, storage: Storage, size: int) -> None:
        block, operation, module = self._numbers[id(storage)]
        self.events.append(Event(self._phase, operation, module, storage.component, size, block))


class _NamingTape(Tape):
    """A tape that runs every block and remembers which operation each node of autograd's graph comes from."""

    meter: _Log

    def __init__(self, meter: _Log, **settings: Any) -> None:
        with meter.before():
            super().__init__(meter, **settings)
        self._origins: dict[int, tuple[str, str]] = {}
        """By a node's identity: the node itself would keep alive what it saved."""

    def repeat(self, name: str, block: Any, x: Tensor, runs: list[Run]) -> Tensor:
        given = [x]  # handed on, so that the first block releases it
        del x
        return super().repeat(name, block, given.pop(), [[group] for groups in flat(runs) for group in groups])

    def record(self, out: Tensor, inputs: Any, saved: Any, backward: Any) -> Tensor:
        recorded = super().record(out, inputs, saved, backward)
        if isinstance(recorded.node, Node):
            self._origins[id(recorded.node)] = (_operation(sys._getframe(1)), self.meter.module)
        return recorded

    def at(self, path: str) -> None:
        self.meter.module = path

    def parameter(self, path: str, count: int, name: str = "weight", *, rows: int | None = None) -> Tensor:
        self.meter.module = self.scope + path
        return super().parameter(path, count, name, rows=rows)

    def save(self, path: str, inputs: tuple[Tensor | None, ...], *tensors: Tensor | None) -> Any:
        self.meter.module = self.scope + path
        return super().save(path, inputs, *tensors)

    def tally(self, path: str, flops: int) -> None:
        self.meter.module = path
        super().tally(path, flops)

    def _run(self, node: Node) -> None:
        operation, self.meter.module = self._origins[id(node)]
        self.meter.operation = f"{operation} backward"
        super()._run(node)
        self.meter.operation = ""

    def _recompute(self, frame: Any) -> None:
        outer, self.meter.operation = (self.meter.operation, self.meter.module), ""
        super()._recompute(frame)
        self.meter.operation, self.meter.module = outer


def _operation(frame: FrameType | None) -> str:
    """Return the outermost function of `ops` that the model has called, or the innermost of `sharding`. Variables are
    not read: that would keep tensors alive."""
    found = "new"
    while frame is not None and ".model." not in frame.f_globals["__name__"] and frame.f_code.co_name != "run_step":
        if frame.f_globals["__name__"].endswith("ops"):
            found = frame.f_code.co_name.strip("_")
        elif frame.f_globals["__name__"].endswith("sharding"):
            return frame.f_code.co_name.strip("_")
        frame = frame.f_back
    return found
