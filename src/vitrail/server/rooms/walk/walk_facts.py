"""The JSON of the walk: the numbers of one token from pixels to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from vitrail.server.formulas import Formula
from vitrail.server.guess import Guess, guess_of
from vitrail.server.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.look.subject import Subject
    from vitrail.look.walk import Step, Walk
    from vitrail.server.rooms.walk.walk_formulas import Followed

__all__ = ["Facts", "block_of", "pixels_of", "prediction_of", "rounded", "shapes_of"]

Vector = list[float]
Picture = list[list[Vector]]
"""Indexed by channel, row and column."""


class Shapes(BaseModel):
    """Sizes by the letter that the page uses for them."""

    C: int
    H: int
    W: int
    P: int
    Q: int
    CPQ: int
    N: int
    T: int
    D: int
    h: int
    d: int
    m: int
    L: int
    classes: int


class Block(BaseModel):
    """The followed token inside one block."""

    entering: Vector
    normed: Vector
    q: Vector
    k: Vector
    products: Vector
    scores: Vector
    weights: Vector
    is_softmax: bool
    mixed: Vector
    added: Vector
    between: Vector
    normed_again: Vector
    hidden: Vector
    fed: Vector
    leaving: Vector


class Lens(BaseModel):
    """The prediction from the tokens after one block, by the model's own norm and head."""

    name: str
    probability: float
    last: float
    """The probability of the final prediction."""


class Prediction(Guess):
    logits: Vector
    row: Vector
    """The weights of the head for the most likely class."""
    products: Vector
    lens: list[Lens]


class Facts(BaseModel):
    shapes: Shapes
    grid: Pair
    prefix: list[str]
    token: int
    cell: int
    place: Pair
    """The cell's row and column."""
    key: int
    block_index: int
    head: int
    unit: int
    query_name: str
    key_name: str
    colours: list[list[list[int]]]
    """The bytes of the patch, by row, column and channel."""
    patch: Picture
    weight: Picture
    products: Picture
    projected: Vector
    position: Vector
    adds_position: bool
    prefixed: list[Vector]
    entering: Vector
    block: Block
    depth: list[Vector]
    """The token before the first block, and after each block."""
    lengths: Vector
    pooled: Vector
    prediction: Prediction | None
    verdict: Guess | None
    """The prediction at the training size."""
    formulas: dict[str, Formula]


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
        T=len(walked.tokens[0]),
        D=walked.tokens[0].shape[1],
        h=heads,
        d=each,
        m=walked.block.hidden.shape[1],
        L=len(walked.tokens) - 1,
        classes=len(walked.logits) if walked.head is not None else 0,
    )


def pixels_of(subject: Subject, walked: Walk, at: Followed) -> dict[str, Any]:
    """Return the numbers from one patch to the token that enters the first block."""
    down, across = walked.patches.shape[2:]
    (top, left), cell = at.corner, at.cell
    token = cell + walked.layout.prefix
    return {
        "colours": subject.pixels[top : top + down, left : left + across].tolist(),
        "patch": rounded(walked.patches[cell]),
        "weight": rounded(walked.projection[at.unit]),
        "products": rounded(walked.patches[cell] * walked.projection[at.unit]),
        "projected": rounded(walked.projected[cell]),
        "position": rounded(walked.positions[token]),
        "adds_position": bool(walked.positions.any()),
        "prefixed": rounded(walked.prefixed[: walked.layout.prefix]),
        "entering": rounded(walked.tokens[0][token]),
    }


def block_of(walked: Walk, token: int, step: Step) -> Block:
    block = walked.block
    return Block(
        entering=rounded(block.entering[token]),
        normed=rounded(block.normed[token]),
        q=rounded(step.q),
        k=rounded(step.k),
        products=rounded(step.products),
        scores=rounded(step.scores),
        weights=rounded(step.weights),
        is_softmax=step.is_softmax,
        mixed=rounded(step.mixed),
        added=rounded(block.added[token]),
        between=rounded(block.between[token]),
        normed_again=rounded(block.normed_again[token]),
        hidden=rounded(block.hidden[token]),
        fed=rounded(block.fed[token]),
        leaving=rounded(block.leaving[token]),
    )


def prediction_of(walked: Walk, checkpoint: Checkpoint) -> Prediction | None:
    """Return logits, probabilities, and the prediction after every block; None for a model without a head."""
    if walked.head is None:
        return None
    from vitrail.checkpoint.classify import class_name  # needs torch, which the studio loads on demand

    first, labels = int(walked.logits.argmax()), checkpoint.labels
    guess = guess_of(walked.logits, labels, walked.pixels.shape[1:], checkpoint.config)
    after_block = walked.lens.softmax(dim=1)
    best = after_block.argmax(dim=1).tolist()
    return Prediction(
        **dict(guess),
        logits=rounded(walked.logits.topk(len(guess.names)).values),
        row=rounded(walked.head[first]),
        products=rounded(walked.head[first] * walked.pooled),
        lens=[
            Lens(
                name=class_name(index, labels),
                probability=after_block[stop, index].item(),
                last=after_block[stop, first].item(),
            )
            for stop, index in enumerate(best)
        ],
    )


def rounded(values: Tensor) -> list[Any]:
    """Round to four digits, which halves the size of the JSON."""
    import numpy as np

    return np.round(values.double().numpy(), 4).tolist()
