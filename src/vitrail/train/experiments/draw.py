"""Curves of several runs in one picture, and an experiment's findings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.train.experiments.compare import Group, Run
from vitrail.train.experiments.run import ArmResult, Result

__all__ = ["draw_comparison", "draw_experiment"]


def _figure(panels: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise VitrailError("a picture needs matplotlib; pip install 'vitrail[plot]'") from None
    figure = Figure(figsize=(5.2 * panels, 3.8), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def draw_comparison(groups: Sequence[Group], path: Path) -> None:
    figure, (loss, accuracy) = _figure(2)
    for group in groups:
        _loss_curve(loss, group.runs, group.name)
        for run in group.runs:
            points = run.test_accuracies()
            if points:
                label = group.name if run is group.runs[0] else None
                accuracy.plot(*zip(*points, strict=True), "o-", markersize=3, color=_colour(groups.index(group)),
                              label=label)  # fmt: skip
    loss.set(title="training loss", xlabel="step")
    accuracy.set(title="test accuracy", xlabel="step")
    _finish(figure, (loss, accuracy), path)


def draw_experiment(result: Result, path: Path) -> None:
    """What the experiment measures, a panel each."""
    measures = result.experiment.measures
    if "structure" in measures:
        figure, panels = _figure(1)
        _structure(panels[0], result.arms)
    else:
        figure, panels = _figure(2)
        for arm in result.arms:
            _loss_curve(panels[0], arm.runs, arm.arm.label)
        panels[0].set(title="training loss", xlabel="step")
        (_resolutions if "resolutions" in measures else _costs)(panels[1], result)
    _finish(figure, panels, path)


def _colour(number: int) -> str:
    return f"C{number % 10}"


def _finish(figure: Any, panels: Sequence[Any], path: Path) -> None:
    for panel in panels:
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _loss_curve(panel: Any, runs: Sequence[Run], label: str) -> None:
    """The mean over seeds, and the range between the lowest and the highest."""
    curves = [curve for curve in (run.smooth_loss() for run in runs) if curve]
    if not curves:
        return
    length = min(map(len, curves))
    if length < max(map(len, curves)):  # unfinished ones among them: each its own line
        for curve in curves:
            panel.plot(range(1, len(curve) + 1), curve, linewidth=1, label=label)
        return
    steps, every = range(1, length + 1), list(zip(*curves, strict=True))
    (line,) = panel.plot(steps, [statistics.fmean(each) for each in every], linewidth=1.2, label=label)
    panel.fill_between(
        steps, [min(each) for each in every], [max(each) for each in every], alpha=0.2, color=line.get_color()
    )


def _resolutions(panel: Any, result: Result) -> None:
    own = result.arms[0].arm.config.image
    for arm in result.arms:
        held = {size: arm.spreads.get(f"accuracy@{size}") for size in result.experiment.images}
        known = {size.height: value for size, value in held.items() if value is not None}
        panel.errorbar(
            list(known),
            [100 * value.mean for value in known.values()],
            yerr=[100 * (value.deviation or 0) for value in known.values()],
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1,
            label=arm.arm.label,
        )
    panel.axvline(own.height, linestyle=":", color="grey")
    panel.set(title="test accuracy against resolution, %", xlabel=f"image (pixels); trained at {own.height}")


def _costs(panel: Any, result: Result) -> None:
    for arm in result.arms:
        accuracy, flops = arm.spreads.get("accuracy"), arm.spreads.get("flops")
        if accuracy is not None and flops is not None:
            panel.errorbar(
                [flops.mean / 1e6],
                [100 * accuracy.mean],
                yerr=[100 * (accuracy.deviation or 0)],
                marker="o",
                capsize=3,
                linestyle="",
                label=arm.arm.label,
            )
    panel.set(title="test accuracy, %, against cost", xlabel="MFLOP an image, forward", xscale="log")
    costs = sorted(flops.mean / 1e6 for arm in result.arms if (flops := arm.spreads.get("flops")) is not None)
    panel.set_xticks(costs, [f"{cost:.3g}" for cost in costs])
    panel.minorticks_off()  # a decade's own ticks overlap where the arms lie within one


def _structure(panel: Any, arms: Sequence[ArmResult]) -> None:
    for arm in arms:
        for run in arm.runs:
            points = [(line["step"], line["position_structure"]) for line in run.lines if "position_structure" in line]
            panel.plot(*zip(*points, strict=True), linewidth=1.2, label=f"seed {run.job.recipe.seed}")
        control = arm.spreads.get("untrained structure")
        if control is not None:
            panel.axhline(control.mean, linestyle=":", color="grey", label="untrained, mean of the seeds")
    panel.set(title="correlation of the rows' cosine with grid distance", xlabel="step")
