"""The command of every room: the lines of `vitrail` that compute what the room shows, with its current values."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Query

from vitrail.config import ViTConfig
from vitrail.parts import Prefix
from vitrail.server.controls import Asking, Group, Seen, Work
from vitrail.server.default_size import default_size
from vitrail.server.pictures import PHOTOGRAPHS
from vitrail.server.plans import PlanQuestion, described, shard_of, sizes
from vitrail.server.rooms import (
    ROOMS,
    attention,
    decide,
    dense,
    folder,
    match,
    memory,
    models,
    patch,
    positions,
    projection,
    tokens,
    transfer,
    walk,
)
from vitrail.server.rooms.patch.visual_tokens import photo_size
from vitrail.server.session import Session, SessionDep

__all__ = ["COMMANDS", "router"]

router = APIRouter()

UPLOADED, FOLDER = "YOUR-IMAGE", "FOLDER-OF-YOUR-IMAGES"
"""Stand for an uploaded image and a dropped folder, whose paths only the user knows."""


def _line(command: str, *values: str, **options: Any) -> str:
    """Return a shell line; True is a flag, and None, False and empty options are omitted."""
    words = ["vitrail", command, *values]
    for name, value in options.items():
        if value is None or value is False or value == "":
            continue
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return shlex.join(words)


def _patch(asked: patch.Question, session: Session) -> list[str]:
    config = described(asked, session)
    shape = {"image": config.fit(config.image).fitted, "patch": sizes(asked)[1]}
    laws = _line(
        "laws",
        **shape,
        width=config.width,
        mlp_width=config.mlp.width,
        channels=config.channels,
        prefix=_prefix(config.prefix),
    )
    reading = _line("plan", asked.reader, image=photo_size(asked, session))
    return [laws, _plan(asked, session, gpu=None), reading]


def _prefix(prefix: Prefix) -> str:
    words = ["cls"] * prefix.cls + ["distillation"] * prefix.distillation
    words += [f"registers={prefix.registers}"] if prefix.registers else []
    return ",".join(words) or "none"


def _memory(asked: memory.Question, session: Session) -> list[str]:
    return [_plan(asked, session, gpu=asked.card)]


def _plan(asked: patch.Question | PlanQuestion, session: Session, gpu: str | None) -> str:
    config = described(asked, session)
    train = asked.train
    return _line(
        "plan",
        asked.model,
        image=config.image,
        patch=sizes(asked)[1],
        remainder=None if config.remainder == "error" else config.remainder,
        train=train,
        **_work(asked),
        checkpointing=train and asked.checkpointing,
        accumulate=asked.accumulate if train else None,
        shard=shard_of(asked),
        offload=train and asked.offload,
        gpu=gpu,
    )


def _work(asked: Work) -> dict[str, Any]:
    optimizer = asked.optimizer if asked.train else None
    return {
        "batch": asked.batch,
        "precision": asked.precision,
        "optimizer": optimizer,
        "attention": asked.attention,
    }


def _models(asked: models.Question, _: Session) -> list[str]:
    work = {**_work(asked), "optimizer": asked.optimizer}
    return [_line("compare", *models.members(asked.family), image=asked.same_side or None, **work, gpu=asked.card)]


def _decide(asked: decide.Question, _: Session) -> list[str]:
    return [
        _line(
            "advise",
            application=asked.application,
            image=asked.input_side or None,
            object=asked.object_side or None,
            gpu=asked.card,
            data_size=asked.data_size,
            images_per_second=asked.images_per_second or None,
            images=FOLDER if asked.measure or asked.folder else None,
        )
    ]


def _transfer(asked: transfer.Question, session: Session) -> list[str]:
    known = asked.transfer_table == "known"
    return [
        _line(
            "simulate",
            weights=None if known else session.source(asked.weights),
            from_grid=f"{asked.old_rows}x{asked.old_columns}" if known else None,
            to_grid=f"{asked.new_rows}x{asked.new_columns}",
            bands=asked.bands,
        )
    ]


def _look(asked: Seen, session: Session, what: str, **options: Any) -> str:
    size = session.seen_size(asked.weights, default_size(asked, session))
    return _line(
        "look",
        *_photo(asked.image),
        what=what,
        weights=session.source(asked.weights),
        image=size,
        **options,
        out=f"{what}.png",
    )


def _photo(image: str) -> list[str]:
    """Return the path of the image; `vitrail look` draws the window itself."""
    if image == "window":
        return []
    path = files("vitrail.server.pictures") / f"{image}.jpg"
    return [str(path)] if image in PHOTOGRAPHS and path.is_file() else [UPLOADED]  # an exported page has no files


def _projection(asked: projection.Question, session: Session) -> list[str]:
    study = _line("experiment", "vocabulary", data=FOLDER, weights=session.source(asked.weights))
    return [_look(asked, session, "filters"), *([study] if asked.folder else [])]


def _tokens(asked: tokens.Question, session: Session) -> list[str]:
    return [_look(asked, session, "patches"), _look(asked, session, "adaptive", threshold=asked.threshold)]


def _positions(asked: positions.Question, session: Session) -> list[str]:
    return [_line("look", what="positions", weights=session.source(asked.weights), out="positions.png")]


def _attention(asked: attention.Question, session: Session) -> list[str]:
    return [_look(asked, session, "attention", query=_query(asked, session))]


def _walk(asked: walk.Question, session: Session) -> list[str]:
    query = _query(asked, session)
    return [_look(asked, session, "attention", layer=asked.block, head=asked.head, query=query)]


def _match(asked: match.Question, session: Session) -> list[str]:
    images = (_photo(image) or [UPLOADED] for image in (asked.image, asked.second))
    return [
        _line(
            "match",
            *(path for image in images for path in image),
            weights=session.source(asked.weights),
            image=session.seen_size(asked.weights, default_size(asked, session)),
            whole=asked.match_shape == "whole",
            layer=None if asked.layer < 0 else asked.layer,
            lines=asked.lines,
            out="match.png",
        )
    ]


def _dense(asked: dense.Question, session: Session) -> list[str]:
    images = (_photo(image) or [UPLOADED] for image in dense.images_of(asked))
    fine = dense.fine(asked, asked.image, session)
    point = fine.pixel(asked.point_down, asked.point_across, session.image_size(asked.image))
    return [
        _line(
            "dense",
            *(path for image in images for path in image),
            weights=session.source(asked.weights),
            image=session.seen_size(asked.weights, default_size(asked, session)),
            stride=fine.step.height,
            upsample=asked.upsample,
            foreground=asked.foreground,
            point=",".join(f"{place:.1f}" for place in point),
            out="dense.png",
        )
    ]


def _folder(asked: folder.Question, session: Session) -> list[str]:
    maps = session.maps
    return [
        _line(
            "atlas",
            maps.path or FOLDER,
            weights=None if maps.has_own_vectors else session.source(asked.weights),
            reduction=asked.map_method,
            threshold=asked.alike,
            out="map.png",
        )
    ]


def _query(asked: Asking, session: Session) -> str | None:
    """Return the patch of the token as ROWxCOLUMN; None for a prefix token and for the room's default."""
    config = session.config(asked.weights)
    if not isinstance(config, ViTConfig) or asked.token < config.prefix.count:
        return None
    columns = config.but(image=session.seen_size(asked.weights, default_size(asked, session))).grid.width
    row, column = divmod(asked.token - config.prefix.count, columns)
    return f"{row}x{column}"


COMMANDS: dict[str, Callable[[Any, Session], list[str]]] = {
    "patch": _patch,
    "projection": _projection,
    "tokens": _tokens,
    "positions": _positions,
    "transfer": _transfer,
    "memory": _memory,
    "models": _models,
    "attention": _attention,
    "decide": _decide,
    "walk": _walk,
    "match": _match,
    "dense": _dense,
    "folder": _folder,
}


def _endpoint(question: type[Group], write: Callable[[Any, Session], list[str]]) -> Callable[..., list[str]]:
    def command(asked: Any, session: Session) -> list[str]:
        return write(asked, session)

    command.__annotations__ = {"asked": Annotated[question, Query()], "session": SessionDep, "return": list[str]}
    return command


for _name, _write in COMMANDS.items():
    router.add_api_route(
        f"/{_name}/command",
        _endpoint(ROOMS[_name].Question, _write),
        operation_id=f"{_name}_command",
        description="Return the lines of `vitrail` that compute what the room shows.",
    )
