"""Convert the page's questions into the planner's values: a config, a workload, a card."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from vitrail.checkpointing import Checkpointing
from vitrail.config import ViTConfig
from vitrail.geometry import Size, fit
from vitrail.plan.cards import Card, card
from vitrail.plan.workload import Shard, Workload
from vitrail.server.controls import CardChoice, Geometry, Planned, Work
from vitrail.server.session import Session

__all__ = ["Box", "Pair", "PlanQuestion", "Shape", "card_of", "described", "divides", "sizes", "workload_of"]


Pair = Annotated[
    Size | tuple[int, ...],
    PlainValidator(tuple),
    PlainSerializer(list),
    WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
]
"""A height and a width, or a row and a column, as a JSON array."""
Box = Annotated[tuple[int, ...], Field(min_length=4, max_length=4)]
"""Top, left, height and width, in pixels."""


class Shape(Planned, Geometry):
    """The parameters of a config."""


class PlanQuestion(Shape, Work, CardChoice):
    """The parameters of `vitrail plan`."""


def sizes(asked: Geometry) -> tuple[Size, Size]:
    """Return the image and patch sizes."""
    return Size(asked.height, asked.width), Size(asked.patch_height, asked.patch_width)


def divides(asked: Geometry) -> bool:
    image, patch = sizes(asked)
    return image.height % patch.height == 0 and image.width % patch.width == 0


def described(asked: Shape, session: Session) -> ViTConfig:
    """Return the model's config with the question's image, patch and remainder."""
    base = session.planned(asked.model)
    image, patch = sizes(asked)
    if asked.remainder == "resize":  # the model's input is the resized image
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
        checkpointing=Checkpointing.of(asked.checkpointing),
        accumulate=asked.accumulate,
        shard=shard_of(asked),
        offload=asked.train and asked.offload,
    )


def shard_of(asked: Work) -> Shard | None:
    """Return how a step is spread; options of another kind of sharding, or of another precision, are left out."""
    match asked.shard:
        case "none":
            return None
        case "ddp":
            return Shard("ddp", asked.devices, gradient_as_bucket_view=asked.gradient_as_bucket_view)
        case "fsdp":
            return Shard(
                "fsdp",
                asked.devices,
                reshard_after_forward=asked.reshard_after_forward,
                param_dtype=None if asked.param_dtype == "same" or "amp" in asked.precision else asked.param_dtype,
            )
    return Shard(asked.shard, asked.devices)


def card_of(asked: CardChoice) -> Card:
    return card(asked.card)
