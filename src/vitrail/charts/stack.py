"""Charts of plans: memory against image size, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.charts.plots import INK, RED, finish, halo, new_figure, plain_log, shades
from vitrail.cli.tables import bytes_text
from vitrail.config import Config
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.plan.by_image import memory_by_image
from vitrail.plan.hardware import GIB, MIB, Card
from vitrail.plan.memory import memory
from vitrail.plan.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitrail.cli.sweep import Answer

__all__ = ["memory_chart", "sweep_chart"]

# Okabe and Ito's colours, which people with any colour vision can tell apart, from the ground of the stack upward.
COLOURS = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#009E73",
    "weight_casts": "#F0E442",
    "activations": "#E69F00",
    "attention_maps": "#D55E00",
    "temporary": "#CC79A7",
    "input": "#999999",
}


# ── memory against image size ───────────────────────────────────────────────────────────────────────────────────


def memory_chart(config: Config, workload: Workload, target: Card | None, path: Path, *, name: str) -> None:
    """Bytes at the peak by component, stacked, for images of the same shape from small to twice the size."""
    figure, axes = new_figure(path)
    samples = memory_by_image(config, workload, target, widest=6)
    require(len(samples) > 1, f"image {config.image} leaves nothing to draw; give a larger one")
    sizes, plans = [sample.image for sample in samples], [sample.memory for sample in samples]
    sides = [size.height for size in sizes]
    unit, unit_name = (GIB, "GiB") if plans[-1].peak_bytes >= GIB else (MIB, "MiB")
    stack = {part: [plan.bytes.get(part, 0) / unit for plan in plans] for part in COLOURS}
    total = [plan.peak_bytes / unit for plan in plans]
    stack = {part: values for part, values in stack.items() if max(values) > 0.004 * total[-1]}
    axes.stackplot(sides, *stack.values(), colors=[COLOURS[part] for part in stack], linewidth=0, alpha=0.92)
    axes.plot(sides, total, color=INK, linewidth=1.4)

    top = total[-1] * 1.04
    if target is not None:
        needed = [sample.needed_bytes / unit for sample in samples]
        visible = target.visible_bytes / unit
        axes.plot(sides, needed, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate("likely on the card ", (sides[-1], needed[-1]), ha="right", va="bottom", color=INK, fontsize=8)
        axes.axhline(visible, color=RED, linewidth=1.2)
        axes.text(
            sides[0],
            visible,
            f" {_named(target)}",
            color=RED,
            va="bottom",
            ha="left",
            fontsize=9,
        )
        top = max(needed[-1] * 1.04, visible * 1.12)
    _mark(axes, config, workload, unit)
    axes.set_xlim(sides[0], sides[-1])
    axes.set_ylim(0, top)
    _band_labels(axes, sides[-1], stack, top)
    ticks = sizes[:: max(1, len(sizes) // 6)]
    square = config.image.height == config.image.width
    axes.set_xticks([size.height for size in ticks], [str(size.height) if square else str(size) for size in ticks])
    axes.set_xlabel("image side, pixels" if square else "image, height × width in pixels")
    axes.set_ylabel(f"{unit_name} at the peak, one device")
    kind = "training" if workload.train else "inference"
    title = f"{name}: memory of {kind} against image size"
    finish(figure, axes, path, title, f"batch {workload.batch}, {workload.precision}, {workload.attention} attention")


def _named(target: Card) -> str:
    known = target.name if target.tflops else "the card"
    return f"{known}, {target.visible_bytes / GIB:.1f} GiB visible"


def _mark(axes: Axes, config: Config, workload: Workload, unit: int) -> None:
    here = memory(config, workload).peak_bytes
    axes.plot([config.image.height], [here / unit], "o", color=INK, markersize=5, zorder=5, clip_on=False)
    axes.annotate(
        f"{config.image}: {bytes_text(here)}",
        (config.image.height, here / unit),
        xytext=(9, -5),
        textcoords="offset points",
        va="top",
        color=INK,
        fontsize=9,
        fontweight="bold",
        path_effects=halo(),
    )


def _band_labels(axes: Axes, right: float, stack: dict[str, list[float]], top: float) -> None:
    """Every component's name beside its band, moved apart where bands are thin."""
    level, wanted = 0.0, []
    for part, values in stack.items():
        wanted.append((part, level + values[-1] / 2))
        level += values[-1]
    for (part, centre), place in zip(wanted, _apart([centre for _, centre in wanted], top * 0.045), strict=True):
        axes.annotate(
            part.replace("_", " "),
            xy=(right, centre),
            xytext=(1.035, place / top),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=INK,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": COLOURS[part],
                "linewidth": 1.8,
                "shrinkA": 2,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, pushed up until neighbours are a gap apart."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, gap / 2))
    return moved


# ── sweeps ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sweep_chart(
    axes: dict[str, list[Any]], answers: Sequence[Answer], target: Card | None, path: Path, *, title: str, subtitle: str
) -> None:
    """Peak memory against one of the sweep's numbers, a line for every combination of the others."""
    numeric = [key for key, values in axes.items() if len(values) > 1 and isinstance(values[0], int | Size)]
    require(bool(numeric), "a chart of a sweep needs two values or more of a number; add image=224,384,512")
    along = "image" if "image" in numeric else max(numeric, key=lambda key: len(axes[key]))
    naming = [key for key, values in axes.items() if key != along and len(values) > 1]
    figure, drawn = new_figure(path)
    lines: dict[str, list[tuple[int, float]]] = {}
    for answer in answers:
        if answer.error:
            continue
        others = ", ".join(_say(key, value) for key, value in answer.values.items() if key in naming)
        lines.setdefault(others, []).append((_number(answer.values[along]), answer.numbers["peak_bytes"] / GIB))
    ends = []
    for label, colour in zip(lines, shades(len(lines)), strict=True):
        points = sorted(lines[label])
        drawn.plot(*zip(*points, strict=True), "o-", color=colour, linewidth=2, markersize=5)
        ends.append((points[-1], label, colour))
    drawn.set_yscale("log")
    marks = sorted({_number(value) for value in axes[along]})
    drawn.set_xscale("log")
    drawn.set_xticks(marks, [str(mark) for mark in marks])
    drawn.minorticks_off()
    low, high = drawn.get_ylim()
    if target is not None:
        high = max(high, target.visible_bytes / GIB * 1.3)
        drawn.axhline(target.visible_bytes / GIB, color=RED, linewidth=1.2)
        place = (marks[0], target.visible_bytes / GIB * 1.03)
        drawn.text(*place, _named(target), color=RED, va="bottom", fontsize=9, path_effects=halo())
    drawn.set_ylim(low, high)
    _end_labels(drawn, ends)
    plain_log(drawn)
    drawn.set_xlabel("image side, pixels" if along == "image" else along.replace("_", " "))
    drawn.set_ylabel("GiB at the peak, one device")
    finish(figure, drawn, path, f"{title} against {along.replace('_', ' ')}", subtitle)


def _end_labels(axes: Axes, ends: list[tuple[tuple[int, float], str, Any]]) -> None:
    """Each line's name at its right end; names at the edge are moved apart."""
    from math import exp, log

    low, high = axes.get_ylim()
    right = max(point[0] for point, _, _ in ends)
    edge = sorted((end for end in ends if end[0][0] == right), key=lambda end: end[0][1])
    apart = _apart([log(point[1] / low) for point, _, _ in edge], log(high / low) * 0.045)
    places = {label: low * exp(place) for (_, label, _), place in zip(edge, apart, strict=True)}
    for point, label, colour in ends:
        axes.annotate(
            label,
            (point[0], places.get(label, point[1])),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
            fontweight="bold",
            annotation_clip=False,
            path_effects=halo(),
        )


def _number(value: int | Size) -> int:
    return value.height if isinstance(value, Size) else value


def _say(key: str, value: Any) -> str:
    if isinstance(value, Size):
        value = value.height if value.height == value.width else value
    return str(value) if key == "model" else f"{key.replace('_', ' ')} {value}"
