"""Figures of vitrail's own experiments that others quote, with the command that measures them again."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["DATA_HUNGER", "HUNGER_COMMAND", "HUNGER_SEEDS", "Accuracy", "Hunger", "data_hunger"]


class Accuracy(NamedTuple):
    """Per cent of the test images, mean and sample deviation over seeds."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.deviation:.1f}"


class Hunger(NamedTuple):
    """Models of equal parameters and FLOPs, trained for equal steps on a number of images."""

    vit: Accuracy
    stem: Accuracy
    cnn: Accuracy


HUNGER_COMMAND = "vitrail experiment data-hunger --data cifar10 --steps 390 --seeds 3"
HUNGER_SEEDS = "three seeds"
DATA_HUNGER = {
    500: Hunger(Accuracy(31.73, 0.41), Accuracy(32.02, 0.25), Accuracy(33.25, 1.48)),
    2_500: Hunger(Accuracy(40.68, 0.87), Accuracy(41.56, 1.24), Accuracy(48.28, 1.21)),
    5_000: Hunger(Accuracy(41.34, 1.1), Accuracy(42.8, 1.1), Accuracy(51.16, 1.47)),
    12_500: Hunger(Accuracy(42.73, 0.2), Accuracy(43.22, 0.83), Accuracy(52.47, 1.8)),
    25_000: Hunger(Accuracy(42.19, 0.59), Accuracy(43.07, 0.45), Accuracy(52.48, 1.27)),
    50_000: Hunger(Accuracy(42.49, 1.32), Accuracy(43.17, 0.87), Accuracy(52.8, 1.32)),
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
