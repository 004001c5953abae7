"""Room 10, walk through: one image from pixels to logits, with the numbers of one token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query

from vitrail.errors import require
from vitrail.geometry import Size, position_id
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Asking, number
from vitrail.server.default_size import default_size
from vitrail.server.guess import guess_of, predict
from vitrail.server.rooms.walk.walk_facts import Facts, Numbers, Shapes, facts_of
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.look.subject import Subject
    from vitrail.look.walk import Walk

__all__ = ["Question", "middle_of", "router", "setting_of"]

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
    from vitrail.server.rooms.walk.walk_tensors import shown

    arrays = {
        "pixels": subject.pixels,
        "projected": shown(walked.projected).numpy(),
        "entering": shown(walked.tokens[0]).numpy(),
        "leaving": shown(walked.tokens[-1]).numpy(),
    }
    return frame(facts_of(_numbers(asked, subject, walked, session)), arrays)


def _numbers(asked: Question, subject: Subject, walked: Walk, session: Session) -> Numbers:
    """Pick the numbers of the token that is asked for."""
    import torch

    from vitrail.checkpoint.classify import class_name
    from vitrail.server.rooms.walk.walk_tensors import ends_of, pick, rows_of

    checkpoint, sizes = session.checkpoint(asked.weights), shapes_of(walked)
    prefix, middle = walked.layout.prefix, middle_of(walked.layout.grid)
    token = prefix + middle if asked.token < 0 else asked.token
    for name, value, count in (("token", token, sizes.T), ("key", asked.key, sizes.T), ("head", asked.head, sizes.h)):
        require(value < count, f"{name} {value} is not among the {count} {name}s; use 0 to {count - 1}")
    require(asked.unit < sizes.D, f"unit {asked.unit} is not among the token's {sizes.D} units; use 0 to {sizes.D - 1}")
    cell = token - prefix if token >= prefix else middle
    tensors = ends_of(walked) | rows_of(walked, torch.tensor([token]))
    indices = {
        "token": token,
        "cell": cell,
        "key": int(tensors["keys"][0, asked.head, 0]) if asked.key < 0 else asked.key,
        "block": asked.block,
        "head": asked.head,
        "unit": asked.unit,
    }
    first = int(tensors["first"]) if "first" in tensors else -1
    places = {"patch": cell + prefix, "next": asked.block + 1, "first": first, "layer": 0, "query": 0}
    picked = pick(tensors, {**indices, **places})
    labels, guess, verdict = checkpoint.labels, None, None
    if first >= 0:
        guess = guess_of(walked.logits, labels, walked.pixels.shape[1:], checkpoint.config)
        verdict = predict(asked, session)
    return Numbers(
        **setting_of(subject, walked, checkpoint),
        **indices,
        colours=_colours(subject, walked, cell),
        guess=guess,
        verdict=verdict,
        lens_names=[class_name(index, labels) for index in picked.pop("lens_classes", [])],
        **picked,
    )


def setting_of(subject: Subject, walked: Walk, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields of `Numbers` that are the same for every token and image."""
    from vitrail.look.views.words import prefix_names

    steps = checkpoint.preprocessing
    return {
        "shapes": shapes_of(walked),
        "grid": walked.layout.grid,
        "prefix": prefix_names(subject),
        "mean": steps.mean[0],
        "std": steps.std[0],
        "adds_position": bool(walked.positions.any()),
    }


def shapes_of(walked: Walk) -> Shapes:
    channels, height, width = walked.pixels.shape
    _, _, down, across = walked.patches.shape
    heads, _, each = walked.block.q.shape
    return Shapes(
        C=channels,
        H=height,
        W=width,
        P=down,
        Q=across,
        CPQ=channels * down * across,
        N=len(walked.patches),
        T=walked.tokens.shape[1],
        D=walked.tokens.shape[2],
        h=heads,
        d=each,
        m=walked.block.hidden.shape[1],
        L=len(walked.tokens) - 1,
        classes=len(walked.logits) if walked.head is not None else 0,
    )


def middle_of(grid: Size) -> int:
    """Return the cell in the middle of a grid, in row-major order."""
    return position_id(grid.height // 2, grid.width // 2, grid, 0)


def _colours(subject: Subject, walked: Walk, cell: int) -> list[list[list[int]]]:
    """Return the bytes of a patch, by row, column and channel."""
    down, across = walked.patches.shape[2:]
    row, column = divmod(cell, walked.layout.grid.width)
    stride = subject.model.config.embedding.stride or subject.model.config.patch  # type: ignore[union-attr]
    top, left = row * stride.height, column * stride.width
    return subject.pixels[top : top + down, left : left + across].tolist()
