"""Room 10, walk through: one image from pixels to logits, with the numbers of one token in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from starlette.responses import Response

from vitrail.errors import require
from vitrail.studio.arrays import FRAME, frame
from vitrail.studio.controls import number
from vitrail.studio.rooms.attention import Asking
from vitrail.studio.session import Here, Session

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject
    from vitrail.look.walk import Step, Walk
    from vitrail.studio.rooms.walk.walk_formulas import Followed

__all__ = ["Question", "router"]

router = APIRouter()

LISTED = 10


class Question(Asking):
    """Which token to follow, and into which block, head and unit."""

    block: int = number(0, 0, 63, label="Block", about="The one that is opened; 0 is the first")
    head: int = number(0, 0, 63, label="Head", about="0 is the first")
    unit: int = number(0, 0, 4095, label="Unit", about="Which of the projection's outputs is computed in the open")
    key: int = number(
        -1, -1, 4095, label="Key", about="The token whose key is met, by its place; −1 is the one attended to most"
    )


@router.get("/walk", response_class=Response, responses=FRAME)
def walk(asked: Annotated[Question, Query()], here: Here) -> Response:
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


def _followed(asked: Question, subject: Subject, walked: Walk, here: Session) -> Response:
    from vitrail.look.views.words import prefix_names
    from vitrail.studio.rooms.walk.walk_formulas import Followed, formulas_of

    layout, grid = walked.layout, walked.layout.grid
    middle = grid.height // 2 * grid.width + grid.width // 2
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
    names = [name.replace("reg", "register").replace("dist", "distillation") for name in prefix_names(subject)]
    at = Followed(token=token, cell=cell, key=key, head=asked.head, unit=asked.unit, corner=corner)
    checkpoint = here.checkpoint(asked.weights)
    pixel = int(subject.pixels[*corner, 0])
    formulas = formulas_of(walked, step, at, pixel, checkpoint.preprocessing)
    facts = {
        "shapes": _shapes(walked),
        "grid": list(grid),
        "prefix": names,
        "token": token,
        "cell": cell,
        "key": key,
        "asks": _words(token, names, grid.width),
        "met": _words(key, names, grid.width),
        **_pixels(subject, walked, at),
        **_block(walked, token, step),
        **_verdict(walked, checkpoint.labels),
        "formulas": {name: each.model_dump() for name, each in formulas.items()},
    }
    arrays = {
        "pixels": subject.pixels,
        "projected": _signed(walked.projected),
        "entering": _signed(walked.tokens[0]),
        "leaving": _signed(walked.tokens[-1]),
    }
    return frame(facts, arrays)


def _shapes(walked: Walk) -> dict[str, int]:
    channels, height, width = walked.pixels.shape
    _, _, down, across = walked.patches.shape
    heads, _, each = walked.block.q.shape
    return {
        "C": channels,
        "H": height,
        "W": width,
        "P": down,
        "Q": across,
        "N": len(walked.patches),
        "T": len(walked.tokens[0]),
        "D": walked.tokens[0].shape[1],
        "h": heads,
        "d": each,
        "m": walked.block.hidden.shape[1],
        "L": len(walked.tokens) - 1,
        "classes": len(walked.logits) if walked.head is not None else 0,
    }


def _pixels(subject: Subject, walked: Walk, at: Followed) -> dict[str, Any]:
    """From pixels to the token that enters: one patch, one unit."""
    down, across = walked.patches.shape[2:]
    (top, left), cell = at.corner, at.cell
    token = cell + walked.layout.prefix
    return {
        "box": [top, left, down, across],
        "colours": subject.pixels[top : top + down, left : left + across].tolist(),
        "patch": _plain(walked.patches[cell]),
        "weight": _plain(walked.projection[at.unit]),
        "products": _plain(walked.patches[cell] * walked.projection[at.unit]),
        "projected": _plain(walked.projected[cell]),
        "position": _plain(walked.positions[token]),
        "adds_position": bool(walked.positions.any()),
        "prefixed": _plain(walked.prefixed[: walked.layout.prefix]),
        "entering": _plain(walked.tokens[0][token]),
    }


def _block(walked: Walk, token: int, step: Step) -> dict[str, Any]:
    block = walked.block
    return {
        "block": {
            "entering": _plain(block.entering[token]),
            "normed": _plain(block.normed[token]),
            "q": _plain(step.q),
            "k": _plain(step.k),
            "products": _plain(step.products),
            "scores": _plain(step.scores),
            "weights": _plain(step.weights),
            "is_softmax": step.is_softmax,
            "mixed": _plain(step.mixed),
            "added": _plain(block.added[token]),
            "between": _plain(block.between[token]),
            "normed_again": _plain(block.normed_again[token]),
            "hidden": _plain(block.hidden[token]),
            "fed": _plain(block.fed[token]),
            "leaving": _plain(block.leaving[token]),
        },
        "depth": [_plain(stop[token]) for stop in walked.tokens],
        "lengths": _plain(_lengths(walked, token)),
    }


def _lengths(walked: Walk, token: int) -> Tensor:
    import torch

    return torch.stack([stop[token].norm() for stop in walked.tokens])


def _verdict(walked: Walk, labels: tuple[str, ...]) -> dict[str, Any]:
    """Pool, logits, probabilities; and what would be said at every stop."""
    said: dict[str, Any] = {"pooled": _plain(walked.pooled), "verdict": None}
    if walked.head is None:
        return said
    chances = walked.logits.softmax(dim=0)
    likely = chances.topk(min(LISTED, len(chances)))
    first = int(likely.indices[0])
    earlier = walked.lens.softmax(dim=1)
    best = earlier.argmax(dim=1).tolist()
    name = [labels[index] if labels else f"class {index}" for index in range(len(chances))]
    return said | {
        "verdict": {
            "image": list(walked.pixels.shape[1:]),
            "names": [name[index] for index in likely.indices.tolist()],
            "logits": _plain(walked.logits[likely.indices]),
            "probabilities": likely.values.tolist(),
            "classes": len(chances),
            "named": bool(labels),
            "row": _plain(walked.head[first]),
            "products": _plain(walked.head[first] * walked.pooled),
            "lens": [
                {"name": name[index], "probability": earlier[stop, index].item(), "last": earlier[stop, first].item()}
                for stop, index in enumerate(best)
            ],
        }
    }


def _words(token: int, names: list[str], columns: int) -> str:
    if token < len(names):
        return names[token]
    row, column = divmod(token - len(names), columns)
    return f"patch ({row}, {column})"


def _plain(values: Tensor) -> list[Any]:
    """Four digits are more than anyone reads, and half of the bytes."""
    return np.round(values.double().numpy(), 4).tolist()


def _signed(values: Tensor) -> np.ndarray:
    """uint8 with 0 in the middle; the largest hundredth may be cut, so that the rest is seen."""
    array = values.float().numpy()
    limit = float(np.quantile(np.abs(array), 0.995)) or 1.0
    return np.round(np.clip(array / limit, -1, 1) * 127.5 + 127.5).astype(np.uint8)
