"""How vision-language models read the image: resized, cut into crops and patches, and merged into tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.reading import Reading, View
from vitrail.plan.vision_language import VISION_LANGUAGE, VisionLanguage, vision_language
from vitrail.server.controls import Name, Pictured, choice, number
from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Box, Pair
from vitrail.server.session import Session, SessionDep

__all__ = ["Reader", "photo_size", "router"]

router = APIRouter()


class Reader(Pictured):
    """A vision-language model, and the size of the photograph that it reads."""

    reader: Name = choice(
        "qwen2.5-vl",
        label="Vision-language model",
        about="Its processor decides how an image is resized and cut; settings as published",
        source="readers",
    )
    photo_side: int = number(
        0,
        0,
        8192,
        step=32,
        unit="px",
        zero="its own",
        label="Longer side of the photograph",
        about="Read your image as if it had been taken at this size; 0: the size that it has",
    )


class Seen(BaseModel):
    """The image at one size, as the tower receives it, and the tokens that it becomes."""

    name: str
    size: Pair
    content: Box
    """What the image fills; the rest is padding."""
    crop: Pair
    crops: Pair
    patch: int
    merge: int
    grid: Pair
    kept: Box
    """What the tokens that are kept stand for."""
    rows: int
    columns: int
    """Tokens that are kept; without the tokens that end rows."""
    row_ends: bool
    tokens: int


class Read(BaseModel):
    """What one model makes of the image."""

    reader: str
    title: str
    sizes: list[Pair] = []
    crops: int = 0
    patches: int = 0
    tokens: int = 0
    flops: int = 0
    """FLOPs of the tower and its merger, for all crops."""
    refused: str = ""


class VisualTokens(Read):
    image: Pair
    """The size of the photograph."""
    pixels_per_token: float
    framing: int
    steps: list[str]
    views: list[Seen]
    everyone: list[Read]
    """Every model, on the same photograph."""
    formulas: list[Formula]


@router.get("/patch/tokens")
def visual_tokens(asked: Annotated[Reader, Query()], session: SessionDep) -> VisualTokens:
    """Return how a vision-language model reads the image, and what the others would make of it."""
    image = photo_size(asked, session)
    model = vision_language(asked.reader)
    if model is None:
        raise VitrailError(f"reader {asked.reader!r} is no vision-language model; choose {', '.join(VISION_LANGUAGE)}")
    reading = model.reader.read(image)
    chosen = _read(asked.reader, model, reading)
    return VisualTokens(
        **chosen.model_dump(),
        image=image,
        pixels_per_token=image.area / reading.tokens,
        framing=reading.framing,
        steps=list(reading.steps),
        views=[_seen(view) for view in reading.views],
        everyone=[_everyone(name, image) for name in VISION_LANGUAGE],
        formulas=_formulas(reading),
    )


def photo_size(asked: Reader, session: Session) -> Size:
    """Return the size of the photograph: its own, or in its shape with the longer side that is asked."""
    own = session.image_size(asked.image)
    if not asked.photo_side:
        return own
    return Size(*(max(1, round(side * asked.photo_side / max(own))) for side in own))


def _read(name: str, model: VisionLanguage, reading: Reading) -> Read:
    return Read(
        reader=name,
        title=model.title,
        sizes=[view.size for view in reading.views],
        crops=reading.crops,
        patches=reading.patches,
        tokens=reading.tokens,
        flops=model.flops(reading),
    )


def _everyone(name: str, image: Size) -> Read:
    model = VISION_LANGUAGE[name]
    try:
        return _read(name, model, model.reader.read(image))
    except VitrailError as error:
        return Read(reader=name, title=model.title, refused=str(error))


def _seen(view: View) -> Seen:
    rows, columns = view.kept
    cell = view.patch * view.merge
    dropped = (view.dropped_rows * cell, view.dropped_columns * cell)
    padding = ((whole - filled) // 2 for whole, filled in zip(view.size, view.content, strict=True))
    return Seen(
        name=view.name,
        size=view.size,
        content=(*padding, *view.content),
        crop=view.crop,
        crops=view.crops,
        patch=view.patch,
        merge=view.merge,
        grid=view.grid,
        kept=(*dropped, rows * cell, columns * cell),
        rows=rows,
        columns=columns,
        row_ends=view.row_ends,
        tokens=view.tokens,
    )


def _formulas(reading: Reading) -> list[Formula]:
    patches = " + ".join(f"{view.grid.height} · {view.grid.width}" for view in reading.views)
    tokens = " + ".join(
        f"{view.kept[0]} · ({view.kept[1]} + 1)" if view.row_ends else f"{view.kept[0]} · {view.kept[1]}"
        for view in reading.views
        if not view.joins
    )
    framing = f" + {reading.framing}" if reading.framing else ""
    return [
        Formula(
            name="patches",
            symbols="rows · columns, summed over the sizes of the image",
            numbers=f"{patches} = {short(reading.patches)}",
        ),
        Formula(
            name="visual tokens",
            symbols="rows · columns of merged patches, summed over the sizes of the image",
            numbers=f"{tokens}{framing} = {short(reading.tokens)}",
        ),
    ]
