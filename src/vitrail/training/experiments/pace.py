"""How fast arms train, measured side by side: steps of all arms in turns, the fastest of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from vitrail.nn.build import build
from vitrail.training.job import Job
from vitrail.training.objective import Objective
from vitrail.training.optimizer import build_optimizers

__all__ = ["images_per_second"]

ROUNDS = 12
"""Rounds that are timed, after one that is not."""


def images_per_second(jobs: Mapping[str, Job]) -> dict[str, float]:
    """Return the pace of every job's training steps at its image sizes, without reading and augmenting images.

    The jobs take turns and the fastest round of each counts, so that other work on the machine changes a ratio little.
    """
    steps = {name: _step(job) for name, job in jobs.items()}
    fastest: dict[str, float] = dict.fromkeys(steps, float("inf"))
    for turn in range(1 + ROUNDS):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if turn > 0:
                fastest[name] = min(fastest[name], time.perf_counter() - began)
    return {name: _images(jobs[name]) / seconds for name, seconds in fastest.items()}


def _images(job: Job) -> int:
    return job.recipe.batch * max(1, len(job.recipe.images))


def _step(job: Job) -> Callable[[], None]:
    config, recipe = job.config, job.recipe
    objective = Objective(build(config).train())
    optimizers = build_optimizers(objective, recipe)
    random = torch.Generator().manual_seed(0)
    batches = [
        torch.randn(recipe.batch, config.channels, *image, generator=random)
        for image in recipe.images or (config.image,)
    ]
    targets = F.one_hot(torch.arange(recipe.batch) % config.classes, config.classes).float()

    def step() -> None:
        for images in batches:
            loss, _ = objective(images, targets)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return step
