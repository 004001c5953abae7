"""vitrail experiment: controlled experiments, each reproducible by one command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from vitrail.cli.options import Json, Words
from vitrail.cli.progress import LiveView
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import VitrailError, require

__all__ = ["experiment"]


def experiment(
    name: str | None = None,
    /,
    *,
    data: Words | None = None,
    seeds: int = 3,
    steps: int | None = None,
    epochs: float | None = None,
    limit: int | None = None,
    out: Path = Path("experiments"),
    json: Json = False,
) -> int | None:
    """Run a controlled experiment over seeds and report it with error bars; without a name, list them.

    Every arm and seed is a run in OUT/runs; finished runs are kept and interrupted ones resume. The report is
    OUT/NAME.md, with NAME.png and NAME.json beside it.

    Parameters
    ----------
    name
        positions, pooling, patch-size, embeddings or position-structure (default: list them).
    data
        Dataset, as for vitrail train, e.g. what vitrail data fetch cifar10 wrote; required to run (default: none).
    seeds
        Runs per arm, with seeds 0, 1, 2 …
    steps
        Optimizer steps per run (default: those of --epochs).
    epochs
        Passes over the data per run (default: 1, unless --steps is given).
    limit
        Use at most this many images of the test split, at even steps (default: all).
    out
        Folder for reports and runs; experiments that share it share the runs that they have in common.
    """
    from vitrail.training.experiments.catalogue import EXPERIMENTS, experiment_named

    if name is None:
        if json:
            write_json([{"name": each.name, "question": each.question, "arms": [arm.label for arm in each.arms],
                         "measures": each.measures} for each in EXPERIMENTS.values()])  # fmt: skip
        else:
            rows = [(e.name, e.question, ", ".join(arm.label for arm in e.arms)) for e in EXPERIMENTS.values()]
            show(table("Experiments", ("name", "question", "arms"), rows, "lww"))
        return None
    chosen = experiment_named(name)
    if data is None:
        raise VitrailError("no --data was given; fetch a dataset with vitrail data fetch cifar10 --out cifar10")
    require(steps is None or epochs is None, "--steps and --epochs were both given; choose one")
    from vitrail.atomic import write_file, write_json_file
    from vitrail.charts.sheet import check_drawing
    from vitrail.training.experiments.draw import draw_experiment
    from vitrail.training.experiments.report import experiment_json, experiment_markdown, experiment_rows
    from vitrail.training.experiments.run import Stopped, run_experiment

    check_drawing()
    budget = ["--steps", str(steps)] if steps is not None else ["--epochs", f"{epochs or 1:g}"]
    limited = [] if limit is None else ["--limit", str(limit)]
    settings = ["--data", *data, "--seeds", str(seeds), *budget, *limited, "--out", str(out)]
    command = shlex.join(["vitrail", "experiment", name, *settings])
    with _View(len(chosen.arms) * seeds) as view:
        try:
            result = run_experiment(chosen, data=data, out=out, seeds=seeds, steps=steps, epochs=epochs or 1.0,
                                    limit=limit, watch=view.watch)  # fmt: skip
        except Stopped as stopped:
            view.note(f"stopped; finished runs are kept; resume with {command}")
            return 128 + stopped.args[0]
    picture = out / f"{name}.png"
    draw_experiment(result, picture)
    found = experiment_json(result, command)
    text = experiment_markdown(result, command, picture).encode()
    write_file(out / f"{name}.md", lambda file: file.write(text))
    write_json_file(out / f"{name}.json", found)
    if json:
        write_json(found)
    else:
        head, rows = experiment_rows(result)
        show(table(chosen.question, head, rows, "l" + "r" * (len(head) - 1)))
        written(*(out / f"{name}{ending}" for ending in (".md", ".png", ".json")))
    return None


class _View(LiveView):
    """Shows which run of how many is training, and its progress."""

    def __init__(self, runs: int) -> None:
        super().__init__(TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
        self.runs, self.begun, self.label = runs, 0, ""

    def watch(self, facts: dict[str, Any]) -> None:
        if "arm" in facts:
            self.begun += 1
            self.label = f"run {self.begun} of {self.runs}: {facts['arm']}, seed {facts['seed']}"
            self.start()
            self.bar.update(self.task, description=self.label, completed=0)
        elif "note" in facts:
            self.note(facts["note"])
        elif "testing" in facts:
            self.bar.update(self.task, description=f"{self.label}, testing {facts['testing']:,}/{facts['images']:,}")
        elif "loss" in facts:
            self.bar.update(self.task, completed=facts["step"], description=self.label)
            if "test_accuracy" in facts:
                self.note(f"{self.label}: test accuracy {facts['test_accuracy']:.2%}")
        else:
            self.bar.update(self.task, total=facts["steps"], completed=facts["step"])
