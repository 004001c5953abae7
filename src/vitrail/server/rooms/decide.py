"""Room 9, decide: rank models for an application, images and a budget, with reasons."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from vitrail.geometry import Size
from vitrail.images.survey import Survey
from vitrail.plan.advise import Advice, Decision, advise
from vitrail.plan.cards import Card
from vitrail.plan.guidance import Question as Asking
from vitrail.plan.rank import measured, preset_of, rank
from vitrail.server.controls import BINARY, CardChoice, Foldered, Pictured, choice, number
from vitrail.server.folders import MOST_IMAGES
from vitrail.server.formulas import Formula, short
from vitrail.server.plan_formulas import batch_formula, tokens_formula
from vitrail.server.plans import Pair, card_of
from vitrail.server.session import Session, SessionDep, png

__all__ = ["Question", "router"]

router = APIRouter()


class Question(CardChoice, Pictured, Foldered):
    application: Literal["classification", "medical", "satellite", "face", "detection", "mobile"] = choice(
        "classification", label="Application", about="The kind of task"
    )
    input_side: int = number(
        0, 0, 2048, step=32, unit="px", zero="advised", label="Model input", about="Side of a square input"
    )
    object_side: int = number(
        0, 0, 512, unit="px", step=4, zero="unknown", label="Objects", about="Side of a typical object, as stored"
    )
    data_size: int = number(
        50_000, 100, 100_000_000, scale="log", label="Training images", about="Number of labelled images"
    )
    images_per_second: int = number(
        0, 0, 1000, step=5, zero="any", label="Images per second", about="Required inference rate at batch 1"
    )
    measure: bool = choice(
        False, label="Measure my image", about="Measure size, aspect ratio and detail of the current image"
    )


class Dropped(BaseModel):
    folder: str
    """The id of the folder."""
    images: int
    """Images that it has so far."""
    most: int
    """Images that it takes."""


@router.post("/folders")
def begin_folder(session: SessionDep) -> Dropped:
    """Begin a folder, whose images are sent one by one."""
    return Dropped(folder=session.folders.begin(), images=0, most=MOST_IMAGES)


@router.post("/folders/{folder}", openapi_extra=BINARY)
async def add_to_folder(folder: str, request: Request, session: SessionDep) -> Dropped:
    """Store an image of a folder, sent as the raw body."""
    count = await run_in_threadpool(session.folders.add, folder, await request.body())
    return Dropped(folder=folder, images=count, most=MOST_IMAGES)


Asked = Annotated[Question, Query()]


class Ranked(BaseModel):
    """A model with a patch size; the score is the product of the factors."""

    model: str
    preset: str
    """The preset of the same model size, whose image and patch sizes can be changed."""
    patch: Pair
    image: Pair
    tokens: int
    flops_forward: int
    factors: dict[str, float]
    score: float


@router.get("/decide/ranking")
def ranking(asked: Asked, session: SessionDep) -> list[Ranked]:
    """Return every model and patch size that can be built and trained on the card, best first."""
    candidates = session.once(("ranking", asked), lambda: rank(_question(asked, session)))
    return [Ranked(**{**vars(each), "model": each.name, "preset": preset_of(each.model)}) for each in candidates]


class Misfit(BaseModel):
    """A case where a ViT is the wrong tool, or the wrong way to use one."""

    name: str
    why: str
    instead: str


class Reason(BaseModel):
    """A reason for a ViT."""

    name: str
    why: str


class Answer(BaseModel):
    model: str
    tokens: int
    precision: str
    batch: int | None
    accumulate: int | None
    max_batch: int | None
    decisions: list[Decision]
    misfits: list[Misfit]
    reasons: list[Reason]
    alternatives: list[str]
    would_change: list[str]
    survey: Survey | None
    formulas: list[Formula]


@router.get("/decide")
def decide(asked: Asked, session: SessionDep) -> Answer:
    """Return the output of `vitrail advise --json`, without the ranking and the config."""

    def compute() -> Answer:
        advice = advise(_question(asked, session))
        return Answer(**advice.to_json(), formulas=_formulas(advice, card_of(asked)))

    return session.once(("decide", asked), compute)


def _formulas(advice: Advice, card: Card) -> list[Formula]:
    formulas = [tokens_formula(advice.config)]
    if advice.max_batch is None or advice.batch is None:
        return formulas
    start, most = short(advice.batch), short(advice.max_batch)
    return [
        *formulas,
        batch_formula(advice.config, advice.workload, card, advice.max_batch),
        Formula(
            name="start with batch",
            symbols="the largest power of two up to min(largest batch, 256)",
            numbers=f"up to min({most}, 256): 2^{advice.batch.bit_length() - 1} = {start}",
        ),
    ]


def _question(asked: Question, session: Session) -> Asking:
    question = Asking(
        application=asked.application,
        image=Size.of(asked.input_side) if asked.input_side else None,
        object_pixels=asked.object_side or None,
        card=card_of(asked),
        data_size=asked.data_size,
        images_per_second=asked.images_per_second or None,
    )
    if asked.folder:
        return measured(question, lambda image: _folder_survey(asked.folder, image, session))
    if not asked.measure:
        return question
    data = png(session.image(asked.image), 2**15)
    return measured(question, lambda image: _survey(data, image))


def _folder_survey(folder: str, image: Size, session: Session) -> Survey:
    """Measure a folder once per input size; files that cannot be read are named by their number."""
    from vitrail.images.measure import survey

    def compute() -> Survey:
        found = survey(session.folders.images(folder), image=image)
        return replace(found, failed=tuple((str(int(Path(path).name)), reason) for path, reason in found.failed))

    return session.kept(("survey", folder, image), compute)


@lru_cache(maxsize=8)  # the other sliders repeat the same measurement
def _survey(data: bytes, image: Size) -> Survey:
    from vitrail.images.measure import survey

    return survey([data], image=image)
