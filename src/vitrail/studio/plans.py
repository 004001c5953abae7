"""From what the page asks to what the planner takes: a config, a workload, a card."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vitrail.config import ViTConfig
from vitrail.geometry import Size, fit
from vitrail.plan.hardware import Card, card
from vitrail.plan.workload import Shard, Workload
from vitrail.studio.controls import CardChoice, Geometry, Planned, Work
from vitrail.studio.session import Session

__all__ = ["Pair", "PlanQuestion", "Shape", "card_of", "described", "divides", "sizes", "workload_of"]


Pair = Annotated[tuple[int, ...], Field(min_length=2, max_length=2)]
"""A height and a width, in an answer."""


class Shape(Planned, Geometry):
    """What a config is made of."""


class PlanQuestion(Shape, Work, CardChoice):
    """What `vitrail plan` asks."""


def sizes(asked: Geometry) -> tuple[Size, Size]:
    """Image and patch."""
    return Size(asked.height, asked.width), Size(asked.patch_height, asked.patch_width)


def divides(asked: Geometry) -> bool:
    image, patch = sizes(asked)
    return image.height % patch.height == 0 and image.width % patch.width == 0


def described(asked: Shape, here: Session) -> ViTConfig:
    """The model at the asked image and patch; the remainder matters only where there is one."""
    base = here.planned(asked.model)
    image, patch = sizes(asked)
    if asked.remainder == "resize":  # then that is the image the model gets
        image = fit(image, patch, remainder="resize").fitted
    remainder = "error" if divides(asked) or asked.remainder == "resize" else asked.remainder
    return base.but(image=image, embedding=base.embedding.with_patch(patch), remainder=remainder)


def workload_of(asked: Work) -> Workload:
    return Workload(
        batch=asked.batch,
        train=asked.train,
        precision=asked.precision,
        optimizer=asked.optimizer,
        attention=asked.attention,
        checkpointing=asked.checkpointing,
        accumulate=asked.accumulate,
        shard=None if asked.shard == "none" else Shard(asked.shard, asked.devices),
    )


def card_of(asked: CardChoice) -> Card:
    return card(asked.card)
