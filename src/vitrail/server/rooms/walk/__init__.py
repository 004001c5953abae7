"""Room 10, walk through: one image from pixels to logits, with the numbers of one token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from vitrail.errors import require
from vitrail.geometry import position_id
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Asking, number
from vitrail.server.default_size import default_size
from vitrail.server.guess import predict
from vitrail.server.rooms.walk.walk_facts import Facts, block_of, pixels_of, prediction_of, rounded, shapes_of
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitrail.look.subject import Subject
    from vitrail.look.walk import Walk

__all__ = ["Question", "router"]

router = APIRouter()


class Question(Asking):
    """The token to follow, and the block, head, unit and key to show."""

    block: int = number(0, 0, 63, label="Block", about="The block that is shown in detail; index from 0")
    head: int = number(0, 0, 63, label="Head", about="Index from 0")
    unit: int = number(0, 0, 4095, label="Unit", about="The component of the token that is computed step by step")
    key: int = number(
        -1, -1, 4095, label="Key", about="Index of the token whose key is shown; −1: the one with the most attention"
    )


@router.get("/walk", response_class=Frame, response_model=Header[Facts])
def walk(asked: Annotated[Question, Query()], session: SessionDep) -> Frame:
    """Return facts and formulas of one token at every step, and all tokens as bytes around 127.5."""
    side = default_size(asked, session)
    subject, recording = session.recording(asked.image, asked.weights, side)

    def compute() -> Walk:
        from vitrail.look.walk import walk_through  # on the worker's thread, like all of vitrail.look

        depth = getattr(subject.model.config, "depth", 0)
        require(
            asked.block < depth or not depth,
            f"block {asked.block} is not among the model's {depth} blocks; use 0 to {depth - 1}",
        )
        return walk_through(subject.model, subject.image, block=asked.block, recording=recording)

    size = session.seen_size(asked.weights, side)
    walked = session.once(("walk", asked.image, asked.weights, size, asked.block), compute)
    return _frame(asked, subject, walked, session)


def _frame(asked: Question, subject: Subject, walked: Walk, session: Session) -> Frame:
    from vitrail.look.views.words import prefix_names
    from vitrail.server.rooms.walk.walk_formulas import Followed, formulas_of

    layout, grid = walked.layout, walked.layout.grid
    middle = position_id(grid.height // 2, grid.width // 2, grid, 0)
    token = layout.prefix + middle if asked.token < 0 else asked.token
    total, width = walked.tokens[0].shape
    heads = walked.block.q.shape[0]
    for name, value, count in (("token", token, total), ("key", asked.key, total), ("head", asked.head, heads)):
        require(value < count, f"{name} {value} is not among the {count} {name}s; use 0 to {count - 1}")
    require(asked.unit < width, f"unit {asked.unit} is not among the token's {width} units; use 0 to {width - 1}")
    cell = token - layout.prefix if token >= layout.prefix else middle
    row, column = divmod(cell, grid.width)
    stride = subject.model.config.embedding.stride or subject.model.config.patch  # type: ignore[union-attr]
    corner = (row * stride.height, column * stride.width)
    step = walked.block.step(token, asked.head, None if asked.key < 0 else asked.key)
    key = int(step.weights.argmax()) if asked.key < 0 else asked.key
    names = prefix_names(subject)
    at = Followed(token=token, cell=cell, key=key, head=asked.head, unit=asked.unit, corner=corner)
    checkpoint = session.checkpoint(asked.weights)
    pixel = int(subject.pixels[*corner, 0])
    formulas = formulas_of(walked, step, at, pixel, checkpoint.preprocessing)
    facts = Facts(
        shapes=shapes_of(walked),
        grid=grid,
        prefix=names,
        token=token,
        cell=cell,
        place=(row, column),
        key=key,
        block_index=asked.block,
        head=asked.head,
        unit=asked.unit,
        query_name=_name(token, names, grid.width),
        key_name=_name(key, names, grid.width),
        **pixels_of(subject, walked, at),
        block=block_of(walked, token, step),
        depth=[rounded(stop[token]) for stop in walked.tokens],
        lengths=[round(stop[token].norm().item(), 4) for stop in walked.tokens],
        pooled=rounded(walked.pooled),
        prediction=prediction_of(walked, checkpoint),
        verdict=predict(asked, session),
        formulas=formulas,
    )
    arrays = {
        "pixels": subject.pixels,
        "projected": _signed(walked.projected),
        "entering": _signed(walked.tokens[0]),
        "leaving": _signed(walked.tokens[-1]),
    }
    return frame(facts, arrays)


def _name(token: int, names: list[str], columns: int) -> str:
    if token < len(names):
        return names[token]
    row, column = divmod(token - len(names), columns)
    return f"patch ({row}, {column})"


def _signed(values: Tensor) -> np.ndarray:
    """Scale to uint8 with 0 in the middle; the largest 0.5 % are clipped, so that the rest is visible."""
    import numpy as np

    array = values.float().numpy()
    limit = float(np.quantile(np.abs(array), 0.995)) or 1.0
    return np.round(np.clip(array / limit, -1, 1) * 127.5 + 127.5).astype(np.uint8)
