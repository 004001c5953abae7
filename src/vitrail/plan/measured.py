"""Figures of vitrail's own experiments that others quote, with the command that measures them again."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["DATA_HUNGER", "HUNGER_COMMAND", "HUNGER_SEEDS", "Accuracy", "Hunger", "data_hunger"]


class Accuracy(NamedTuple):
    """Per cent of the test images, mean and sample deviation over seeds; one seed has no deviation."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.deviation is None else f"{self.mean:.1f} ± {self.deviation:.1f}"


class Hunger(NamedTuple):
    """Models of equal parameters and FLOPs, trained for equal steps on a number of images."""

    vit: Accuracy
    stem: Accuracy
    cnn: Accuracy


HUNGER_COMMAND = "vitrail experiment data-hunger --data cifar10 --steps 390 --seeds 1"
HUNGER_SEEDS = "one seed"
DATA_HUNGER = {
    500: Hunger(Accuracy(32.07, None), Accuracy(31.78, None), Accuracy(32.11, None)),
    2_500: Hunger(Accuracy(39.88, None), Accuracy(40.63, None), Accuracy(46.97, None)),
    5_000: Hunger(Accuracy(41.08, None), Accuracy(41.57, None), Accuracy(49.48, None)),
    12_500: Hunger(Accuracy(42.96, None), Accuracy(42.28, None), Accuracy(51.41, None)),
    25_000: Hunger(Accuracy(42.28, None), Accuracy(42.56, None), Accuracy(51.43, None)),
    50_000: Hunger(Accuracy(41.43, None), Accuracy(43.18, None), Accuracy(51.6, None)),
}
"""Images of CIFAR-10 → accuracies after 390 steps of 64, for models of 0.11 M parameters."""


def data_hunger(images: int) -> str | None:
    """Say what was measured with about this many images; None if that is more than ten times off.

    >>> data_hunger(10_000_000) is None
    True
    """
    nearest = min(DATA_HUNGER, key=lambda count: abs(math.log(count / images)))
    if not 0.1 <= nearest / images <= 10:
        return None
    found = DATA_HUNGER[nearest]
    return (
        f"trained from scratch on {nearest:,} images of CIFAR-10 for 390 steps of 64, a ViT of 0.11 M parameters has "
        f"{found.vit} % of the test images, with a convolutional stem {found.stem} %, and a CNN of equal parameters "
        f"and FLOPs {found.cnn} %; {HUNGER_SEEDS} ({HUNGER_COMMAND})"
    )
