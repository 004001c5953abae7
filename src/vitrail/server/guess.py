"""A model's prediction for an image: its most likely classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from vitrail.config import Config
from vitrail.plan.ledger import ledger
from vitrail.server.controls import Loaded
from vitrail.server.plans import Pair
from vitrail.server.session import Session

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Guess", "guess_of", "predict"]

NAMED = 10
TOY_PARAMS = 3_000_000
"""A model with fewer parameters is a toy: the smallest that is published, Ti/16, has 5.7 million."""


class Guess(BaseModel):
    """The most likely classes, in descending order."""

    image: Pair
    names: list[str]
    probabilities: list[float]
    classes: int
    named: bool
    """Whether the checkpoint has names for its classes."""
    model: str
    """What the model is: "toy model, 10 classes, 32 px"."""


def predict(asked: Loaded, session: Session, seen: int = 0) -> Guess | None:
    """Return the prediction at one input size, 0 being the training size; None for a model without a head."""
    if not session.config(asked.weights).classes:
        return None
    subject, recording = session.recording(asked.image, asked.weights, seen)
    checkpoint = session.checkpoint(asked.weights)
    return guess_of(recording.output[0], checkpoint.labels, subject.image.shape[2:], checkpoint.config)


def guess_of(logits: Tensor, labels: tuple[str, ...], image: Pair, trained: Config) -> Guess:
    """Return the prediction from the logits of one image; `image` is the size of the model's input."""
    from vitrail.checkpoint.classify import most_likely  # needs torch, which the studio loads on demand

    likely = most_likely(logits, labels, NAMED)
    return Guess(
        image=image,
        names=[each.label for each in likely],
        probabilities=[each.probability for each in likely],
        classes=len(logits),
        named=bool(labels),
        model=_about(trained),
    )


def _about(config: Config) -> str:
    params = ledger(config).params
    size = "toy model" if params < TOY_PARAMS else f"model of {params / 1e6:,.0f} M parameters"
    height, width = config.image
    side = f"{height}" if height == width else f"{height} × {width}"
    return f"{size}, {config.classes:,} classes, {side} px"
