"""The second step of healing: distillation on `train`'s loop, chosen by images that it does not learn from.

The run's folder resumes bit for bit: order and parts of images are functions of the step, and so are the choices, which
are made by the folder's own metrics. The best weights so far are in it, beside the states.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.atomic import write_file
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.data.source import Source
from vitrail.healing.closed_form import SMALLEST_PART
from vitrail.healing.score import Judge
from vitrail.healing.target import Target
from vitrail.nn.vit import ViT
from vitrail.training import loop
from vitrail.training.distributed import ALONE, World
from vitrail.training.feature_loss import FeatureObjective
from vitrail.training.finish import whole_tensors
from vitrail.training.folder import RunFolder, read_metrics
from vitrail.training.job import DataFacts, Job
from vitrail.training.loop import Watch
from vitrail.training.objective import Model
from vitrail.training.recipe import Distillation, Recipe
from vitrail.tuning import Tuning

__all__ = ["Pace", "Point", "best_of", "curve_of", "distil", "job_of", "pace"]

BATCH = 8
LEARNING_RATE, MATRIX_RATE = 8e-5, 0.0125
"""Of vectors and tables at an error of 1 %, and the factor for matrices. Adam moves every weight by its rate, whatever
its gradient, so that rates follow how far there is to go: the square root of the error, a squared distance."""
EVALUATIONS = 12
"""Times that the weights are judged, over a whole run."""
PATIENCE = 4
"""Evaluations without a new best after which the run ends."""
FEWEST_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What a step and an evaluation were measured to take."""

    step_seconds: float
    judge_seconds: float

    def steps_in(self, seconds: float) -> int:
        """Return the steps that fit into the time, evaluations included; 0 if they are too few to learn anything."""
        steps = int((seconds - EVALUATIONS * self.judge_seconds) / self.step_seconds)
        return steps if steps >= FEWEST_STEPS else 0


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the curve."""

    step: int
    error: float


def pace(after: Checkpoint, target: Target, judge_seconds: float) -> Pace:
    """Measure a step, forward and backward, on a random batch."""
    own, taught = (each.model(dtype=torch.float32) for each in (after, target.original))
    objective = FeatureObjective(own.train(), taught)
    images = torch.randn(BATCH, after.config.channels, *after.config.image)
    views = torch.randn(BATCH, target.original.config.channels, *target.image)
    spent = []
    for _ in range(2):  # the first pays for threads and kernels
        began = time.monotonic()
        objective(images, views)[0].backward()
        spent.append(time.monotonic() - began)
    return Pace(step_seconds=1.1 * min(spent), judge_seconds=judge_seconds)


def job_of(after: Checkpoint, target: Target, *, images: int, steps: int, seed: int, error: float) -> Job:
    """Return the job of `steps` steps that starts at an error of `error`."""
    recipe = Recipe(
        steps=steps,
        batch=BATCH,
        seed=seed,
        lr=LEARNING_RATE * (error / 0.01) ** 0.5,
        min_lr=0.0,
        matrix_rate=MATRIX_RATE,
        fresh=tuple(name for name in after.tensors if name not in target.original.tensors),
        warmup=0.1,
        weight_decay=0.0,
        beta2=0.99,
        crop=SMALLEST_PART,
        flip=True,
        distillation=Distillation(what="patches", weight=1.0, view=target.image),
        tuning=Tuning(freeze=("head",)) if after.config.classes else Tuning(),
    )
    facts = DataFacts(sources=("images",), images=images, classes=(), preprocessing=after.preprocessing)
    return Job(config=after.config, recipe=recipe, data=facts)


def distil(
    job: Job,
    source: Source,
    start: Checkpoint,
    target: Target,
    judge: Judge,
    folder: RunFolder,
    *,
    world: World = ALONE,
    watch: Watch = lambda facts: None,
) -> loop.Outcome:
    """Train until the last step, or until there has been no new best for a while; resume what is in the folder."""
    every = max(1, job.recipe.steps // EVALUATIONS)

    def measure(done: int, model: Model) -> dict[str, float]:
        if not folder.writes or (done % every and done != job.recipe.steps):
            return {}
        assert isinstance(model, ViT)
        error = judge(model).error
        if error < min((point.error for point in curve_of(folder.path)), default=math.inf):
            _keep(folder.path, done, model)
        return {"error": error}

    def enough(line: dict[str, Any]) -> bool:
        if not folder.writes or "error" not in line:
            return False
        errors = [point.error for point in curve_of(folder.path)]
        return len(errors) > PATIENCE and min(errors[:-PATIENCE]) <= min(errors[-PATIENCE:])

    return loop.train(
        job,
        source,
        folder,
        start=start,
        teacher=target.original,
        save_every=every,
        world=world,
        watch=watch,
        measure=measure,
        enough=enough,
    )


def curve_of(folder: Path) -> list[Point]:
    """Return the errors that a run has measured."""
    return [Point(step=line["step"], error=line["error"]) for line in read_metrics(folder) if "error" in line]


def _keep(folder: Path, step: int, model: Model) -> None:
    tensors = whole_tensors(model)
    write_file(folder / "best.safetensors", lambda file: write_safetensors(file, tensors, {"step": str(step)}))


def best_of(folder: Path, after: Checkpoint) -> tuple[Checkpoint, int] | None:
    """Return the weights that were best, in the dtypes of the checkpoint, and their step; None before the first."""
    path = folder / "best.safetensors"
    if not path.is_file():
        return None
    tensors, facts = read_safetensors(path)
    held = after.tensors
    return after.but(tensors={name: tensors[name].to(held[name].dtype) for name in held}), int(facts["step"])
