"""Small jobs for the tests of training: a model of two blocks on drawn shapes, made once."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.checkpoint.formats.safetensors import read_safetensors
from vitrail.config import ViTConfig
from vitrail.data.shapes import Shapes
from vitrail.data.source import ArraySource
from vitrail.geometry import Size
from vitrail.parts import Mlp, Patches
from vitrail.training.batches import measured
from vitrail.training.folder import RunFolder, read_metrics
from vitrail.training.job import DataFacts, Job
from vitrail.training.loop import Outcome, train
from vitrail.training.recipe import Recipe
from vitrail.training.state import states

__all__ = ["CONFIG", "RICH", "begin", "interrupt_after", "job_of", "losses", "same_weights", "shapes"]

CONFIG = ViTConfig(
    image=Size(12, 16),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    drop_path=0.2,
    dropout=0.1,
    classes=4,
)
RICH = Recipe(
    steps=6,
    batch=8,
    accumulate=2,
    lr=3e-3,
    ema=0.9,
    label_smoothing=0.1,
    mixup=0.4,
    cutmix=1.0,
    crop=0.5,
    flip=True,
    shift=2,
    augment=2,
    images=(Size(12, 16), Size(16, 12)),
    patches=(Size(4, 4), Size(2, 4)),
    seed=3,
)
"""Everything that draws random numbers, at once."""


@cache
def shapes(count: int = 40) -> ArraySource:
    drawn = Shapes(CONFIG.image, count=count)
    images, labels = zip(*(drawn[index] for index in range(count)), strict=True)
    return ArraySource(np.stack(images), np.array(labels), drawn.classes, name="shapes")


def job_of(recipe: Recipe, config: ViTConfig = CONFIG, source: Any = None) -> Job:
    source = source or shapes()
    facts = DataFacts(
        sources=("shapes",),
        images=len(source),
        classes=source.classes,
        preprocessing=measured(source, config.image, "shapes"),
    )
    return Job(config=config, recipe=recipe, data=facts)


def begin(folder: Path, recipe: Recipe, **options: Any) -> Outcome:
    """Train into a folder, or go on with what it holds."""
    source, config = options.pop("source", None) or shapes(), options.pop("config", CONFIG)
    folder.mkdir(exist_ok=True)
    return train(job_of(recipe, config, source), source, RunFolder(folder), **options)


def interrupt_after(step: int, *, times: int = 1) -> Any:
    """A watcher that sends this process SIGTERM when a step has been told."""

    def watch(facts: dict[str, Any]) -> None:
        if facts.get("step") == step and "loss" in facts:
            held = signal.getsignal(signal.SIGTERM)
            assert callable(held), f"SIGTERM would end the tests: its handler is {held}"
            for _ in range(times):
                signal.raise_signal(signal.SIGTERM)

    return watch


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_metrics(folder)]


def same_weights(one: Path, other: Path) -> bool:
    """The newest states of two runs, tensor by tensor."""
    a, b = (read_safetensors(states(folder / "states")[0] / "state.safetensors")[0] for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
