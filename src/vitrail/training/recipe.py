"""How a model is trained, as a value: with the config, the data and the seed it determines every weight.

A recipe is stored as JSON or TOML; `recipe_from_text` inverts `to_json`.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.checkpointing import Checkpointing
from vitrail.codec import from_plain, parse_json, to_plain
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.rules import NonNegativeFloat, NonNegativeInt, PositiveInt, Range, Rate
from vitrail.tuning import Tuning
from vitrail.value import Value

__all__ = [
    "FRESH_RATE",
    "NOTES",
    "RECIPES",
    "Distillation",
    "Recipe",
    "TokenBudget",
    "recipe_from_text",
    "recipe_named",
]


FRESH_RATE = 12.0


@dataclass(frozen=True, kw_only=True)
class Distillation(Value):
    """What the student learns from a teacher, and its share of the loss.

    logits: the softened distribution (arXiv 1503.02531); token: the teacher's decision, by the head of a distillation
    token (DeiT, arXiv 2012.12877); features: the direction of the pooled vector; patches: every patch token and the
    pooled vector, without labels (`vitrail.training.feature_loss`).
    """

    what: Literal["logits", "token", "features", "patches"] = "logits"
    weight: Annotated[float, Range("(0, 1]", "0.5 is half of the loss")] = 0.5
    temperature: Annotated[float, Range("(0, inf)", "use 1 to 5")] = 3.0
    resize: bool = True
    """Resize images to the teacher's own size; without, it sees them at the student's, as a CNN can."""
    view: Size | None = None
    """Image size at which the teacher sees the images, for patches (default: its own)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.what != "patches" or self.weight == 1,
            f"weight {self.weight} leaves a share of the loss to labels, and patches has none; use weight 1",
        )
        require(
            self.view is None or self.what == "patches",
            f"view {self.view} is for what='patches', not for {self.what!r}; leave it out",
        )
        require(
            self.resize or self.what != "patches",
            "resize=False cannot be used with what='patches', whose teacher has a view of its own; give view instead",
        )


@dataclass(frozen=True, kw_only=True)
class TokenBudget(Value):
    """A loss that trains a learned selector of adaptive patches towards a number of tokens."""

    share: Annotated[float, Range("(0, 1]", "0.6 is 60 % of the finest grid's tokens")] = 0.6
    """Tokens over those of the finest regular grid, on average over a batch."""
    weight: Annotated[float, Range("(0, inf)", "10 is usual")] = 10.0
    """Factor of the squared difference between the share and its target."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Value):
    """AdamW or Muon with warm-up and cosine decay over augmented images."""

    steps: PositiveInt = 1000
    batch: PositiveInt = 64
    """Images per update, over all processes and micro-batches."""
    accumulate: PositiveInt = 1
    """Micro-batches per update and process: the same update with less memory."""
    seed: Annotated[int, Range("[0, inf)", "give 0 or more")] = 0
    mimetic: bool = False
    """Mimetic initialisation of attention (arXiv 2305.09828), which helps on small datasets."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: the encoder's matrices by orthogonalised momentum (`vitrail.training.muon`), the rest by AdamW."""
    lr: Annotated[float, Range("(0, inf)", "0.001 is usual")] = 1e-3
    min_lr: NonNegativeFloat = 1e-5
    matrix_rate: Annotated[float, Range("(0, 1]", "0.1 changes trained matrices slowly, 1 as all")] = 1.0
    """Factor of the learning rate for matrices: the projection of patches and the linear layers."""
    fresh: tuple[str, ...] = ()
    """Tensors that are new in an otherwise trained model, by name: they learn at `FRESH_RATE` times the rate."""
    warmup: Rate = 0.05
    """Fraction of the steps in which the learning rate rises to `lr`."""
    weight_decay: Rate = 0.05
    """Weight decay of matrices; vectors and tables of positions and tokens have none."""
    beta1: Rate = 0.9
    beta2: Rate = 0.999
    clip: Annotated[float, Range("(0, inf)", "1 is usual, None leaves it out")] | None = 1.0
    """Clip the gradient to this total norm."""
    ema: Annotated[float, Range("(0, 1)", "0.999 is usual, None leaves it out")] | None = None
    """Decay of the weights' moving average, which is then the result; batch norms keep their own statistics."""

    label_smoothing: Rate = 0.0
    mixup: NonNegativeFloat = 0.0
    """Parameter of the beta distribution; 0 for none. With cutmix too, each pair of images draws one of the two."""
    cutmix: NonNegativeFloat = 0.0
    crop: Annotated[float, Range("(0, 1]", "use 1 for no crop")] = 1.0
    """Smallest fraction of the area that a random crop keeps; 1 for no crop."""
    flip: bool = False
    shift: NonNegativeInt = 0
    """Largest random shift in pixels, in all directions; edge pixels are replicated."""
    augment: Annotated[int, Range("[0, 8]", "2 is usual, 0 is none")] = 0
    """RandAugment operations per image."""
    magnitude: Annotated[float, Range("[0, 1]", "0.3 is usual")] = 0.3
    """Strength of RandAugment operations, 0 to 1."""

    images: tuple[Size, ...] = ()
    """Multi-scale training: each step draws its image size from these (default: the model's own)."""
    patches: tuple[Size, ...] = ()
    """Each step draws its patch size from these, and the projection is resized (FlexiViT, arXiv 2212.08013)."""
    distillation: Distillation | None = None
    token_budget: TokenBudget | None = None
    """For adaptive patches with a learned selector."""
    tuning: Tuning = Tuning()
    """Which weights are trained: frozen parts, last blocks, norms, biases, or low-rank adapters (LoRA)."""

    precision: Literal["fp32", "amp-bf16"] = "fp32"
    checkpointing: Checkpointing | None = None
    """Which blocks recompute activations in backward, and what they keep."""
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.min_lr <= self.lr, f"min_lr {self.min_lr} is above lr {self.lr}; give at most lr")
        require(
            self.batch % (2 * self.accumulate) == 0 or not (self.mixup or self.cutmix),
            f"batch {self.batch} in {self.accumulate} micro-batches leaves an image without a partner to mix with; "
            "use even micro-batches",
        )
        paired = self.distillation is not None and self.distillation.what == "patches"
        require(
            not (paired and (self.shift or self.augment or self.mixup or self.cutmix)),
            "distilling patches shows the teacher the same part of an image, so that shift, augment, mixup and cutmix "
            "cannot be used; use crop and flip",
        )
        require(
            self.matrix_rate == 1 or self.optimizer == "adamw",
            f"matrix_rate {self.matrix_rate} is for adamw, and the optimizer is {self.optimizer}; leave it out",
        )
        require(
            self.batch % self.accumulate == 0,
            f"batch {self.batch} does not divide into {self.accumulate} micro-batches; use a multiple",
        )

    def for_epochs(self, epochs: float, images: int) -> Recipe:
        """Return the recipe with the number of steps that passes over `images` images `epochs` times."""
        require(0 < epochs <= 1e6, f"epochs {epochs} is not above 0 and at most a million; give e.g. 1 or 0.5")
        return self.but(steps=max(1, round(epochs * images / self.batch)))

    def lr_at(self, step: int) -> float:
        """Return the learning rate: linear warm-up, then cosine decay to `min_lr` at the last step.

        >>> [round(Recipe(steps=5, warmup=0.2, lr=1.0, min_lr=0.0).lr_at(step), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
        """
        climb = round(self.steps * self.warmup)
        if step < climb:
            return self.lr * (step + 1) / climb
        part = (step + 1 - max(climb, 1)) / max(1, self.steps - max(climb, 1))
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * part)) / 2

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=2)


def recipe_from_text(text: str) -> Recipe:
    """Read JSON or TOML."""
    if text.lstrip().startswith("{"):
        return from_plain(parse_json(text, "recipe", "write one with to_json()"), Recipe, "recipe")
    try:
        held = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitrailError(f"recipe is neither JSON nor TOML ({error}); write one with to_json()") from None
    return from_plain(held, Recipe, "recipe")


RECIPES = {
    "plain": Recipe(),
    "shapes": Recipe(steps=750, batch=64, lr=3e-3, flip=True, shift=4),
    "cifar": Recipe(
        steps=10_000,
        batch=64,
        optimizer="muon",
        lr=2e-3,
        ema=0.999,
        label_smoothing=0.1,
        flip=True,
        shift=4,
        mimetic=True,
        images=(Size(24, 24), Size(32, 32)),
    ),
    "cifar-teacher": Recipe(
        steps=9_400,
        batch=128,
        lr=3e-3,
        warmup=0.15,
        weight_decay=0.1,
        ema=0.998,
        flip=True,
        shift=4,
        images=(Size(24, 24), Size(32, 32)),
        precision="amp-bf16",
    ),
    "cifar-distilled": Recipe(
        steps=7_000,
        batch=128,
        optimizer="muon",
        lr=1.5e-3,
        ema=0.999,
        flip=True,
        shift=4,
        mimetic=True,
        images=(Size(24, 24), Size(32, 32)),
        distillation=Distillation(resize=False),
        precision="amp-bf16",
    ),
    "fashion-mnist": Recipe(
        steps=13_000,
        batch=64,
        optimizer="muon",
        lr=2e-3,
        ema=0.999,
        flip=True,
        shift=1,
        mimetic=True,
    ),
    "fashion-mnist-refine": Recipe(
        steps=8_000, batch=64, optimizer="muon", lr=1e-3, ema=0.999, label_smoothing=0.1, flip=True, shift=2
    ),
    "finetune": Recipe(steps=1000, batch=64, lr=1e-4, warmup=0.1, weight_decay=0.01, ema=0.999, flip=True, crop=0.6),
}
"""Recipes by name. `NOTES` has their measured scores."""

NOTES = {
    "plain": "AdamW with defaults and no augmentation: the base for a recipe of your own.",
    "shapes": (
        "vitrail train --data shapes --model CONFIG.json --recipe shapes --out RUN. A stem of patch 8, two blocks of "
        "width 64 with max pooling: after 80 s on a core, a linear probe on its frozen features classifies 99.3 % "
        "of 4,096 new images; untrained 38 %."
    ),
    "cifar": (
        "vitrail train --data cifar10 --model cifar-small --recipe cifar --compile --out RUN. "
        "82.64 and 82.60 % of the test images with seeds 0 and 1, after 61 and 66 minutes on one core (0.68 M "
        "parameters); by AdamW, lr 0.001, 79.02 % after 13,000 steps."
    ),
    "cifar-teacher": (
        "vitrail train --data cifar10 --model cifar-resnet --recipe cifar-teacher --out TEACHER. "
        "For cifar-distilled: 90.19 ± 0.18 % of the test images over three seeds, after 20 to 38 minutes on one core "
        "(1.2 M parameters)."
    ),
    "cifar-distilled": (
        "vitrail train --data cifar10 --model RUN --teacher TEACHER --recipe cifar-distilled --out AGAIN. "
        "The cifar run and a convolutional teacher: 82.68 → 87.29 ± 0.43 % over three seeds, after 23 to 42 minutes on "
        "one core."
    ),
    "fashion-mnist": (
        "vitrail train --data fashion-mnist --model fashion-mnist --recipe fashion-mnist --compile --out RUN. "
        "92.87 % of the test images after 57 minutes on one core (0.49 M parameters, one seed)."
    ),
    "fashion-mnist-refine": (
        "vitrail train --data fashion-mnist --model RUN --recipe fashion-mnist-refine --compile --seed 1 --out AGAIN. "
        "Starting from the fashion-mnist run, 93.00 % after 38 more minutes on one core."
    ),
    "finetune": (
        "vitrail train --data DIR --model CHECKPOINT --image SIZE --recipe finetune --out RUN. "
        "The cifar run at 40 instead of 32 pixels: 78.92 → 82.74 % of CIFAR-10's test images after 15 "
        "minutes on one core (compiled, one seed)."
    ),
}
"""A recipe's command, time and score."""


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1) or list(RECIPES)
        raise VitrailError(f"recipe {name!r} is not one of {', '.join(RECIPES)} nor a file; try {near[0]}")
    return RECIPES[name]
