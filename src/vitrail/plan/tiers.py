"""What fits cards of usual sizes: the largest batch of each model, computed by the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.geometry import Size
from vitrail.plan.cards import GIB, Card
from vitrail.plan.fit import largest_batch
from vitrail.plan.workload import Workload
from vitrail.presets import preset

__all__ = ["TIERS_GIB", "Tier", "tiers"]

TIERS_GIB = (8, 16, 24, 40, 80)
MODELS = ("Ti/16", "S/16", "B/16", "L/16", "H/14")


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One model on a card with this much memory."""

    gib: int
    model: str
    image: Size
    train_batch: int
    """The largest batch of a training step (mixed bf16, AdamW, flash attention) that likely fits; 0 if none does."""
    inference_batch: int
    """The largest batch of a forward pass that likely fits."""


def tiers(models: Sequence[str] = MODELS, image: Size | None = None) -> tuple[Tier, ...]:
    """Return the largest batches by model and memory, at the models' own image sizes or at one size.

    >>> [tier.train_batch > 0 for tier in tiers(["H/14"])]
    [False, True, True, True, True]
    """
    found = []
    for name in models:
        config = preset(name) if image is None else preset(name, image=image)
        for gib in TIERS_GIB:
            target = Card(key=f"{gib}GiB", name=f"a card of {gib} GiB", visible_bytes=gib * GIB, tflops={})
            train, infer = (
                largest_batch(config, Workload(train=training, precision="amp-bf16"), target)
                for training in (True, False)
            )
            found.append(Tier(gib=gib, model=name, image=config.image, train_batch=train, inference_batch=infer))
    return tuple(found)
