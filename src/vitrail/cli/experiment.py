"""vitrail experiment: controlled experiments, each reproducible by one command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from vitrail.cli.options import Json, Words
from vitrail.cli.progress import LiveView
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import VitrailError, require

if TYPE_CHECKING:
    from vitrail.studies.catalogue import Study

__all__ = ["experiment"]

ENDINGS = (".md", ".png", ".json")


def experiment(
    name: str | None = None,
    /,
    *,
    data: Words | None = None,
    weights: Words | None = None,
    seeds: int = 3,
    steps: int | None = None,
    epochs: float | None = None,
    limit: int | None = None,
    out: Path = Path("experiments"),
    json: Json = False,
) -> int | None:
    """Run a controlled experiment over seeds and report it with error bars; without a name, list them.

    Every arm and seed that is trained is a run in OUT/runs; finished runs and measurements are kept, and interrupted
    ones resume. The report is OUT/NAME.md, with NAME.png and NAME.json beside it.

    Parameters
    ----------
    name
        positions, pooling, patch-size, embeddings, position-structure, attention, attention-64, attention-96,
        transfer, adaptive, data-hunger, fashion-choices, layers, shapes or vocabulary (default: list them).
    data
        Dataset, as for vitrail train, e.g. what vitrail data fetch cifar10 wrote; for vocabulary a folder of images,
        for shapes nothing (default: none).
    weights
        Models that layers and vocabulary measure, e.g. default dinov2-S/14 (default: the bundled model).
    seeds
        Runs per arm, with seeds 0, 1, 2 …
    steps
        Optimizer steps per run (default: those of --epochs).
    epochs
        Passes over the data per run (default: 1, unless --steps is given).
    limit
        Use at most this many images: of the test split, at even steps, for experiments that train (default: all); of
        the training split or folder, drawn by the seed, for those that measure (default: 2000, of a folder 200).
    out
        Folder for reports and runs; experiments that share it share the runs that they have in common.
    """
    from vitrail.studies.catalogue import STUDIES
    from vitrail.training.experiments.catalogue import EXPERIMENTS, experiment_named

    if name is None:
        listed = [(e.name, e.question, ", ".join(arm.label for arm in e.arms)) for e in EXPERIMENTS.values()]
        listed += [(study.name, study.question, study.compared) for study in STUDIES.values()]
        if json:
            write_json([{"name": each, "question": question, "arms": arms} for each, question, arms in listed])
        else:
            show(table("Experiments", ("name", "question", "arms"), listed, "lww"))
        return None
    require(steps is None or epochs is None, "--steps and --epochs were both given; choose one")
    given = {"--data": data, "--weights": weights, "--seeds": [seeds], "--steps": _one(steps),
             "--epochs": _one(epochs), "--limit": _one(limit), "--out": [out]}  # fmt: skip
    words = [word for option, values in given.items() if values for word in (option, *map(str, values))]
    command = shlex.join(["vitrail", "experiment", name, *words])
    if name in STUDIES:
        require(epochs is None, f"{name} has no --epochs; give --steps")
        request = {"data": data, "weights": weights or ["default"], "seeds": seeds, "steps": steps, "limit": limit}
        return _study(STUDIES[name], request, command, out, json)
    chosen = experiment_named(name, others=STUDIES)
    require(weights is None, f"{name} trains its own models; --weights goes with layers and vocabulary")
    if data is None:
        raise VitrailError("no --data was given; fetch a dataset with vitrail data fetch cifar10 --out cifar10")
    from vitrail.charts.sheet import check_drawing
    from vitrail.training.experiments.draw import draw_experiment
    from vitrail.training.experiments.report import experiment_json, experiment_markdown, experiment_rows
    from vitrail.training.experiments.run import Stopped, run_experiment

    check_drawing()
    with _View(chosen.runs_per_seed * seeds) as view:
        try:
            passes = 1.0 if epochs is None else epochs
            result = run_experiment(chosen, data=data, out=out, seeds=seeds, steps=steps, epochs=passes, limit=limit,
                                    watch=view.watch)  # fmt: skip
        except Stopped as stopped:
            view.note(f"stopped; finished runs are kept; resume with {command}")
            return 128 + stopped.args[0]
    picture = out / f"{name}.png"
    draw_experiment(result, picture)
    _write(name, out, experiment_markdown(result, command, picture), experiment_json(result, command), json)
    if not json:
        head, rows = experiment_rows(result)
        show(table(chosen.question, head, rows, "l" + "r" * (len(head) - 1)))
        written(*(out / f"{name}{ending}" for ending in ENDINGS))
    return None


def _one(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _study(study: Study, request: dict[str, Any], command: str, out: Path, json: bool) -> int | None:
    from vitrail.charts.sheet import check_drawing
    from vitrail.cli.progress import working
    from vitrail.studies.catalogue import Request
    from vitrail.studies.findings import findings_json, findings_markdown, findings_rows

    check_drawing()
    try:
        with working(study.question) as watch:
            found = study.run(Request(out=out, watch=watch, **request))
    except KeyboardInterrupt:
        show(f"stopped; finished parts are kept; resume with {command}")
        return 130
    picture = out / f"{study.name}.png"
    found.draw(picture)
    _write(
        study.name, out, findings_markdown(study, found, command, picture), findings_json(study, found, command), json
    )
    if not json:
        head, rows = findings_rows(found)
        show(table(study.question, head, rows, "l" + "r" * (len(head) - 1)), *(f" • {line}" for line in found.answers))
        written(*(out / f"{study.name}{ending}" for ending in ENDINGS))
    return None


def _write(name: str, out: Path, text: str, found: dict[str, Any], json: bool) -> None:
    from vitrail.atomic import write_file, write_json_file

    write_file(out / f"{name}.md", lambda file: file.write(text.encode()))
    write_json_file(out / f"{name}.json", found)
    if json:
        write_json(found)


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
