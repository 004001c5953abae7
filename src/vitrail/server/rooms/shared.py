"""Endpoints that all rooms share: the controls, the images, and the config as a file."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from vitrail.checkpoint.sources.catalogue import CATALOGUE
from vitrail.errors import require
from vitrail.geometry import Size, in_shape_of
from vitrail.plan.vision_language import VISION_LANGUAGE
from vitrail.presets import PRESETS
from vitrail.server.controls import BINARY, CARD_WORDS, Control, Group, Seen, controls_of
from vitrail.server.default_size import default_size
from vitrail.server.estimate import Estimate, estimate_of
from vitrail.server.guard import MAX_BODY
from vitrail.server.limits import Limit, limits_of, token_limits
from vitrail.server.pictures import ABOUT, PICTURES
from vitrail.server.plans import Pair, Shape, described
from vitrail.server.session import DEFAULT, Session, SessionDep, png
from vitrail.server.uploads import MAX_WEIGHTS

__all__ = ["describe_controls", "router"]

router = APIRouter()


class Option(BaseModel):
    """An option from one of the session's lists; a model also has its own image and patch sizes, weights the ranges."""

    value: str
    words: str
    about: str = ""
    height: int | None = None
    width: int | None = None
    patch_height: int | None = None
    patch_width: int | None = None
    limits: dict[str, Limit] = {}
    """The ranges of the controls that depend on these weights."""


class Controls(BaseModel):
    controls: dict[str, Control]
    rooms: dict[str, list[str]]
    """The names of each room's parameters."""
    config: list[str]
    """The names of the parameters of /api/config."""
    options: dict[str, list[Option]]
    """The lists models, weights, images, readers and cards."""
    max_bytes: int
    """The largest image that may be uploaded."""
    max_weights: int
    """The largest file of weights that may be uploaded."""


@router.get("/controls", response_model=Controls)
def controls(session: SessionDep) -> Response:
    """Return every control with its range, unit and help, and the names of each room's controls."""
    key = ("controls", *session.weights)
    data = session.kept(key, lambda: describe_controls(session).model_dump_json().encode())
    return Response(data, media_type="application/json")


def describe_controls(session: Session) -> Controls:
    from vitrail.server.rooms import ROOMS

    by_room = {name: controls_of(room.Question) for name, room in ROOMS.items()}
    return Controls(
        controls={name: control for group in (controls_of(Seen), *by_room.values()) for name, control in group.items()},
        rooms={name: list(room) for name, room in by_room.items()},
        config=list(Shape.model_fields),
        options={
            "models": [_model(name) for name in session.plannable],
            "weights": [_weights(name, session) for name in session.weights],
            "images": [Option(value=name, words=name, about=ABOUT[name]) for name in PICTURES],
            "readers": [Option(value=name, words=known.title) for name, known in VISION_LANGUAGE.items()],
            "cards": [Option(value=value, words=words) for value, words in CARD_WORDS],
        },
        max_bytes=MAX_BODY,
        max_weights=MAX_WEIGHTS,
    )


def _weights(name: str, session: Session) -> Option:
    words = "bundled: CIFAR-10" if name == DEFAULT else f"fetched: {name}" if name in CATALOGUE else name
    return Option(value=name, words=words, limits=limits_of(name, session))


def _model(name: str) -> Option:
    config = PRESETS[name]
    return Option(
        value=name,
        words=name,
        height=config.image.height,
        width=config.image.width,
        patch_height=config.patch.height,
        patch_width=config.patch.width,
    )


class Drawn(Group):
    """The size of a model's input, padding included, and of its patches."""

    height: int = Field(ge=1, le=8192)
    width: int = Field(ge=1, le=8192)
    patch_height: int = Field(1, ge=1, le=8192)
    patch_width: int = Field(1, ge=1, le=8192)


class Picture(BaseModel):
    image: str
    """The id of the image."""
    height: int
    width: int


@router.post("/images", openapi_extra=BINARY)
async def upload(request: Request, session: SessionDep) -> Picture:
    """Store an image, sent as the raw body, and return its id and size."""
    name = await run_in_threadpool(session.add_image, await request.body())
    return _picture(name, session)


def _picture(name: str, session: Session) -> Picture:
    height, width = session.image_size(name)
    return Picture(image=name, height=height, width=width)


@router.get("/images/{image}")
def about_image(image: str, session: SessionDep) -> Picture:
    """Return the size of an image."""
    return _picture(image, session)


class Middle(BaseModel):
    """A box in an image, as fractions of its height and width."""

    top: float
    left: float
    height: float
    width: float
    original: Pair
    """The size of the whole image."""
    unsquared: Pair
    """An input in the shape of the whole image, of about the same area, in whole patches."""


@router.get("/images/{image}/stored")
def is_stored(image: str, session: SessionDep) -> bool:
    """Return whether the studio has an image; uploaded ones are forgotten when it ends."""
    return session.has_image(image)


@router.get("/images/{image}/middle")
def middle(image: str, asked: Annotated[Drawn, Query()], session: SessionDep) -> Middle:
    """Return the centre crop that a model gets: the largest box with the aspect ratio of its input."""
    from vitrail.checkpoint.preprocessing import Preprocessing

    original = session.image_size(image)
    top, left, height, width = Preprocessing(image=Size(asked.height, asked.width)).part_of(original)
    rows, columns = original
    patch = Size(asked.patch_height, asked.patch_width)
    return Middle(
        top=top / rows,
        left=left / columns,
        height=height / rows,
        width=width / columns,
        original=original,
        unsquared=in_shape_of(original, asked.height * asked.width, patch),
    )


@router.get(
    "/images/{image}/pixels",
    response_class=Response,
    responses={200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}},
)
def pixels(image: str, session: SessionDep, side: Annotated[int, Query(ge=16, le=2048)] = 1024) -> Response:
    """Return the image as a PNG whose longer side is at most `side` pixels."""
    cache = "no-store" if image in (DEFAULT, *PICTURES) else "private, max-age=3600"
    return Response(png(session.image(image), side), media_type="image/png", headers={"Cache-Control": cache})


@router.get("/limits")
def limits(asked: Annotated[Seen, Query()], session: SessionDep) -> dict[str, Limit]:
    """Return the ranges that depend on the input size as well as on the model: those of tokens."""
    return token_limits(asked, session)


@router.get("/estimate")
def estimate(asked: Annotated[Seen, Query()], session: SessionDep) -> Estimate:
    """Return how long a forward pass of the model is expected to take."""
    return estimate_of(asked, session)


@router.post("/weights", openapi_extra=BINARY)
async def add_weights(
    request: Request,
    session: SessionDep,
    name: Annotated[str, Query(pattern=r"^[\w.+() -]{1,80}\.safetensors$")],
) -> Option:
    """Add a model to the list: a safetensors file, sent as the raw body."""
    length = request.headers.get("content-length", "0")
    require(
        length.isdecimal() and int(length) <= MAX_WEIGHTS,
        f"{name} is above {MAX_WEIGHTS // 2**20:,} MiB; start the studio with --weights FILE instead",
    )
    path = await session.uploads.receive(request.stream())
    return _weights(await run_in_threadpool(session.add_weights, path, name), session)


@router.get("/config/loaded")
def loaded_config(asked: Annotated[Seen, Query()], session: SessionDep) -> dict[str, Any]:
    """Return the config of the loaded model at the input size, in the same format."""
    from vitrail.codec import to_plain

    image = session.seen_size(asked.weights, default_size(asked, session))
    return to_plain(session.config(asked.weights).but(image=image))


@router.get("/config")
def config(asked: Annotated[Shape, Query()], session: SessionDep) -> dict[str, Any]:
    """Return the config in the format that `vitrail plan` and `vitrail train --model` read."""
    from vitrail.codec import to_plain

    return to_plain(described(asked, session))
