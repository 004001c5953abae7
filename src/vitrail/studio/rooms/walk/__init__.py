"""Room 10, walk through: one image from pixels to logits, with the numbers of one token in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from fastapi import APIRouter, Query

from vitrail.errors import require
from vitrail.geometry import position_id
from vitrail.studio.arrays import Frame, Header, frame
from vitrail.studio.controls import Asking, number
from vitrail.studio.rooms.walk.walk_facts import Facts, block_of, pixels_of, rounded, shapes_of, verdict_of
from vitrail.studio.session import Here, Session

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject
    from vitrail.look.walk import Walk

__all__ = ["Question", "router"]

router = APIRouter()


class Question(Asking):
    """Which token to follow, and into which block, head and unit."""

    block: int = number(0, 0, 63, label="Block", about="The one that is opened; 0 is the first")
    head: int = number(0, 0, 63, label="Head", about="0 is the first")
    unit: int = number(0, 0, 4095, label="Unit", about="Which of the projection's outputs is computed in the open")
    key: int = number(
        -1, -1, 4095, label="Key", about="The token whose key is met, by its place; −1 is the one attended to most"
    )


@router.get("/walk", response_class=Frame, response_model=Header[Facts])
def walk(asked: Annotated[Question, Query()], here: Here) -> Frame:
    """Every stop of the way: facts and formulas of one token, and the tokens of all as bytes around 127.5."""
    from vitrail.look.walk import walk_through

    def compute() -> tuple[Subject, Walk]:
        subject = here.subject(asked.image, asked.weights, asked.seen)
        depth = getattr(subject.model.config, "depth", 0)
        require(
            asked.block < depth or not depth,
            f"block {asked.block} is not among the model's {depth}; use 0 to {depth - 1}",
        )
        return subject, walk_through(subject.model, subject.image, block=asked.block)

    size = here.seen_size(asked.weights, asked.seen)
    subject, walked = here.once(("walk", asked.image, asked.weights, size, asked.block), compute)
    return _followed(asked, subject, walked, here)


def _followed(asked: Question, subject: Subject, walked: Walk, here: Session) -> Frame:
    from vitrail.look.views.words import prefix_names
    from vitrail.studio.rooms.walk.walk_formulas import Followed, formulas_of

    layout, grid = walked.layout, walked.layout.grid
    middle = position_id(grid.height // 2, grid.width // 2, grid, 0)
    token = layout.prefix + middle if asked.token < 0 else asked.token
    total, width = walked.tokens[0].shape
    heads = walked.block.q.shape[0]
    for name, value, count in (("token", token, total), ("key", asked.key, total), ("head", asked.head, heads)):
        require(value < count, f"{name} {value} is not among {count}; use 0 to {count - 1}")
    require(asked.unit < width, f"unit {asked.unit} is not among the width's {width}; use 0 to {width - 1}")
    cell = token - layout.prefix if token >= layout.prefix else middle
    row, column = divmod(cell, grid.width)
    stride = subject.model.config.embedding.stride or subject.model.config.patch  # type: ignore[union-attr]
    corner = (row * stride.height, column * stride.width)
    step = walked.block.step(token, asked.head, None if asked.key < 0 else asked.key)
    key = int(step.weights.argmax()) if asked.key < 0 else asked.key
    names = prefix_names(subject)
    at = Followed(token=token, cell=cell, key=key, head=asked.head, unit=asked.unit, corner=corner)
    checkpoint = here.checkpoint(asked.weights)
    pixel = int(subject.pixels[*corner, 0])
    formulas = formulas_of(walked, step, at, pixel, checkpoint.preprocessing)
    facts = Facts(
        shapes=shapes_of(walked),
        grid=tuple(grid),
        prefix=names,
        token=token,
        cell=cell,
        place=(row, column),
        key=key,
        asks=_words(token, names, grid.width),
        met=_words(key, names, grid.width),
        **pixels_of(subject, walked, at),
        block=block_of(walked, token, step),
        depth=[rounded(stop[token]) for stop in walked.tokens],
        lengths=[round(stop[token].norm().item(), 4) for stop in walked.tokens],
        pooled=rounded(walked.pooled),
        verdict=verdict_of(walked, checkpoint.labels),
        formulas=formulas,
    )
    arrays = {
        "pixels": subject.pixels,
        "projected": _signed(walked.projected),
        "entering": _signed(walked.tokens[0]),
        "leaving": _signed(walked.tokens[-1]),
    }
    return frame(facts, arrays)


def _words(token: int, names: list[str], columns: int) -> str:
    if token < len(names):
        return names[token]
    row, column = divmod(token - len(names), columns)
    return f"patch ({row}, {column})"


def _signed(values: Tensor) -> np.ndarray:
    """uint8 with 0 in the middle; the largest hundredth may be cut, so that the rest is seen."""
    array = values.float().numpy()
    limit = float(np.quantile(np.abs(array), 0.995)) or 1.0
    return np.round(np.clip(array / limit, -1, 1) * 127.5 + 127.5).astype(np.uint8)
