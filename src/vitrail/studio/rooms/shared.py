"""What all rooms share: the controls, the images, and the config as a file."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from vitrail.geometry import Size
from vitrail.presets import PRESETS
from vitrail.studio.controls import CARD_WORDS, Control, Group, Seen, controls_of
from vitrail.studio.guard import MAX_BODY
from vitrail.studio.pictures import ABOUT, PICTURES
from vitrail.studio.plans import Shape, described
from vitrail.studio.session import DEFAULT, Here, Session, png

__all__ = ["router"]

router = APIRouter()


class Option(BaseModel):
    """Something to choose that only the session knows; a model brings its own image and patch."""

    value: str
    words: str
    about: str = ""
    height: int | None = None
    width: int | None = None
    patch_height: int | None = None
    patch_width: int | None = None


class Controls(BaseModel):
    controls: dict[str, Control]
    rooms: dict[str, list[str]]
    """By room, the names of the controls that its question takes."""
    config: list[str]
    """The names that /api/config takes."""
    options: dict[str, list[Option]]
    """models, weights, images and cards."""
    max_bytes: int
    """The largest image that may be uploaded."""


@router.get("/controls")
def controls(here: Here) -> Controls:
    """Every control with its range, unit and help, and which room takes which."""
    from vitrail.studio.rooms import ROOMS

    found = {name: controls_of(room.Question) for name, room in ROOMS.items()}
    return Controls(
        controls={name: control for group in (controls_of(Seen), *found.values()) for name, control in group.items()},
        rooms={name: list(room) for name, room in found.items()},
        config=list(Shape.model_fields),
        options={
            "models": [_model(name, here) for name in here.plannable],
            "weights": [Option(value=name, words=_weights(name)) for name in here.weights],
            "images": [Option(value=name, words=name, about=ABOUT[name]) for name in PICTURES],
            "cards": [Option(value=value, words=words) for value, words in CARD_WORDS],
        },
        max_bytes=MAX_BODY,
    )


def _model(name: str, here: Session) -> Option:
    config = PRESETS[name]
    return Option(
        value=name,
        words=name,
        height=config.image.height,
        width=config.image.width,
        patch_height=config.patch.height,
        patch_width=config.patch.width,
    )


def _weights(name: str) -> str:
    return "bundled: CIFAR-10" if name == DEFAULT else name


class Drawn(Group):
    """An image's size, as it is drawn: a control's range, and what padding adds."""

    height: int = Field(ge=1, le=8192)
    width: int = Field(ge=1, le=8192)


class Picture(BaseModel):
    image: str
    """The id to ask for it by."""
    height: int
    width: int


@router.post(
    "/images",
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def upload(request: Request, here: Here) -> Picture:
    """Keep an image, sent as the raw body, and give it an id."""
    from starlette.concurrency import run_in_threadpool

    name = await run_in_threadpool(here.add_image, await request.body())
    return _picture(name, here)


def _picture(name: str, here: Session) -> Picture:
    height, width, _ = here.image(name).shape
    return Picture(image=name, height=height, width=width)


@router.get("/images/{image}")
def about_image(image: str, here: Here) -> Picture:
    """The size of an image that is kept."""
    return _picture(image, here)


class Middle(BaseModel):
    """A box in an image, as shares of its sides."""

    top: float
    left: float
    height: float
    width: float


@router.get("/images/{image}/middle")
def middle(image: str, asked: Annotated[Drawn, Query()], here: Here) -> Middle:
    """The part of the image that a model gets: the middle, as large as it goes, in the shape of its input."""
    from vitrail.checkpoint.preprocessing import Preprocessing

    original = Size(*here.image(image).shape[:2])
    top, left, height, width = Preprocessing(image=Size(asked.height, asked.width)).part_of(original)
    rows, columns = original
    return Middle(top=top / rows, left=left / columns, height=height / rows, width=width / columns)


@router.get(
    "/images/{image}/pixels",
    response_class=Response,
    responses={200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}},
)
def pixels(image: str, here: Here, side: Annotated[int, Query(ge=16, le=2048)] = 1024) -> Response:
    """The image as a PNG, at most `side` pixels long."""
    held = "no-store" if image in (DEFAULT, *PICTURES) else "private, max-age=3600"
    return Response(png(here.image(image), side), media_type="image/png", headers={"Cache-Control": held})


@router.get("/config")
def config(asked: Annotated[Shape, Query()], here: Here) -> dict[str, Any]:
    """The config as `vitrail plan --config` and `vitrail train` read it."""
    from vitrail.codec import to_plain

    return to_plain(described(asked, here))
