"""Controlled experiments as data: a question, arms that differ in one thing, and what is measured.

All arms are one small model with one part exchanged, trained with one recipe; an arm that two experiments share is one
run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import (
    Adaptive,
    Hierarchical,
    LinearAttention,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    SinCos1d,
    SinCos2d,
    SparseAttention,
    Stem,
    WindowedAttention,
)
from vitrail.rules import Range
from vitrail.training.recipe import Recipe
from vitrail.value import Value

__all__ = ["BASE", "EXPERIMENTS", "RECIPE", "Arm", "Experiment", "Measure", "experiment_named"]

Measure = Literal[
    "first_epoch_loss",
    "accuracy",
    "equal_time",
    "resolutions",
    "parameters",
    "tokens",
    "flops",
    "images_per_second",
    "structure",
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
    images: tuple[Size, ...] = ()
    """Sizes that training draws from, step by step (default: the config's own)."""
    tuned: Annotated[float, Range("[0, 1)", "0.2 is a fifth of the steps")] = 0.0
    """Share of the steps that are spent on fine-tuning at each of the experiment's resolutions, one run for each."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Value):
    name: str
    question: str
    arms: tuple[Arm, ...]
    """The first is the baseline."""
    measures: tuple[Measure, ...]
    images: tuple[Size, ...] = ()
    """Resolutions at which the trained models are evaluated after adapting them, on part of the test images."""
    equal_time: bool = False
    """Whether every arm is also trained for as many steps as take the time of the first arm's."""

    @property
    def runs_per_seed(self) -> int:
        return len(self.arms) + (len(self.arms) - 1 if self.equal_time else 0)


_LEARNED = Arm(run="base", label="learned")
_TARGETS = (Size(24, 24), Size(32, 32), Size(40, 40), Size(48, 48), Size(64, 64))


def _attention(side: int) -> Experiment:
    """Attention kinds on images of one side; with 4-pixel patches, 64 tokens at 32 px, 256 at 64 and 576 at 96."""
    base, mark = BASE.but(image=Size(side, side)), "" if side == 32 else f"-{side}"
    kinds = {
        "windowed": ("windows of 4×4, shifted", WindowedAttention(window=Size(4, 4))),
        "criss-cross": ("row and column", SparseAttention()),
        "linear": ("linear", LinearAttention()),
    }
    return Experiment(
        name=f"attention{mark}",
        question=f"What does cheaper attention cost in quality, at {base.grid.area} patches?",
        arms=(
            Arm(run=f"base{mark}", label="full", config=base),
            *(
                Arm(run=f"{run}{mark}", label=label, config=base.but(attention=kind))
                for run, (label, kind) in kinds.items()
            ),
        ),
        measures=("first_epoch_loss", "accuracy", "equal_time", "flops", "images_per_second"),
        equal_time=True,
    )


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
        *(_attention(side) for side in (32, 64, 96)),
        Experiment(
            name="transfer",
            question="Which strategy carries a model to another resolution?",
            arms=(
                Arm(run="base", label="learned, resampled"),
                Arm(run="sincos2d", label="sinusoidal, 2D", config=BASE.but(position=SinCos2d())),
                Arm(
                    run="rotary-normalised",
                    label="rotary, normalised",
                    config=BASE.but(position=Rotary(coordinates="normalised")),
                ),
                Arm(run="multi-scale", label="learned, multi-scale training", images=_TARGETS),
                Arm(run="tuned", label="learned, a fifth of the steps at the target", tuned=0.2),
            ),
            measures=("first_epoch_loss", "accuracy", "resolutions"),
            images=_TARGETS,
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
