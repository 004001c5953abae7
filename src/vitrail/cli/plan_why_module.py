"""vitrail plan --why with modules: two steps followed on fake tensors, and where their bytes differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.cli.plan_module import followed
from vitrail.cli.tables import show, table, write_json
from vitrail.config import Config
from vitrail.errors import require
from vitrail.plan.workload import Workload

if TYPE_CHECKING:
    from vitrail.tracking.module import Tracked
    from vitrail.tracking.why import Difference

__all__ = ["is_module", "run_why_modules"]

SHOWN = 14
"""Causes that a table lists; the others are one row."""


def is_module(name: str) -> bool:
    """Return whether a name is of a module rather than of a config."""
    return re.match(r"(timm|transformers):.|.+\.py:\w+$", name) is not None


def run_why_modules(
    sides: Sequence[tuple[str, str, dict[str, Any], Workload]],
    *,
    build: Callable[..., Config],
    shapes: str | None,
    json: bool,
) -> None:
    """Follow both sides, each (title, name, question, workload), and show where their bytes differ.

    A config is built and followed too, so that both sides are counted in one way. `shapes` are what modules take.
    """
    from vitrail.tracking.why import differences

    names = [title for title, _, _, _ in sides]
    first, second = (_followed(*side[1:], shapes, build) for side in sides)
    parts = differences(first, second)
    if json:
        write_json(
            {
                "models": names,
                "before": _cost(first),
                "after": _cost(second),
                "parts": [
                    {"name": each.name, "before": each.before, "after": each.after, "bytes": each.bytes}
                    for each in parts
                ],
                "notes": [first.memory.note],
            }
        )
    else:
        _show(names, first, second, parts)


def _followed(
    name: str, question: dict[str, Any], workload: Workload, shapes: str | None, build: Callable[..., Config]
) -> Tracked:
    require(
        workload.tuning.is_everything and workload.library == "vitrail" and workload.shard is None,
        "--why with a module takes no --freeze, --train-last, --train-only, --lora, --shard or --as; leave that out",
    )
    if is_module(name):
        given = [key for key, value in question.items() if value is not None and key not in ("model", "image")]
        require(not given, f"{name} is a module, which {', '.join(given)} cannot change; leave that out")
        return followed(name, shapes, question["image"], workload)[0]
    import torch

    from vitrail.nn.build import build as build_module
    from vitrail.tracking.module import Input, track

    config = build(**question)
    with torch.device("meta"):
        model = build_module(config)
    return track(model, (Input((workload.batch, *config.input_shape)),), workload)


def _cost(tracked: Tracked) -> dict[str, int]:
    return {
        "bytes": tracked.timeline.peak_bytes,
        "flops": tracked.flops_step,
        "params": sum(tracked.params.values()),
    }


def _show(names: Sequence[str], first: Tracked, second: Tracked, parts: Sequence[Difference]) -> None:
    before, after = (each.timeline.peak_bytes for each in (first, second))
    more = f"{bytes_text(abs(after - before))} {'more' if after > before else 'less'}"
    said = f"The second takes {more}, {bytes_text(after)} instead of {bytes_text(before)}"
    rows = [(each.name, bytes_text(each.before), bytes_text(each.after), _signed(each.bytes)) for each in parts[:SHOWN]]
    if rest := parts[SHOWN:]:
        left, right = sum(each.before for each in rest), sum(each.after for each in rest)
        rows.append((f"{len(rest)} others", bytes_text(left), bytes_text(right), _signed(right - left)))
    phases = [each.timeline.phase_peaks for each in (first, second)]
    costs = [
        ("parameters", *(f"{sum(each.params.values()):,}" for each in (first, second))),
        ("FLOPs of a step", *(count_text(each.flops_step, "FLOP") for each in (first, second))),
        ("bytes at the peak", bytes_text(before), bytes_text(after)),
        ("peak in", *(max(peaks, key=lambda phase: peaks[phase]) for peaks in phases)),
    ]
    caption = "what the bytes hold, and the operation that made them; parts sum exactly to the difference"
    causes = table("", ("bytes at the peak", "first", "second", "difference"), rows, "lrrr", caption=caption)
    show(
        f"\n[bold]{'Both take the same memory' if before == after else said}[/]",
        *([causes] if rows else []),
        table("The two steps", ("", *names), costs, "lrr"),
        f"[dim]note: {first.memory.note}[/]",
    )


def _signed(size: int) -> str:
    return f"{'−' if size < 0 else '+'}{bytes_text(abs(size))}"
