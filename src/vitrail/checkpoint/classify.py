"""Classify images: the most likely labels of each, with their probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch

from vitrail.checkpoint.pixels import Image
from vitrail.errors import require
from vitrail.images.decode import ImageError

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.checkpoint import Checkpoint

__all__ = ["Prediction", "class_name", "classify", "most_likely"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A label and how likely the model says it is."""

    label: str
    index: int
    """The label's place among the head's outputs."""
    probability: float


def class_name(index: int, labels: tuple[str, ...]) -> str:
    """Return an output's label, or its number where the checkpoint has no labels."""
    return labels[index] if labels else f"class {index}"


def most_likely(logits: Tensor, labels: tuple[str, ...], top: int) -> tuple[Prediction, ...]:
    """Return the `top` most likely labels for the logits (classes,) of one image, most likely first."""
    likely = logits.softmax(dim=-1).topk(min(top, len(logits)))
    return tuple(
        Prediction(label=class_name(index, labels), index=index, probability=probability)
        for index, probability in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    )


@torch.inference_mode()
def classify(
    checkpoint: Checkpoint, images: Iterable[Image], *, top: int = 5, batch: int = 16
) -> Iterator[tuple[Prediction, ...] | ImageError]:
    """Yield the `top` most likely labels of each image, in order; for an image that cannot be read, its error."""
    checkpoint.config.require_still("classify")
    classes = checkpoint.config.classes
    require(
        classes > 0,
        "the weights have no classifier: their head has 0 classes; fine-tune them with vitrail train, or give others",
    )
    require(top >= 1, f"top {top} is not a positive number of labels; 5 is usual")
    model, steps = checkpoint.model(dtype=torch.float32), checkpoint.preprocessing
    remaining = iter(images)
    while some := list(islice(remaining, batch)):
        prepared = [_pixels(checkpoint, image) for image in some]
        pixels = [each for each in prepared if not isinstance(each, ImageError)]
        logits = iter(model(steps.normalise(torch.stack(pixels))) if pixels else ())
        for each in prepared:
            yield each if isinstance(each, ImageError) else most_likely(next(logits), checkpoint.labels, top)


def _pixels(checkpoint: Checkpoint, image: Image) -> Tensor | ImageError:
    try:
        return torch.from_numpy(checkpoint.preprocessing.pixels(image, exact=True).pixels).permute(2, 0, 1)
    except ImageError as error:
        return error
