"""Controlled experiments as data: a question, arms that differ in one thing, and what is measured.

All arms are one small model with one part exchanged, trained with one recipe; an arm that two experiments share is one
run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import (
    Adaptive,
    Hierarchical,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    SinCos1d,
    SinCos2d,
    Stem,
)
from vitrail.training.recipe import Recipe
from vitrail.value import Value

__all__ = ["BASE", "EXPERIMENTS", "RECIPE", "Arm", "Experiment", "Measure", "experiment_named"]

Measure = Literal[
    "first_epoch_loss", "accuracy", "resolutions", "parameters", "tokens", "flops", "images_per_second", "structure"
]

BASE = ViTConfig(
    image=Size(32, 32),
    embedding=Patches(patch=Size(4, 4)),
    width=64,
    depth=3,
    num_heads=2,
    mlp=Mlp(width=128),
    classes=10,
)
"""0.11 M parameters: an epoch of CIFAR-10 takes about 80 seconds on one core."""
RECIPE = Recipe(batch=64, lr=2e-3, warmup=0.1, flip=True)
"""The same for every arm, tuned for none; the command sets steps and seed."""


@dataclass(frozen=True, kw_only=True)
class Arm(Value):
    run: str
    """Name of the run; equal configs have equal names."""
    label: str
    config: ViTConfig = BASE


@dataclass(frozen=True, kw_only=True)
class Experiment(Value):
    name: str
    question: str
    arms: tuple[Arm, ...]
    """The first is the baseline."""
    measures: tuple[Measure, ...]
    images: tuple[Size, ...] = ()
    """Resolutions at which the trained models are evaluated after adapting them, on part of the test images."""


_LEARNED = Arm(run="base", label="learned")

EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment(
            name="positions",
            question="Which positions learn fastest, end best, and survive another resolution?",
            arms=(
                _LEARNED,
                Arm(run="sincos1d", label="sinusoidal, 1D", config=BASE.but(position=SinCos1d())),
                Arm(run="sincos2d", label="sinusoidal, 2D", config=BASE.but(position=SinCos2d())),
                Arm(run="relative", label="relative bias", config=BASE.but(position=RelativeBias())),
                Arm(run="rotary", label="rotary, index", config=BASE.but(position=Rotary())),
                Arm(
                    run="rotary-normalised",
                    label="rotary, normalised",
                    config=BASE.but(position=Rotary(coordinates="normalised")),
                ),
                Arm(run="none", label="none", config=BASE.but(position=NoPosition())),
            ),
            measures=("first_epoch_loss", "accuracy", "resolutions", "parameters"),
            images=(Size(24, 24), Size(32, 32), Size(40, 40), Size(48, 48)),
        ),
        Experiment(
            name="pooling",
            question="CLS token or the mean of the patches?",
            arms=(
                Arm(run="base", label="CLS token"),
                Arm(run="mean", label="mean, no CLS token", config=BASE.but(prefix=Prefix(cls=False), pool=MeanPool())),
            ),
            measures=("first_epoch_loss", "accuracy", "parameters", "flops", "images_per_second"),
        ),
        Experiment(
            name="patch-size",
            question="What does a smaller patch buy, and what does it cost?",
            arms=(
                Arm(run="base", label="4×4"),
                Arm(run="patch-8", label="8×8", config=BASE.but(embedding=Patches(patch=Size(8, 8)))),
                Arm(run="patch-16", label="16×16", config=BASE.but(embedding=Patches(patch=Size(16, 16)))),
            ),
            measures=("first_epoch_loss", "accuracy", "tokens", "parameters", "flops", "images_per_second"),
        ),
        Experiment(
            name="embeddings",
            question="Which way from pixels to tokens?",
            arms=(
                Arm(run="base", label="linear, 4"),
                Arm(
                    run="stem",
                    label="convolutional stem, 4",
                    config=BASE.but(embedding=Stem(patch=Size(4, 4), widths=(32, 64))),
                ),
                Arm(
                    run="overlapping",
                    label="overlapping, 8 every 4",
                    config=BASE.but(embedding=Patches(patch=Size(8, 8), stride=Size(4, 4))),
                ),
                Arm(
                    run="hierarchical",
                    label="hierarchical, 2 → 4",
                    config=BASE.but(embedding=Hierarchical(finest=Size(2, 2), widths=(32,))),
                ),
                Arm(
                    run="adaptive",
                    label="adaptive, 4 or 8",
                    config=BASE.but(embedding=Adaptive(patches=(Size(4, 4), Size(8, 8)))),
                ),
            ),
            measures=("first_epoch_loss", "accuracy", "tokens", "parameters", "flops", "images_per_second"),
        ),
        Experiment(
            name="position-structure",
            question="Do learned positions recover that the image has two dimensions?",
            arms=(_LEARNED,),
            measures=("structure", "accuracy"),
        ),
    )
}


def experiment_named(name: str, *, others: Iterable[str] = ()) -> Experiment:
    """Return an experiment; the error for an unknown name lists the `others` too."""
    if name not in EXPERIMENTS:
        names = [*EXPERIMENTS, *others]
        near = difflib.get_close_matches(name, names, n=1) or names
        raise VitrailError(f"experiment {name!r} is not one of {', '.join(names)}; try {near[0]}")
    return EXPERIMENTS[name]
