"""Accuracy of a model at its own image size and at others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.data.source import Source, Subset
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.rules import positive
from vitrail.training.batches import in_order
from vitrail.training.objective import Model

__all__ = ["Score", "evaluate", "evaluate_at", "evenly"]


@dataclass(frozen=True, kw_only=True)
class Score:
    image: Size
    images: int
    right: int
    damaged: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        return self.right / self.images


@torch.no_grad()
def evaluate(
    model: Model,
    source: Source,
    *,
    preprocessing: Preprocessing,
    batch: int = 128,
    rank: int = 0,
    world: int = 1,
    forward: Callable[[Tensor], Tensor] | None = None,
    watch: Callable[[int], None] = lambda done: None,
) -> Score:
    """Evaluate the model on this process's share of the source; the model's mode is restored.

    `forward` is called instead of the model, e.g. if it is sharded; `watch`, with the number of images done so far.
    """
    modes, device = [(part, part.training) for part in model.modules()], next(model.parameters()).device
    model.eval()
    right = images = 0
    damaged: list[str] = []
    for number, (pixels, labels, bad) in enumerate(in_order(source, preprocessing, batch)):
        if number % world != rank:
            continue
        damaged += bad
        logits = (forward or model)(preprocessing.normalise(pixels.to(device)))
        right += int((logits.argmax(1).cpu() == labels).sum())
        images += len(labels)
        watch(min((number + 1) * batch, len(source)))
    for part, training in modes:  # each its own: frozen batch norms are not in training mode
        part.training = training
    require(images > 0 or world > 1, "no image of the test split could be read; check the data")
    return Score(image=preprocessing.image, images=images, right=right, damaged=tuple(damaged))


def evaluate_at(
    checkpoint: Checkpoint,
    source: Source,
    image: Size,
    *,
    batch: int = 128,
    watch: Callable[[int], None] = lambda done: None,
) -> Score:
    """Adapt the checkpoint to an image size, and evaluate it there."""
    checkpoint.config.require_still("evaluation")
    positive("batch", batch)
    adapted, _ = adapt(checkpoint, {"image": image})
    require(
        len(source.classes) <= adapted.config.classes,
        f"the data have {len(source.classes)} classes and the model {adapted.config.classes}; give its own data",
    )
    return evaluate(adapted.model(), source, preprocessing=adapted.preprocessing, batch=batch, watch=watch)


def evenly(source: Source, limit: int | None) -> Source:
    """Return at most `limit` images of the source, at even steps."""
    count = min(limit or len(source), len(source))
    return Subset(source, np.arange(count) * len(source) // count)
