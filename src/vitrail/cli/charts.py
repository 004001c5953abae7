"""Charts of plans: memory against image size, sweeps, and models side by side. matplotlib is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Adaptive
from vitrail.plan.fit import need_bytes
from vitrail.plan.hardware import GIB, Card
from vitrail.plan.memory import memory
from vitrail.plan.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitrail.cli.sweep import Answer

__all__ = ["compare_chart", "memory_chart", "sweep_chart"]

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
INK, FAINT, RED = "#222222", "#8a8a8a", "#b3001b"
SUFFIXES = (".png", ".svg", ".pdf")


# ── memory against image size ───────────────────────────────────────────────────────────────────────────────────


def memory_chart(config: Config, workload: Workload, target: Card | None, path: Path, *, name: str) -> None:
    """Bytes at the peak by component, stacked, for images of the same shape from small to twice the size."""
    figure, axes = _figure(path)
    sizes, plans = _by_image(config, workload)
    sides = [size.height for size in sizes]
    stack = {part: [plan.bytes.get(part, 0) / GIB for plan in plans] for part in COLOURS}
    total = [plan.peak_bytes / GIB for plan in plans]
    stack = {part: values for part, values in stack.items() if max(values) > 0.004 * total[-1]}
    axes.stackplot(sides, *stack.values(), colors=[COLOURS[part] for part in stack], linewidth=0, alpha=0.92)
    axes.plot(sides, total, color=INK, linewidth=1.4)

    top = total[-1] * 1.04
    if target is not None:
        needed = [need_bytes(config.but(image=size), workload, target) / GIB for size in sizes]
        visible = target.visible_bytes / GIB
        axes.plot(sides, needed, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate("likely on the card ", (sides[-1], needed[-1]), ha="right", va="bottom", color=INK, fontsize=8)
        axes.axhline(visible, color=RED, linewidth=1.2)
        axes.text(
            sides[0],
            visible,
            f" {target.name}, {visible:.1f} GiB visible",
            color=RED,
            va="bottom",
            ha="left",
            fontsize=9,
        )
        top = max(needed[-1] * 1.04, visible * 1.12)
    _mark(axes, config, workload, top)
    axes.set_xlim(sides[0], sides[-1])
    axes.set_ylim(0, top)
    _band_labels(axes, sides[-1], stack, top)
    ticks = sizes[:: max(1, len(sizes) // 6)]
    square = config.image.height == config.image.width
    axes.set_xticks([size.height for size in ticks], [str(size.height) if square else str(size) for size in ticks])
    axes.set_xlabel("image side, pixels" if square else "image, height × width in pixels")
    axes.set_ylabel("GiB at the peak, one device")
    kind = "training" if workload.train else "inference"
    title = f"{name}: memory of {kind} against image size"
    _finish(figure, axes, path, title, f"batch {workload.batch}, {workload.precision}, {workload.attention} attention")


def _by_image(config: Config, workload: Workload) -> tuple[list[Size], list[Any]]:
    """Images of the config's shape, from the smallest that divides to about twice its side, and their plans."""
    cell = _cell(config)
    rows, columns = (max(1, side // step) for side, step in zip(config.image, cell, strict=True))
    shared = gcd(rows, columns)
    unit = Size(cell.height * rows // shared, cell.width * columns // shared)
    last = max(2 * shared, 4)
    sizes, plans = [], []
    for step in sorted({max(1, round(last * part / 32)) for part in range(1, 33)} | {shared}):
        size = Size(unit.height * step, unit.width * step)
        try:
            plans.append(memory(config.but(image=size), workload))
        except VitrailError:  # a size that this model cannot take
            continue
        sizes.append(size)
    require(len(sizes) > 1, f"image {config.image} leaves nothing to draw; give a larger one")
    return sizes, plans


def _cell(config: Config) -> Size:
    """What an image's sides must be multiples of."""
    if isinstance(config, PyramidConfig):
        return Size(*(side * 2 ** (len(config.stages) - 1) for side in config.patch))
    if isinstance(config, MobileConfig):
        return Size(64, 64)
    assert isinstance(config, ViTConfig)
    return config.embedding.patches[-1] if isinstance(config.embedding, Adaptive) else config.patch


def _mark(axes: Axes, config: Config, workload: Workload, top: float) -> None:
    here = memory(config, workload).peak_bytes / GIB
    axes.plot([config.image.height], [here], "o", color=INK, markersize=5, zorder=5, clip_on=False)
    axes.annotate(
        f"{config.image}: {here:.2f} GiB",
        (config.image.height, here),
        xytext=(-8, 8),
        textcoords="offset points",
        ha="right",
        color=INK,
        fontsize=9,
        fontweight="bold",
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
            arrowprops={"arrowstyle": "-", "color": COLOURS[part], "linewidth": 2.4, "shrinkA": 1, "shrinkB": 0},
        )


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, pushed up until neighbours are a gap apart."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, gap / 2))
    return moved


# ── sweeps ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sweep_chart(
    axes: dict[str, list[Any]], answers: Sequence[Answer], target: Card | None, path: Path, *, train: bool
) -> None:
    """Peak memory against one of the sweep's numbers, a line for every combination of the others."""
    numeric = [key for key, values in axes.items() if len(values) > 1 and isinstance(values[0], int | Size)]
    require(bool(numeric), "a chart of a sweep needs two values or more of a number; add image=224,384,512")
    along = "image" if "image" in numeric else max(numeric, key=lambda key: len(axes[key]))
    figure, drawn = _figure(path)
    lines: dict[str, list[tuple[int, float]]] = {}
    for answer in answers:
        if answer.error:
            continue
        others = ", ".join(_say(key, value) for key, value in answer.values.items() if key != along)
        lines.setdefault(others, []).append((_number(answer.values[along]), answer.numbers["peak_bytes"] / GIB))
    ends = []
    for label, colour in zip(lines, _shades(len(lines)), strict=True):
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
        drawn.text(marks[0], target.visible_bytes / GIB * 1.03, target.name, color=RED, va="bottom", fontsize=9)
    drawn.set_ylim(low, high)
    _end_labels(drawn, ends)
    _plain_log(drawn)
    drawn.set_xlabel("image side, pixels" if along == "image" else along.replace("_", " "))
    drawn.set_ylabel("GiB at the peak, one device")
    _finish(figure, drawn, path, f"Memory of {'training' if train else 'inference'} over the sweep", "live tensors")


def _end_labels(axes: Axes, ends: list[tuple[tuple[int, float], str, Any]]) -> None:
    """Each line's name at its right end; names of ends at one place are moved apart."""
    from math import exp, log

    low, high = axes.get_ylim()
    ends = sorted(ends, key=lambda end: end[0][1])
    right = max(point[0] for point, _, _ in ends)
    places = _apart([log(point[1]) for point, _, _ in ends], (log(high) - log(low)) * 0.045)
    for (point, label, colour), place in zip(ends, places, strict=True):
        at_the_edge = point[0] == right
        axes.annotate(
            label,
            point,
            xytext=(right, exp(place)) if at_the_edge else point,
            textcoords="data",
            va="center",
            fontsize=9,
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        ).set_x(right * 1.03 if at_the_edge else point[0] * 1.03)


def _number(value: int | Size) -> int:
    return value.height if isinstance(value, Size) else value


def _say(key: str, value: Any) -> str:
    if isinstance(value, Size):
        value = value.height if value.height == value.width else value
    return str(value) if key == "model" else f"{key.replace('_', ' ')} {value}"


# ── models side by side ─────────────────────────────────────────────────────────────────────────────────────────


def compare_chart(models: Sequence[tuple[str, int, int, int]], path: Path, *, memory_label: str) -> None:
    """(name, parameters, forward FLOPs, peak bytes) of each model: parameters and memory against FLOPs, log-log."""
    figure, (left, right) = _figure(path, panels=2)
    panels = (
        (left, [(flops / 1e9, params / 1e6, name) for name, params, flops, _ in models], "parameters, millions"),
        (right, [(flops / 1e9, peak / GIB, name) for name, _, flops, peak in models], f"peak GiB, {memory_label}"),
    )
    for axes, unsorted, label in panels:
        points = sorted(unsorted)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for (x, y, name), colour in zip(points, _shades(len(points)), strict=True):
            axes.plot([x], [y], "o", color=colour, markersize=9, zorder=3)
            axes.annotate(
                name, (x, y), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=9, color=INK, zorder=4
            )
        axes.plot([p[0] for p in points], [p[1] for p in points], color="#cccccc", linewidth=1, zorder=1)
        axes.margins(0.14, 0.18)
        axes.set_xlabel("forward GFLOP an image")
        axes.set_ylabel(label)
        _plain_log(axes, both=True)
        _style(axes)
    figure.suptitle("Models side by side", x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    _save(figure, path)


# ── the frame that all share ────────────────────────────────────────────────────────────────────────────────────


def _figure(path: Path, panels: int = 1) -> tuple[Figure, Any]:
    require(
        path.suffix.lower() in SUFFIXES,
        f"chart {str(path)!r} does not end in {', '.join(SUFFIXES)}; name a file like memory.png",
    )
    require(path.parent.is_dir(), f"chart folder {str(path.parent)!r} does not exist; make it first")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise VitrailError("charts need matplotlib, which is not installed; run pip install 'vitrail[plot]'") from None
    figure = Figure(figsize=(8.6, 5.2) if panels == 1 else (11, 4.8), dpi=150, layout="constrained")
    return figure, figure.subplots(1, panels)


def _shades(count: int) -> list[Any]:
    """Dark to light along viridis, which keeps its order in grey and to the colour-blind; its pale end left out."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * index / max(1, count - 1)) for index in range(count)]


def _plain_log(axes: Axes, both: bool = False) -> None:
    """Ticks of 1, 2 and 5, written as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def _finish(figure: Figure, axes: Axes, path: Path, title: str, subtitle: str) -> None:
    _style(axes)
    axes.set_title(f"{title}\n", loc="left", fontsize=13, fontweight="bold", color=INK)
    axes.text(0, 1.025, subtitle, transform=axes.transAxes, fontsize=9.5, color=FAINT)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    # no date in the file: the same question gives the same bytes
    figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
