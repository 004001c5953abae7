"""Run a controlled experiment: every arm with every seed is an ordinary run that is kept and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from vitrail.atomic import write_json_file
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.data.open import open_source
from vitrail.data.source import Source
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.adaptive import tokens_saved
from vitrail.nn.build import build
from vitrail.parts import Adaptive
from vitrail.plan.ledger import ledger
from vitrail.plan.workload import Workload
from vitrail.training.batches import in_order, measured
from vitrail.training.distributed import ALONE
from vitrail.training.evaluate import evaluate_at, evenly
from vitrail.training.experiments.catalogue import RECIPE, Arm, Experiment
from vitrail.training.experiments.compare import Spread, spread
from vitrail.training.experiments.pace import images_per_second
from vitrail.training.experiments.structure import structure_of
from vitrail.training.finish import finish
from vitrail.training.folder import RunFolder
from vitrail.training.job import DataFacts, Job, check_same, read_job, write_job
from vitrail.training.loop import Watch, train
from vitrail.training.objective import Model
from vitrail.training.random import reseed
from vitrail.training.run import Run, read_run

__all__ = ["ArmResult", "Result", "Stopped", "run_experiment"]

LOOKS = 24
"""Number of times per run that the structure of the positions is measured."""
TUNING = 4
"""Fine-tuning at another resolution starts with this fraction of the learning rate."""
CARRIED = 2000
"""Number of test images for other resolutions, the same for every resolution and arm."""


class Stopped(Exception):  # noqa: N818  a signal, not an error
    """Raised after a signal, whose number is in `args`; finished runs are kept."""


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    arm: Arm
    runs: tuple[Run, ...]
    spreads: dict[str, Spread]
    """Results by measure; accuracy at another resolution is "accuracy@24x24"."""


@dataclass(frozen=True, kw_only=True)
class Result:
    experiment: Experiment
    data: DataFacts
    steps: int
    seeds: int
    test_images: int
    arms: tuple[ArmResult, ...]


def run_experiment(
    experiment: Experiment,
    *,
    data: Sequence[str],
    out: Path,
    seeds: int = 3,
    steps: int | None = None,
    epochs: float = 1.0,
    limit: int | None = None,
    watch: Watch = lambda facts: None,
) -> Result:
    """Train the missing runs in out/runs, then measure, on at most `limit` images of the test split."""
    require(seeds > 0, f"seeds {seeds} is not a positive number; 3 gives error bars")
    base = experiment.arms[0].config
    require(limit is None or limit > 0, f"limit {limit} is not a positive number of images")
    source, test = (open_source(data, split, image=base.image) for split in ("train", "test"))
    test = evenly(test, limit)
    recipe = RECIPE.but(steps=steps) if steps is not None else RECIPE.for_epochs(epochs, len(source))
    facts = DataFacts(
        sources=tuple(data),
        images=len(source),
        classes=source.classes,
        preprocessing=measured(source, base.image, ", ".join(data)),
    )
    tests = {
        image: evenly(open_source(data, "test", image=image), min(limit or CARRIED, CARRIED))
        for image in experiment.images
    }

    def job_of(arm: Arm, seed: int, steps: int) -> Job:
        config = arm.config.but(classes=len(source.classes), channels=source.channels)
        return Job(
            config=config,
            recipe=recipe.but(seed=seed, steps=steps, images=arm.images),
            data=facts.but(preprocessing=facts.preprocessing.but(image=config.image)),
        )

    def trained(arm: Arm, seed: int, name: str, steps: int) -> Run:
        tuning = round(arm.tuned * steps)
        job = job_of(arm, seed, steps - tuning)
        watch({"arm": arm.label, "seed": seed})
        folder = out / "runs" / f"{name}-seed{seed}"
        _run(job, folder, source, test, watch)
        if tuning:
            _tune(folder, tuning, tests, source, watch)
        else:
            _resolutions(folder, tests)
        return read_run(folder)

    found: dict[str, list[Run]] = {arm.run: [] for arm in experiment.arms}
    timed: dict[str, list[Run]] = {arm.run: [] for arm in experiment.arms}
    for seed in range(seeds):  # all arms before the next seed, so that early results are comparable
        for arm in experiment.arms:
            found[arm.run].append(trained(arm, seed, arm.run, recipe.steps))
    paces: dict[str, float] = {}
    if experiment.equal_time or "images_per_second" in experiment.measures:
        paces = _paces(out / f"{experiment.name}.paces.json", {arm.run: job_of(arm, 0, 1) for arm in experiment.arms})
    if experiment.equal_time:
        first = experiment.arms[0].run
        timed[first] = found[first]
        for seed, arm in product(range(seeds), experiment.arms[1:]):
            equal = max(1, round(recipe.steps * paces[arm.run] / paces[first]))
            timed[arm.run].append(trained(arm, seed, f"{arm.run}-time", equal))
    arms = tuple(
        ArmResult(
            arm=arm,
            runs=tuple(found[arm.run]),
            spreads=_spreads(experiment, found[arm.run], timed[arm.run], test, paces.get(arm.run)),
        )
        for arm in experiment.arms
    )
    return Result(experiment=experiment, data=facts, steps=recipe.steps, seeds=seeds, test_images=len(test), arms=arms)


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _run(job: Job, folder: Path, source: Source, test: Source, watch: Watch, start: Checkpoint | None = None) -> None:
    """Train or resume a run; a finished run of the same job is kept."""
    every = max(1, job.recipe.steps // LOOKS)

    def measure(step: int, model: Model) -> dict[str, float]:
        return structure_of(model) if step % every == 0 or step == job.recipe.steps else {}

    place = RunFolder(folder)
    with place.alone(ALONE):  # experiments share runs, and two may run at once
        if (folder / "recipe.json").is_file():
            check_same(folder, read_job(folder), job)
            if (folder / "model.safetensors").is_file():
                return
        else:
            write_job(folder, job)
        outcome = train(job, source, place, test=test, start=start, save_every=250, watch=watch, measure=measure)
        if outcome.stopped is not None:
            raise Stopped(outcome.stopped)
        finish(job, place, outcome.model)


def _resolutions(folder: Path, tests: dict[Size, Source]) -> None:
    """Measure a finished run at other resolutions, saved in its folder; None where its positions do not allow it."""
    file = folder / "resolutions.json"
    held: dict[str, float | None] = json.loads(file.read_bytes()) if file.is_file() else {}
    missing = {image: test for image, test in tests.items() if str(image) not in held}
    if not missing:
        return
    checkpoint = load(folder / "model.safetensors")
    held |= {str(image): _accuracy(checkpoint, test, image) for image, test in missing.items()}
    write_json_file(file, held)


def _tune(folder: Path, steps: int, tests: dict[Size, Source], source: Source, watch: Watch) -> None:
    """Fine-tune a finished run at every resolution, each as a run of its own, and save their accuracies."""
    file, job, held = folder / "resolutions.json", read_job(folder), {}
    if file.is_file():
        return
    checkpoint = load(folder / "model.safetensors")
    for image, test in tests.items():
        adapted, _ = adapt(checkpoint, {"image": image})
        recipe = job.recipe.but(steps=steps, lr=job.recipe.lr / TUNING)
        data = job.data.but(preprocessing=adapted.preprocessing, start=folder.name)
        tuned = Job(config=adapted.config, recipe=recipe, data=data)
        place = folder.with_name(f"{folder.name}-at-{image}")
        _run(tuned, place, source, test, watch, start=adapted)
        held[str(image)] = evaluate_at(load(place / "model.safetensors"), test, image).accuracy
    write_json_file(file, held)


def _paces(file: Path, jobs: dict[str, Job]) -> dict[str, float]:
    """Return images per second by arm, measured once: a resumed experiment keeps its numbers of steps."""
    if not file.is_file():
        write_json_file(file, images_per_second(jobs))
    return json.loads(file.read_bytes())


def _accuracy(checkpoint: Checkpoint, test: Source, image: Size) -> float | None:
    try:
        adapted, _ = adapt(checkpoint, {"image": image})
    except VitrailError:
        return None
    return evaluate_at(adapted, test, image).accuracy


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────


def _spreads(
    experiment: Experiment, runs: list[Run], timed: list[Run], test: Source, pace: float | None
) -> dict[str, Spread]:
    found: dict[str, list[float | None]] = {}
    tokens = _tokens(runs[0], test)
    books = ledger(runs[0].job.config, Workload(adaptive_tokens=round(tokens)))
    for measure in experiment.measures:
        match measure:
            case "first_epoch_loss":
                found[measure] = [run.first_epoch_loss() for run in runs]
            case "accuracy":
                found[measure] = [run.results().get("final_accuracy") for run in runs]
            case "equal_time":
                found[measure] = [run.results().get("final_accuracy") for run in timed]
            case "images_per_second":
                found[measure] = [pace]
            case "parameters":
                found[measure] = [float(books.params)]
            case "flops":
                found[measure] = [float(books.flops_forward)]
            case "tokens":
                found[measure] = [tokens]
            case "structure":
                found["structure"] = [run.lines[-1].get("position_structure") for run in runs]
                found["untrained structure"] = [_untrained(run.job) for run in runs]
            case "resolutions":
                held = [json.loads((run.path / "resolutions.json").read_bytes()) for run in runs]
                for image in experiment.images:
                    found[f"accuracy@{image}"] = [each.get(str(image)) for each in held]
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {name: spread(values) for name, values in known.items() if values}


def _untrained(job: Job) -> float | None:
    """Return the control: the structure of the run's initial table."""
    reseed("weights", job.recipe.seed)
    return structure_of(build(job.config)).get("position_structure")


@torch.no_grad()
def _tokens(run: Run, test: Source) -> float:
    """Return the patches per image; for adaptive patches, the mean over some test images."""
    config = run.job.config
    if not isinstance(config.embedding, Adaptive):  # type: ignore[union-attr]
        return float(config.grid.area)
    model = load(run.path / "model.safetensors").model()
    steps = run.job.data.preprocessing
    pixels, _, _ = next(in_order(evenly(test, 512), steps, 512))
    _, layout = model.embedding(steps.normalise(pixels))  # type: ignore[operator,union-attr]
    return float(np.mean(tokens_saved(layout).kept))
