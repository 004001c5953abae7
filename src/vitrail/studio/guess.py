"""A model's prediction for an image: its most likely classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from vitrail.studio.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Guess", "class_name", "guess_of"]

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
    likely = logits.softmax(dim=-1).topk(min(NAMED, len(logits)))
    return Guess(
        image=image,
        names=[class_name(index, labels) for index in likely.indices.tolist()],
        probabilities=likely.values.tolist(),
        classes=len(logits),
        named=bool(labels),
    )


def class_name(index: int, labels: tuple[str, ...]) -> str:
    return labels[index] if labels else f"class {index}"
