"""vitrail plan --module: what a step of any nn.Module takes, followed on fake tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.cli.plan_timeline import write_timeline
from vitrail.cli.plan_view import memory_table, percent, verdict_table
from vitrail.cli.tables import show, table, write_csv, write_json, written
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.hardware import verdicts
from vitrail.plan.workload import Workload

if TYPE_CHECKING:
    from torch import nn

    from vitrail.tracking.module import Input, Tracked

__all__ = ["followed", "run_module"]


def run_module(
    name: str,
    shapes: str | None,
    image: Size | None,
    workload: Workload,
    target: Card | None,
    *,
    timeline: Path | None,
    json: bool,
    csv: bool,
) -> None:
    """Build the module without weights, follow a step of it, and show, write or draw what it takes."""
    found, inputs = followed(name, shapes, image, workload)
    step = "training" if workload.train else "inference"
    said = f"input {', '.join(map(str, inputs))} · {step} · {workload.precision}"
    said += f" · {workload.optimizer}" if workload.train else ""
    if timeline is not None:
        write_timeline(found.timeline, target, timeline, title=f"{name}: memory of {step}", subtitle=said)
    if json:
        write_json(_plain(found, name, target))
    elif csv:
        write_csv(("path", "params", "bytes_at_peak"), found.rows())
    else:
        _show(found, f"{name} · {said}", target)
        written(*([timeline] if timeline else []))


def followed(
    name: str, shapes: str | None, image: Size | None, workload: Workload
) -> tuple[Tracked, tuple[Input, ...]]:
    """Build a module without weights and follow a step of it; also return what it was given."""
    from vitrail.tracking.module import track
    from vitrail.tracking.sources import explained, source

    origin = source(name)
    with explained(origin, "building the module"):
        model = origin.build(image, workload.attention == "eager")
    inputs = _inputs(model, name, shapes, image, workload.batch)
    with explained(origin, f"running a step on {', '.join(map(str, inputs))}"):
        return track(model, inputs, workload), inputs


def _inputs(model: nn.Module, name: str, shapes: str | None, image: Size | None, batch: int) -> tuple[Input, ...]:
    """Return what the module takes: --input, or --batch images of the size that the model itself names."""
    from vitrail.tracking.module import Input

    if shapes is not None:
        require(batch == 1, f"--batch {batch} was given with --input {shapes}, which begins with the batch; give one")
        require(image is None, f"--image {image} was given with --input {shapes}, which has the size; give one")
        return tuple(Input.parse(text) for text in shapes.split(","))
    own = _own_shape(model)
    if own is None:
        raise VitrailError(f"{name} does not say what it takes; give --input, e.g. 8x3x224x224")
    channels, *sides = own
    return (Input((batch, channels, *(image or sides))),)


def _own_shape(model: nn.Module) -> tuple[int, ...] | None:
    """Return (channels, height, width) as timm's and transformers' models carry them."""
    known = getattr(model, "pretrained_cfg", None)
    if isinstance(known, dict) and known.get("input_size"):
        return tuple(known["input_size"])
    config = getattr(model, "config", None)
    config = getattr(config, "vision_config", config)
    side = getattr(config, "image_size", None)
    if side is None:
        return None
    height, width = side if isinstance(side, list | tuple) else (side, side)
    return getattr(config, "num_channels", 3), height, width


def _plain(found: Tracked, name: str, target: Card | None) -> dict[str, Any]:
    held = found.memory
    return {
        "module": name,
        "inputs": [str(each) for each in found.inputs],
        "workload": found.workload.to_json(),
        "params": sum(found.params.values()),
        "flops_forward": found.flops_forward,
        "flops_step": found.flops_step,
        "loss": found.loss or None,
        "peak_bytes": held.peak_bytes,
        "bytes": held.bytes,
        "phase_peaks": held.phase_peaks,
        "modules": [dict(zip(("path", "params", "bytes"), row, strict=True)) for row in found.rows()],
        "verdicts": {
            each.name: {"fits": each.fits, "needed_bytes": each.needed_bytes, "free_bytes": each.free_bytes}
            for each in (verdicts(held, target) if target else ())
        },
        "notes": [held.note],
    }


def _show(found: Tracked, title: str, target: Card | None) -> None:
    held = found.memory
    rows = [
        ("parameters", f"{sum(found.params.values()):,}"),
        ("forward", f"{count_text(found.flops_forward, 'FLOP')} for the whole input"),
    ]
    if found.workload.train:
        rows += [("forward + backward", count_text(found.flops_step, "FLOP")), ("loss", found.loss)]
    parts = [
        (path or "outside modules", f"{params:,}" if params else "", bytes_text(size), percent(size / held.peak_bytes))
        for path, params, size in _grouped(found.rows(2))
    ]
    show(
        f"\n[bold]{title}[/]",
        table("", ("", ""), rows, "ll"),
        memory_table(held, "followed"),
        table("By module, at the peak", ("module", "parameters", "bytes", "share"), parts, "lrrr"),
        *([verdict_table(target, verdicts(held, target), {})] if target else []),
        f"[dim]note: {held.note}[/]",
    )


def _grouped(rows: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Add numbered modules up: blocks.0 to blocks.11 are one row."""
    found: dict[str, list[int]] = {}
    for path, params, size in rows:
        shared = re.sub(r"\.\d+$", "[…]", path)
        numbers = found.setdefault(shared, [0, 0, 0])
        found[shared] = [numbers[0] + params, numbers[1] + size, numbers[2] + 1]
    return [
        (f"{path} × {count}" if count > 1 else path, params, size)
        for path, (params, size, count) in sorted(found.items(), key=lambda item: -item[1][1])
        if params or size
    ]
