"""Charts of plans: memory against image size, through a step, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.charts.lines import named_lines
from vitrail.charts.numbers import bytes_text
from vitrail.charts.palette import BLUE, BROWN, GREEN, INK, ORANGE, PINK, SILVER, SKY, VERMILLION, VIOLET, YELLOW
from vitrail.charts.plots import limit, note, plots
from vitrail.charts.sheet import check_drawing
from vitrail.charts.stack import stacked_areas
from vitrail.config import Config
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.plan.by_image import memory_by_image
from vitrail.plan.cards import GIB, MIB, Card
from vitrail.plan.memory import memory
from vitrail.plan.timeline import Timeline
from vitrail.plan.workload import Workload

if TYPE_CHECKING:
    from vitrail.cli.sweep import Answer

__all__ = ["memory_chart", "sweep_chart", "timeline_chart"]

COLOURS = {
    "weights": BLUE,
    "gradients": SKY,
    "optimizer": GREEN,
    "weight_casts": YELLOW,
    "activations": ORANGE,
    "attention_maps": VERMILLION,
    "gathered_weights": VIOLET,
    "reduced_gradients": BROWN,
    "temporary": PINK,
    "input": SILVER,
}
"""From the ground of the stack upward."""


def memory_chart(config: Config, workload: Workload, target: Card | None, path: Path, *, name: str) -> None:
    """Bytes at the peak by component, stacked, for images of the same shape from small to twice the size."""
    check_drawing(path)
    samples = memory_by_image(config, workload, target, widest=6)
    require(len(samples) > 1, f"image {config.image} leaves nothing to draw; give a larger one")
    images, here = [sample.image for sample in samples], memory(config, workload).peak_bytes
    unit, unit_name = (GIB, "GiB") if samples[-1].peak_bytes >= GIB else (MIB, "MiB")
    total, needed = samples[-1].peak_bytes / unit, [(sample.needed_bytes or 0) / unit for sample in samples]
    stack = {part: [sample.bytes.get(part, 0) / unit for sample in samples] for part in COLOURS}
    visible = 0 if target is None else target.visible_bytes / unit

    square = config.image.height == config.image.width
    sheet, (axes,) = plots(
        f"{name}: memory of {'training' if workload.train else 'inference'} against image size",
        f"batch {workload.batch}, {workload.precision}, {workload.attention} attention",
        [("", "image side, pixels" if square else "image, height × width", f"{unit_name} at the peak, one device")],
        height=4.3,
        width=7.2,
        names=[*COLOURS],
    )
    sides = [image.height for image in images]
    stacked_areas(
        axes,
        sides,
        {part: values for part, values in stack.items() if max(values) > 0.004 * total},
        COLOURS,
        top=1.04 * total if target is None else max(1.04 * needed[-1], 1.12 * visible),
    )
    if target is not None:
        axes.plot(sides, needed, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        note(axes, "likely on the card", (sides[-1], needed[-1]), right=-4, ha="right", va="bottom")
        limit(axes, sides[0], visible, _named(target))
    place = (config.image.height, here / unit)
    axes.plot(*place, "o", color=INK, markersize=5, zorder=5, clip_on=False)
    note(axes, f"{config.image}: {bytes_text(here)}", place, right=9, up=-5, va="top", fontweight="bold")
    ticks = images[:: max(1, len(images) // 6)]
    axes.set_xticks([image.height for image in ticks], [str(image.height if square else image) for image in ticks])
    sheet.save(path)


def timeline_chart(timeline: Timeline, target: Card | None, path: Path, *, title: str, subtitle: str) -> None:
    """Bytes alive by component, stacked, through the operations of a step."""
    check_drawing(path)
    points = timeline.stack(1200)
    steps = [point for point in points if point[1].phase == "optimizer"]
    if steps and len(steps) < len(points) // 20:  # a planned one is a single event: give it width
        highest = max(steps, key=lambda point: sum(point[2].values()))
        points.append((points[-1][0] + points[-1][0] // 20, *highest[1:]))
    peak = timeline.peak_bytes
    unit, unit_name = (GIB, "GiB") if peak >= GIB else (MIB, "MiB")
    visible = 0 if target is None else target.visible_bytes / unit
    top = max(1.16 * peak / unit, 1.12 * visible)
    sheet, (axes,) = plots(
        title,
        subtitle,
        [("", "allocations and releases, in order", f"{unit_name} alive, one device")],
        height=4.3,
        width=8.4,
        names=[*COLOURS],
    )
    places = [place for place, _, _ in points]
    stack = {part: [live.get(part, 0) / unit for _, _, live in points] for part in COLOURS}
    stacked_areas(axes, places, {part: values for part, values in stack.items() if max(values) > 0}, COLOURS, top=top)
    begins = {event.phase: place for place, event, _ in reversed(points)}
    for phase, place in begins.items():
        axes.axvline(place, color=INK, linewidth=0.6, alpha=0.5)
        turn = {"ha": "right", "right": -4} if place > 0.92 * places[-1] else {"right": 4}
        note(axes, phase, (place, 0.985 * top), va="top", **turn)
    highest = max(points, key=lambda point: sum(point[2].values()))[0]
    axes.plot(highest, peak / unit, "o", color=INK, markersize=5, zorder=5, clip_on=False)
    side = {"right": -9, "ha": "right"} if highest > places[-1] / 2 else {"right": 9}
    note(axes, bytes_text(peak), (highest, peak / unit), up=5, fontweight="bold", **side)
    if target is not None:
        limit(axes, places[0], visible, _named(target))
    sheet.save(path)


def sweep_chart(
    axes: dict[str, list[Any]], answers: Sequence[Answer], target: Card | None, path: Path, *, title: str, subtitle: str
) -> None:
    """Peak memory against one of the sweep's numbers, a line for every combination of the others."""
    numeric = [key for key, values in axes.items() if len(values) > 1 and isinstance(values[0], int | Size)]
    require(bool(numeric), "a chart of a sweep needs two values or more of a number; add image=224,384,512")
    along = "image" if "image" in numeric else max(numeric, key=lambda key: len(axes[key]))
    naming = [key for key, values in axes.items() if key != along and len(values) > 1]
    lines: dict[str, list[tuple[int, float]]] = {}
    for answer in answers:
        if not answer.error:
            others = ", ".join(_say(key, value) for key, value in answer.values.items() if key in naming)
            lines.setdefault(others, []).append((_number(answer.values[along]), answer.numbers["peak_bytes"] / GIB))
    words = along.replace("_", " ")
    sheet, (drawn,) = plots(
        f"{title} against {words}",
        subtitle,
        [("", "image side, pixels" if along == "image" else words, "GiB at the peak, one device")],
        height=4.3,
        width=7.2,
        names=[*lines],
    )
    ceiling = None if target is None else (_named(target), target.visible_bytes / GIB)
    named_lines(drawn, {name: sorted(points) for name, points in lines.items()}, ceiling)
    sheet.save(path)


def _named(target: Card) -> str:
    known = target.name if target.tflops else "the card"
    return f"{known}, {target.visible_bytes / GIB:.1f} GiB visible"


def _number(value: int | Size) -> int:
    return value.height if isinstance(value, Size) else value


def _say(key: str, value: Any) -> str:
    if isinstance(value, Size):
        value = value.height if value.height == value.width else value
    return str(value) if key == "model" else f"{key.replace('_', ' ')} {value}"
