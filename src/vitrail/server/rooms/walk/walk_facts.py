"""The JSON of the walk: the numbers of one token from pixels to logits.

This file and the formulas compute with plain numbers, so that an exported page runs them too.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel

from vitrail.server.formulas import Formula
from vitrail.server.guess import Guess
from vitrail.server.plans import Pair

__all__ = ["Facts", "Numbers", "Shapes", "Vector", "facts_of"]

Vector = list[float]
Picture = list[list[Vector]]
"""Indexed by channel, row and column."""
DIGITS = 4
"""Digits after the point, which halves the size of the JSON."""


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


class Numbers(BaseModel):
    """What the model computed for one token, in one block and head; see `walk_tensors.PICKED`."""

    shapes: Shapes
    grid: Pair
    prefix: list[str]
    mean: float
    """By which the preprocessing normalises the first channel, like `std`."""
    std: float
    token: int
    cell: int
    """The token's patch, or the patch in the middle for a prefix token."""
    key: int
    block: int
    head: int
    unit: int
    colours: list[list[list[int]]]
    """The bytes of the patch, by row, column and channel."""
    patch: Picture
    filter: Picture
    filter_bias: float
    projected: Vector
    position: Vector
    adds_position: bool
    prefixed: list[Vector]
    entering_first: Vector
    """The patch's token before the first block."""
    unit_before: float
    unit_position: float
    entering: Vector
    normed: Vector
    q: Vector
    k: Vector
    scores: Vector
    bias: float = 0.0
    weights: Vector
    is_softmax: bool
    first_values: Vector
    """The first value of every token in this head."""
    mixed: Vector
    added: Vector
    between: Vector
    normed_again: Vector
    hidden: Vector
    fed: Vector
    leaving: Vector
    depth: list[Vector]
    pooled: Vector
    guess: Guess | None = None
    """The prediction at this input size; None, like all that follows, for a model without a head."""
    verdict: Guess | None = None
    logits: Vector = []
    head_row: Vector = []
    head_bias: float = 0.0
    lens_names: list[str] = []
    lens_probabilities: Vector = []
    lens_last: Vector = []


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


def facts_of(numbers: Numbers) -> Facts:
    """Return what the page shows of these numbers."""
    from vitrail.server.rooms.walk.walk_formulas import formulas_of

    now, (_, columns) = numbers, numbers.grid
    return Facts(
        shapes=now.shapes,
        grid=now.grid,
        prefix=now.prefix,
        token=now.token,
        cell=now.cell,
        place=divmod(now.cell, columns),
        key=now.key,
        block_index=now.block,
        head=now.head,
        unit=now.unit,
        query_name=_name(now.token, now.prefix, columns),
        key_name=_name(now.key, now.prefix, columns),
        colours=now.colours,
        patch=_rounded(now.patch),
        weight=_rounded(now.filter),
        products=_rounded(_times(now.patch, now.filter)),
        projected=_rounded(now.projected),
        position=_rounded(now.position),
        adds_position=now.adds_position,
        prefixed=_rounded(now.prefixed),
        entering=_rounded(now.entering_first),
        block=_block(now),
        depth=_rounded(now.depth),
        lengths=[round(math.hypot(*stop), DIGITS) for stop in now.depth],
        pooled=_rounded(now.pooled),
        prediction=_prediction(now),
        verdict=now.verdict,
        formulas=formulas_of(now),
    )


def _block(now: Numbers) -> Block:
    plain = {"entering", "normed", "q", "k", "scores", "weights", "mixed", "added", "between"}
    plain |= {"normed_again", "hidden", "fed", "leaving"}
    vectors = {name: _rounded(getattr(now, name)) for name in plain}
    return Block(products=_rounded(_times(now.q, now.k)), is_softmax=now.is_softmax, **vectors)


def _prediction(now: Numbers) -> Prediction | None:
    """Return logits, probabilities, and the prediction after every block; None for a model without a head."""
    if now.guess is None:
        return None
    stops = zip(now.lens_names, now.lens_probabilities, now.lens_last, strict=True)
    return Prediction(
        **dict(now.guess),
        logits=_rounded(sorted(now.logits, reverse=True)[: len(now.guess.names)]),
        row=_rounded(now.head_row),
        products=_rounded(_times(now.head_row, now.pooled)),
        lens=[Lens(name=name, probability=probability, last=last) for name, probability, last in stops],
    )


def _name(token: int, names: list[str], columns: int) -> str:
    if token < len(names):
        return names[token]
    row, column = divmod(token - len(names), columns)
    return f"patch ({row}, {column})"


def _times(left: Any, right: Any) -> Any:
    """Multiply two nested lists of one shape, number by number."""
    if isinstance(left, list):
        return [_times(*pair) for pair in zip(left, right, strict=True)]
    return left * right


def _rounded(values: Any) -> Any:
    return [_rounded(each) for each in values] if isinstance(values, list) else round(values, DIGITS)
