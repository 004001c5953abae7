"""A model's prediction for an image: its most likely classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from vitrail.server.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Guess", "guess_of"]

NAMED = 10


class Guess(BaseModel):
    """The most likely classes, in descending order."""

    image: Pair
    names: list[str]
    probabilities: list[float]
    classes: int
    named: bool
    """Whether the checkpoint has names for its classes."""


def guess_of(logits: Tensor, labels: tuple[str, ...], image: Pair) -> Guess:
    """Return the prediction from the logits of one image; `image` is the size of the model's input."""
    from vitrail.checkpoint.classify import most_likely  # needs torch, which the studio loads on demand

    likely = most_likely(logits, labels, NAMED)
    return Guess(
        image=image,
        names=[each.label for each in likely],
        probabilities=[each.probability for each in likely],
        classes=len(logits),
        named=bool(labels),
    )
