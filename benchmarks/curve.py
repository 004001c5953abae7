"""Test accuracy against core-minutes, beside vit-pytorch's ViT of the same size under the same budget.

    python benchmarks/curve.py --data CIFAR10 --out curve --threads 1 [--minutes 10 30 60] [--seeds 3] [--compile]
                               [--recipe cifar] [--precision amp-bf16] [--models vitrail vit-pytorch] [--steps N]
                               [--json]

Every budget is a run of its own, so that the learning rate ends with it: a few steps are timed first, and the recipe
gets as many as fit, or --steps, to repeat the runs of another machine. Both models have the same recipe, images and
order (see `benchmarks/train.py`). Core-minutes are the processor time of the steps, without evaluation, compilation
and start. A finished run is a file in --out and is not repeated; curve.png draws them. The defaults take
(10 + 30 + 60) · 3 · 2 minutes: ten hours of a core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

import torch
from measure import arguments, finish, machine
from train import Peer

from vitrail.atomic import write_json_file
from vitrail.charts.palette import BLUE, ORANGE
from vitrail.charts.plots import plots
from vitrail.config import ViTConfig
from vitrail.data.open import open_source
from vitrail.parts import FullAttention
from vitrail.presets import preset
from vitrail.training.batches import measured
from vitrail.training.folder import RunFolder
from vitrail.training.job import DataFacts, Job
from vitrail.training.loop import train
from vitrail.training.prepare import read_recipe
from vitrail.training.recipe import Recipe

TIMED_STEPS, SKIPPED, POINTS = 48, 8, 6
"""Steps that are timed before a run; the first steps, whose time is left out; and evaluations of a run."""
COLOURS = {"vitrail": BLUE, "vit-pytorch": ORANGE}


@dataclass
class Clock:
    """Processor time of every step, and the accuracies after some of them."""

    seconds: list[float] = field(default_factory=list)
    tests: list[tuple[int, float]] = field(default_factory=list)
    before: float = field(default_factory=process_time)

    def __call__(self, told: dict[str, Any]) -> None:
        if "loss" not in told:
            return
        self.seconds.append(process_time() - self.before)
        if "test_accuracy" in told:
            self.tests.append((told["step"], told["test_accuracy"]))
        self.before = process_time()

    def steps(self) -> list[float]:
        """Seconds of the steps; those with a test, and the first, which compile, count as the mean of the others."""
        other = {step - 1 for step, _ in self.tests} | set(range(SKIPPED))
        usual = mean(seconds for step, seconds in enumerate(self.seconds) if step not in other)
        return [usual if step in other else seconds for step, seconds in enumerate(self.seconds)]

    def curve(self) -> list[tuple[float, float]]:
        """Core-minutes and test accuracy."""
        seconds = self.steps()
        return [(sum(seconds[:steps]) / 60, accuracy) for steps, accuracy in self.tests]


def run(who: str, recipe: Recipe, facts: DataFacts, config: ViTConfig, *, test: bool) -> Clock:
    source = open_source(facts.sources)
    if who == "vit-pytorch":  # its attention takes explicit steps, and its positions fit one size
        config, recipe = config.but(attention=FullAttention(fused=False)), recipe.but(images=())
    torch.manual_seed(recipe.seed)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train(
            Job(config=config, recipe=recipe, data=facts),
            source,
            RunFolder(Path(folder)),
            test=open_source(facts.sources, "test") if test else None,
            start=None if who == "vitrail" else Peer(config),  # type: ignore[arg-type]
            evaluate_every=max(1, recipe.steps // POINTS),
            watch=clock,
        )
    return clock


def fitting(minutes: float, who: str, recipe: Recipe, facts: DataFacts, config: ViTConfig) -> int:
    """How many steps take these minutes, from the time of a few."""
    timed = run(who, recipe.but(steps=TIMED_STEPS), facts, config, test=False).steps()
    return max(1, round(60 * minutes / mean(timed)))


def draw(found: list[dict[str, Any]], path: Path) -> None:
    sheet, (axes,) = plots(
        "Accuracy against time", "CIFAR-10, models of equal size", [("", "core-minutes", "test images, %")], width=6.4
    )
    for who, colour in COLOURS.items():
        runs = [each for each in found if each["model"] == who]
        for number, each in enumerate(runs):
            minutes, accuracies = zip(*each["curve"], strict=True)
            label = who if number == 0 else None
            axes.plot(minutes, [100 * value for value in accuracies], color=colour, linewidth=1, alpha=0.5, label=label)
            axes.plot(minutes[-1], 100 * accuracies[-1], "o", color=colour, markersize=4)
    axes.legend(loc="lower right", fontsize=8)
    sheet.save(path)


def summary(found: list[dict[str, Any]]) -> list[str]:
    """The final accuracy of every model and budget, over seeds."""
    lines = []
    for who, minutes in dict.fromkeys((each["model"], each["minutes"]) for each in found):
        ends = [each["curve"][-1] for each in found if (each["model"], each["minutes"]) == (who, minutes)]
        scores = [100 * accuracy for _, accuracy in ends]
        spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
        spent = mean(time for time, _ in ends)
        lines.append(f"{who:12} {spent:6.1f} core-minutes  {mean(scores):.2f}{spread} %  ({len(scores)} seeds)")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10's folder, from vitrail data fetch cifar10")
    parser.add_argument("--out", required=True, type=Path, help="folder of finished runs, and of the figure")
    parser.add_argument("--minutes", nargs="+", type=float, default=[10, 30, 60], help="budgets in core-minutes")
    parser.add_argument("--steps", type=int, help="updates of every run, in place of as many as fit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=tuple(COLOURS), default=list(COLOURS))
    parser.add_argument("--model", default="cifar-small", help="a preset")
    parser.add_argument("--recipe", default="cifar", help="a recipe's name or file")
    parser.add_argument("--precision", choices=("fp32", "amp-bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="both by torch.compile")
    options = arguments(__doc__, parser)
    config = preset(options.model, classes=10)
    assert isinstance(config, ViTConfig)
    source = open_source(options.data)
    facts = DataFacts(
        sources=(options.data,),
        images=len(source),
        classes=source.classes,
        preprocessing=measured(source, config.image, options.data),
    )
    recipe = read_recipe(options.recipe).but(compile=options.compile, precision=options.precision)
    options.out.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in range(options.seeds):  # all models before the next seed, so that early results are comparable
        for minutes in options.minutes:
            for who in options.models:
                settings = [
                    options.model,
                    Path(options.recipe).stem,
                    options.precision,
                    *["compiled"] * options.compile,
                    *[f"{options.steps}-steps"] * (options.steps is not None),
                ]
                kept = options.out / f"{'-'.join([who, *settings, f'{minutes:g}', str(seed)])}.json"
                if not kept.is_file():
                    own = recipe.but(seed=seed)
                    own = own.but(steps=options.steps or fitting(minutes, who, own, facts, config))
                    clock = run(who, own, facts, config, test=True)
                    facts_of_run = {"model": who, "minutes": minutes, "seed": seed, "steps": own.steps}
                    write_json_file(kept, {**facts_of_run, "curve": clock.curve(), "machine": machine()})
                found.append(json.loads(kept.read_text()))
                draw(found, options.out / "curve.png")
    finish({"runs": found}, options.json, summary(found))


if __name__ == "__main__":
    main()
