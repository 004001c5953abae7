"""Curves of several runs in one picture, and an experiment's findings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.charts.palette import GREY, SERIES
from vitrail.charts.plots import legend, plots
from vitrail.training.experiments.compare import Group
from vitrail.training.experiments.run import Result
from vitrail.training.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_comparison", "draw_experiment"]

LOSS, UNTRAINED = ("Training loss", "step", ""), "untrained, mean of the seeds"


def draw_comparison(groups: Sequence[Group], path: Path) -> None:
    labels = [LOSS, ("Accuracy on images not trained on, %", "step", "")]
    words = f"{sum(len(group.runs) for group in groups)} runs; those that differ in their seed only are one curve"
    sheet, (loss, accuracy) = plots("Runs side by side", words, labels, names=[group.name for group in groups])
    for group, colour in zip(groups, cycle(SERIES)):
        _loss_curve(loss, group.runs, colour)
        accuracy.plot([], [], "o-", markersize=3, color=colour, label=group.name)
        for run in group.runs:
            steps, values = zip(*run.accuracies(), strict=True) if run.accuracies() else ((), ())
            accuracy.plot(steps, [100 * value for value in values], "o-", markersize=3, color=colour)
    legend(accuracy)
    sheet.save(path)


def draw_experiment(result: Result, path: Path) -> None:
    """Draw a panel for each measure of the experiment."""
    measures, own = result.experiment.measures, result.arms[0].arm.config.image.height
    title, runs = result.experiment.question, sum(len(arm.runs) for arm in result.arms)
    words = f"{runs} runs; curves are means over seeds with their range, bars one standard deviation"
    if "structure" in measures:
        labels = [("Correlation of the rows' cosine with grid distance", "step", "")]
        sheet, (panel,) = plots(title, f"{runs} runs", labels, width=5.6, names=[UNTRAINED])
        _structure(panel, result)
    else:
        cost = ("Test accuracy against cost, %", "MFLOP an image, forward", "")
        size = ("Test accuracy against resolution, %", f"image side, pixels; trained at {own}", "")
        labels = [LOSS, size if "resolutions" in measures else cost]
        sheet, (loss, panel) = plots(title, words, labels, names=[arm.arm.label for arm in result.arms])
        for arm, colour in zip(result.arms, cycle(SERIES)):
            _loss_curve(loss, arm.runs, colour)
        (_resolutions if "resolutions" in measures else _costs)(panel, result)
    legend(panel)
    sheet.save(path)


def _loss_curve(panel: Axes, runs: Sequence[Run], colour: str) -> None:
    """Draw the mean over seeds, and the range."""
    curves = [curve for curve in (run.smooth_loss() for run in runs) if curve]
    if len({len(curve) for curve in curves}) != 1:  # some are unfinished: a line for each
        for curve in curves:
            panel.plot(range(1, len(curve) + 1), curve, linewidth=1, color=colour)
        return
    steps, every = range(1, len(curves[0]) + 1), list(zip(*curves, strict=True))
    panel.plot(steps, [statistics.fmean(each) for each in every], linewidth=1.4, color=colour)
    panel.fill_between(
        steps, [min(each) for each in every], [max(each) for each in every], alpha=0.2, color=colour, linewidth=0
    )


def _resolutions(panel: Axes, result: Result) -> None:
    images = result.experiment.images
    panel.axvline(result.arms[0].arm.config.image.height, linestyle=":", color=GREY)
    for arm, colour in zip(result.arms, cycle(SERIES)):
        found = [(size.height, arm.spreads.get(f"accuracy@{size}")) for size in images]
        known = [(side, 100 * each.mean, 100 * (each.deviation or 0)) for side, each in found if each is not None]
        _errors(panel, known, "o-", colour, arm.arm.label)


def _costs(panel: Axes, result: Result) -> None:
    costs = []
    for arm, colour in zip(result.arms, cycle(SERIES)):
        accuracy, flops = arm.spreads.get("accuracy"), arm.spreads.get("flops")
        if accuracy is not None and flops is not None:
            costs.append(flops.mean / 1e6)
            point = (costs[-1], 100 * accuracy.mean, 100 * (accuracy.deviation or 0))
            _errors(panel, [point], "o", colour, arm.arm.label)
    panel.set_xscale("log")
    ticks = _apart(costs)
    panel.set_xticks(ticks, [f"{cost:.3g}" for cost in ticks])
    panel.minorticks_off()  # minor ticks overlap within a decade


def _apart(costs: Sequence[float], share: float = 0.1) -> list[float]:
    """Return the costs whose labels do not overlap: each is a tenth of the logarithmic axis from the one before."""
    least = (max(costs) / min(costs)) ** share
    kept: list[float] = []
    for cost in sorted(costs):
        if not kept or cost > kept[-1] * least:
            kept.append(cost)
    return kept


def _errors(panel: Axes, points: Sequence[tuple[float, float, float]], mark: str, colour: str, label: str) -> None:
    """(x, y, deviation) of every point."""
    x, y, error = zip(*points, strict=True) if points else ((), (), ())
    panel.errorbar(x, y, yerr=error, fmt=mark, markersize=4, capsize=3, linewidth=1, color=colour, label=label)


def _structure(panel: Axes, result: Result) -> None:
    for arm in result.arms:
        for run, colour in zip(arm.runs, cycle(SERIES)):
            points = [(line["step"], line["position_structure"]) for line in run.lines if "position_structure" in line]
            panel.plot(*zip(*points, strict=True), linewidth=1.2, color=colour, label=f"seed {run.job.recipe.seed}")
        control = arm.spreads.get("untrained structure")
        if control is not None:
            panel.axhline(control.mean, linestyle=":", color=GREY, label=UNTRAINED)
