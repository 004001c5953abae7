"""Room 7, models: presets side by side, in a table and a chart."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.comparison import Compared, compared
from vitrail.plan.fit import largest_batch
from vitrail.plan.folklore import claim
from vitrail.plan.published import DOUBTS, Result, best
from vitrail.plan.workload import Workload
from vitrail.presets import PRESETS
from vitrail.server.controls import CardChoice, Work, choice, number
from vitrail.server.plans import Pair, card_of, workload_of

__all__ = ["Question", "members", "router"]

router = APIRouter()

Axis = Literal[
    "params", "flops_forward", "flops_train", "infer_peak_bytes", "train_peak_bytes", "tokens", "accuracy"
]  # fmt: skip
WORDS = {
    "params": "parameters",
    "flops_forward": "forward FLOPs",
    "flops_train": "training FLOPs",
    "infer_peak_bytes": "inference memory",
    "train_peak_bytes": "training memory",
    "tokens": "tokens",
    "accuracy": "published top-1",
}
FAMILIES = {
    "vit": ("ViT", ("Ti/", "S/", "B/", "L/", "H/", "g/", "G/")),
    "deit": ("DeiT", ("deit-",)),
    "dino": ("DINO, v2, v3", ("dino",)),
    "language": ("CLIP and SigLIP", ("clip-", "siglip")),
    "masked": ("MAE and BEiT", ("mae-", "beit-")),
    "flexible": ("FlexiViT", ("flexivit-",)),
    "small": ("Swin, PiT, MobileViT, thumbnails", ("swin-", "pit-", "mobilevit", "cifar", "fashion-mnist")),
}


class Question(Work, CardChoice):
    family: Literal["vit", "deit", "dino", "language", "masked", "flexible", "small", "all"] = choice(
        "vit",
        label="Family",
        about="The models to compare",
        words={**{name: words for name, (words, _) in FAMILIES.items()}, "all": "all"},
    )
    same_side: int = number(
        0,
        0,
        1024,
        step=16,
        unit="px",
        zero="each model's own",
        label="Image side",
        about="One image size for all models, rounded to what each accepts",
    )
    across: Axis = choice("flops_forward", label="x axis", about="The horizontal axis of the chart", words=WORDS)
    up: Axis = choice("params", label="y axis", about="The vertical axis of the chart", words=WORDS)


class Costs(BaseModel):
    """What a model costs at an image size. FLOPs are per image; bytes are for the whole batch on one device."""

    image: Pair
    grid: Pair
    tokens: int
    params: int
    flops_forward: int
    flops_train: int
    macs_forward: int
    infer_peak_bytes: int
    train_peak_bytes: int


class Entry(Costs):
    """One model."""

    model: str
    family: str
    accuracy: float | None
    """The best published top-1 accuracy on ImageNet-1k that is recorded."""
    best: Result | None
    published: tuple[Result, ...]
    at_published: Costs | None
    """The costs at the image size of the published accuracy; None if that is the entry's own, or impossible."""


class Answer(BaseModel):
    models: list[Entry]
    missing: list[str]
    """Models that cannot take this image size, and why."""
    words: dict[str, str]
    """Labels of the axes."""
    doubts: list[str]
    """Remarks on published numbers that were not checked against their source."""
    folklore: list[str]


@router.get("/models")
def models(asked: Annotated[Question, Query()]) -> Answer:
    """Return the models of a family, planned for the same workload."""
    workload, entries, missing = workload_of(asked), [], []
    for name in members(asked.family):
        try:
            entries.append(_entry(_planned(name, _at(name, asked.same_side), workload), workload))
        except VitrailError as error:
            missing.append(f"{name}: {error}")
    folklore = [claim(key).words for key in ("vit-b-jft", "vit-l-jft", "vit-giant")]
    return Answer(models=entries, missing=missing, words=WORDS, doubts=list(DOUBTS.values()), folklore=folklore)


@router.get("/models/batch")
def batches(asked: Annotated[Question, Query()]) -> dict[str, int]:
    """Return the largest batch per model that likely fits the card."""
    workload, target, largest = workload_of(asked), card_of(asked), {}
    for name in members(asked.family):
        try:
            config = _at(name, asked.same_side)
            largest[name] = largest_batch(config, workload, target)
        except VitrailError:  # /models reports it
            continue
    return largest


_planned = lru_cache(maxsize=512)(compared)  # sliders return to the same values often


def members(family: str) -> list[str]:
    """Return the presets of a family that take still images."""
    return [name for name, config in PRESETS.items() if config.frames == 1 and family in ("all", _family(name))]


def _family(name: str) -> str:
    """Return the family by the prefix of the name, "small" if none matches."""
    return next((family for family, (_, starts) in FAMILIES.items() if name.startswith(starts)), "small")


def _at(name: str, side: int) -> Config:
    """Return a preset at the nearest image size that it accepts, or at its own for 0."""
    config = PRESETS[name]
    return config.but(image=Size(*(max(1, round(side / step)) * step for step in config.unit))) if side else config


def _entry(numbers: Compared, workload: Workload) -> Entry:
    top = best(numbers.model)
    there = None if top is None else _at_published(numbers, top, workload)
    accuracy = None if top is None else top.accuracy
    return Entry(**vars(numbers), family=_family(numbers.model), accuracy=accuracy, best=top, at_published=there)


def _at_published(numbers: Compared, top: Result, workload: Workload) -> Costs | None:
    """Return the costs of a model at the size its accuracy was measured at."""
    if numbers.image == Size.of(top.image):
        return None
    try:
        there = _planned(numbers.model, PRESETS[numbers.model].but(image=Size.of(top.image)), workload)
    except VitrailError:  # the model cannot take it
        return None
    return Costs(**{name: getattr(there, name) for name in Costs.model_fields})
