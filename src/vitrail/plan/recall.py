"""Answer a question that differs from earlier ones only in its image and batch by the arithmetic that answered those.

The first question of a kind is only planned. The second is also run on `Traced` numbers, which gives a program; it
answers all further questions that take the same branches of the planner, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.meter import Meter
from vitrail.plan.traced_meter import TracedMeter
from vitrail.plan.workload import Memory, Workload
from vitrail.traced import MARK, Program, Trace

__all__ = ["forget", "recalled"]

_KINDS = 64
"""Kinds of questions that are remembered, for the whole process: a slider and a search for the largest batch ask the
same `memory` again and again, and have nothing of their own that could hold what it learned."""
_PROGRAMS = 4
"""Programs of one kind: images and batches that differ more take other branches."""


@dataclass
class _Kind:
    """What is known of the questions that differ in image and batch alone."""

    asked: bool = False
    answers: list[tuple[Program, str]] = field(default_factory=list)
    """Programs, and the notes of their plans."""


@lru_cache(_KINDS)
def _kind(*_: Any) -> _Kind:
    return _Kind()


def forget() -> None:
    """Forget all earlier questions."""
    _kind.cache_clear()


def recalled(config: Config, workload: Workload, plan: Callable[[Config, Workload, Meter], Memory]) -> Memory:
    """Plan a question, or compute its answer as an earlier one's was."""
    kind = _kind(type(config), *_but(config, "image"), *_but(workload, "batch"))
    inputs = {"height": config.image.height, "width": config.image.width, "batch": workload.batch}
    for program, note in kind.answers:
        if (found := program(inputs)) is not None:
            return _memory(found, note)
    if kind.asked and len(kind.answers) < _PROGRAMS and (recorded := _record(config, workload, plan, inputs)):
        kind.answers.append(recorded)
    kind.asked = True
    return plan(config, workload, Meter())


def _record(
    config: Config, workload: Workload, plan: Callable[[Config, Workload, Meter], Memory], inputs: dict[str, int]
) -> tuple[Program, str] | None:
    """Return a program for questions like this one and their note; None if it is refused, or its note names numbers."""
    trace = Trace()
    height, width, batch = (trace.input(name, value) for name, value in inputs.items())
    image: Any = height, width
    try:
        found = plan(config.but(image=Size(*image)), workload.but(batch=batch), TracedMeter(trace))
    except VitrailError:
        return None
    sizes = {("bytes", name): size for name, size in found.bytes.items()}
    peaks = {("phases", name): size for name, size in found.phase_peaks.items()}
    program = trace.program({("peak", ""): found.peak_bytes} | sizes | peaks)
    return None if MARK in found.note else (program, found.note)


def _memory(found: dict[tuple[str, str], int], note: str) -> Memory:
    parts: dict[str, dict[str, int]] = {"peak": {}, "bytes": {}, "phases": {}}
    for (part, name), size in found.items():
        parts[part][name] = size
    peak, components, phases = parts["peak"][""], parts["bytes"], parts["phases"]
    return Memory(peak_bytes=peak, bytes=components, phase_peaks=phases, exact=not note, note=note)


def _but(value: Any, left_out: str) -> list[Any]:
    return [getattr(value, each.name) for each in fields(value) if each.name != left_out]
