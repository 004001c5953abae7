"""Room 9, decide: from the work, the images and the budget to ranked answers, with reasons."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.geometry import Size
from vitrail.images.measure import survey
from vitrail.images.survey import Survey
from vitrail.plan.advise import Decision, advise
from vitrail.plan.guidance import Question as Asking
from vitrail.plan.rank import Candidate, measured, preset_of, rank
from vitrail.studio.controls import CardChoice, Pictured, choice, number
from vitrail.studio.plans import card_of
from vitrail.studio.session import Here, Session, png

__all__ = ["Question", "router"]

router = APIRouter()


class Question(CardChoice, Pictured):
    application: Literal["classification", "medical", "satellite", "face", "detection", "mobile"] = choice(
        "classification", label="Application", about="Where the advice starts from"
    )
    input_side: int = number(
        0, 0, 2048, step=32, unit="px", label="Model input", about="Side of a square input; 0 lets the advice choose"
    )
    object_side: int = number(
        0, 0, 512, unit="px", step=4, label="Objects", about="A typical object's side as stored; 0 is unknown"
    )
    data_size: int = number(
        50_000, 100, 100_000_000, scale="log", label="Training images", about="Labelled images that you have"
    )
    images_per_second: int = number(
        0, 0, 1000, step=5, label="Images a second", about="What inference must reach, one at a time; 0 is no matter"
    )
    measure: bool = choice(
        False, label="Measure my image", about="Take sizes, shape and detail from the image at the left"
    )


Asked = Annotated[Question, Query()]


class Ranked(BaseModel):
    """A model with a patch size; the score is the product of the factors."""

    model: str
    preset: str
    """The preset of its size, to plan on with another image and patch."""
    patch: int
    height: int
    width: int
    tokens: int
    flops_forward: int
    factors: dict[str, float]
    score: float


@router.get("/decide/ranking")
def ranking(asked: Asked, here: Here) -> list[Ranked]:
    """Every model and patch size that can be built and trained on the card, best first."""
    return [_ranked(candidate) for candidate in here.once(("ranking", asked), lambda: rank(_question(asked, here)))]


def _ranked(candidate: Candidate) -> Ranked:
    return Ranked(
        model=candidate.name,
        preset=preset_of(candidate.model),
        patch=candidate.patch.height,
        height=candidate.image.height,
        width=candidate.image.width,
        tokens=candidate.tokens,
        flops_forward=candidate.flops_forward,
        factors=candidate.factors,
        score=candidate.score,
    )


class Misfit(BaseModel):
    """A case where a ViT is the wrong tool, or the wrong way to use one."""

    name: str
    why: str
    instead: str


class Answer(BaseModel):
    model: str
    tokens: int
    precision: str
    batch: int | None
    accumulate: int | None
    max_batch: int | None
    decisions: list[Decision]
    misfits: list[Misfit]
    would_change: list[str]
    survey: Survey | None


@router.get("/decide")
def decide(asked: Asked, here: Here) -> Answer:
    """What `vitrail advise --json` says, beside the ranking and the config."""
    return here.once(("decide", asked), lambda: Answer(**advise(_question(asked, here)).to_json()))


def _question(asked: Question, here: Session) -> Asking:
    question = Asking(
        application=asked.application,
        image=Size.of(asked.input_side) if asked.input_side else None,
        object_pixels=asked.object_side or None,
        card=card_of(asked),
        data_size=asked.data_size,
        images_per_second=asked.images_per_second or None,
    )
    if not asked.measure:
        return question
    data = png(here.image(asked.image), 2**15)
    return measured(question, lambda image: _survey(data, image))


@lru_cache(maxsize=8)  # every other slider asks about the same image again
def _survey(data: bytes, image: Size) -> Survey:
    return survey([data], image=image)
