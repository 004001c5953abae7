"""Room 7, models: variants side by side, as a table and on two axes."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.comparison import Compared, compared
from vitrail.plan.fit import largest_batch
from vitrail.plan.published import DOUBTS, MISQUOTE, Result, best
from vitrail.presets import PRESETS
from vitrail.studio.controls import CardChoice, Work, choice, number
from vitrail.studio.plans import Pair, card_of, workload_of

__all__ = ["Question", "router"]

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
    "small": ("pyramids, mobile, thumbnails", ("swin-", "mobilevit-", "cifar", "fashion-mnist")),
}


class Question(Work, CardChoice):
    family: Literal["vit", "deit", "dino", "language", "masked", "flexible", "small", "all"] = choice(
        "vit",
        label="Family",
        about="Which models stand side by side",
        words={**{name: words for name, (words, _) in FAMILIES.items()}, "all": "all of them"},
    )
    same_side: int = number(
        0,
        0,
        1024,
        step=16,
        unit="px",
        label="All at",
        about="The side of every model's image, to the nearest that its patch divides; 0 is each one's own",
    )
    across: Axis = choice("flops_forward", label="Across", about="The chart's horizontal axis", words=WORDS)
    up: Axis = choice("params", label="Up", about="The chart's vertical axis", words=WORDS)


class Entry(BaseModel):
    """FLOPs are per image, bytes are of the whole batch on one device."""

    model: str
    family: str
    image: Pair
    grid: Pair
    tokens: int
    params: int
    flops_forward: int
    flops_train: int
    macs_forward: int
    infer_peak_bytes: int
    train_peak_bytes: int
    accuracy: float | None
    """The best on ImageNet-1k that is recorded here."""
    best: Result | None
    published: list[Result]


class Answer(BaseModel):
    models: list[Entry]
    missing: list[str]
    """Models that have no such image, and why."""
    words: dict[str, str]
    """What the axes are called."""
    doubts: list[str]
    """What is said of published figures that were not read in their source."""
    folklore: str


@router.get("/models")
def models(asked: Annotated[Question, Query()]) -> Answer:
    """The family's models, planned at the same workload."""
    workload, found, missing = workload_of(asked), [], []
    for name in _chosen(asked.family):
        try:
            found.append(_entry(_planned(name, _image(name, asked.same_side), workload)))
        except VitrailError as error:
            missing.append(f"{name}: {error}")
    said = f"Often said: {MISQUOTE.about}, {MISQUOTE.said}. True: {MISQUOTE.true}; {MISQUOTE.why}."
    return Answer(models=found, missing=missing, words=WORDS, doubts=list(DOUBTS.values()), folklore=said)


@router.get("/models/batch")
def batches(asked: Annotated[Question, Query()]) -> dict[str, int]:
    """By model, the largest batch that the card likely takes in training or in inference."""
    workload, target, found = workload_of(asked), card_of(asked), {}
    for name in _chosen(asked.family):
        image = _image(name, asked.same_side)
        try:
            config = PRESETS[name] if image is None else PRESETS[name].but(image=image)
            found[name] = largest_batch(config, workload, target)
        except VitrailError:  # /models says why
            continue
    return found


_planned = lru_cache(maxsize=512)(compared)  # a slider comes back to the same models again and again


def _chosen(family: str) -> list[str]:
    return [name for name in PRESETS if family in ("all", _family(name))]


def _family(name: str) -> str:
    """By the name's beginning; what is of no other family is small."""
    return next((family for family, (_, starts) in FAMILIES.items() if name.startswith(starts)), "small")


def _image(name: str, side: int) -> Size | None:
    """The nearest image that the model takes; None for its own."""
    if side == 0:
        return None
    return Size(*(max(1, round(side / step)) * step for step in PRESETS[name].unit))


def _entry(found: Compared) -> Entry:
    top = best(found.model)
    return Entry(
        model=found.model,
        family=_family(found.model),
        image=tuple(found.image),
        grid=tuple(found.grid),
        tokens=found.tokens,
        params=found.params,
        flops_forward=found.flops_forward,
        flops_train=found.flops_train,
        macs_forward=found.macs_forward,
        infer_peak_bytes=found.infer_peak_bytes,
        train_peak_bytes=found.train_peak_bytes,
        accuracy=None if top is None else top.accuracy,
        best=top,
        published=list(found.published),
    )
