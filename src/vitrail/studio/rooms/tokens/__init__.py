"""Room 3, tokens: the image cut, flattened and numbered; and the other ways to cut it, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size, position_id
from vitrail.parts import Patches
from vitrail.studio.arrays import Frame, Header, frame
from vitrail.studio.controls import Asking, number
from vitrail.studio.default_size import default_size
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair, Shape, described
from vitrail.studio.rooms.tokens.cuts import (
    PYRAMID,
    Kind,
    adaptive_of,
    detail_of,
    kinds_of,
    leaves_of,
    pyramid_means,
    spread_of,
)
from vitrail.studio.rooms.tokens.sequence import Box, Sequence, run_sequence
from vitrail.studio.session import Here, Session

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Question", "router"]

router = APIRouter()


class Question(Shape, Asking):
    """A loaded model on the image for the sequence; a planned one for the ways to cut."""

    stride: int = number(8, 1, 64, unit="px", label="Stride", about="From one overlapping patch to the next")
    threshold: float = number(
        0.5,
        0,
        3,
        step=0.01,
        label="Threshold",
        about="A cell splits where it varies at least this much, in units of the whole image's deviation",
    )


Asked = Annotated[Question, Query()]


# ── the sequence ────────────────────────────────────────────────────────────────────────────────────────────────


class SequenceFacts(BaseModel):
    prefix: tuple[str, ...]
    grid: Pair
    image: Pair
    boxes: list[Box]
    """Top, left, height and width of every patch, in pixels."""
    cells: list[Box]
    """The same where no two share a pixel."""
    owner: list[int]
    """The token that covers each cell of the grid."""
    middle: int
    """The token that is looked at unless another is chosen."""
    count: int
    width: int
    cut: str
    added: str


@router.get("/tokens/sequence", response_class=Frame, response_model=Header[SequenceFacts])
def sequence(asked: Asked, here: Here) -> Frame:
    """The image as it is cut, and where every token of the sequence comes from."""
    found = _sequence(asked, here)
    height, width = found.pixels.shape[:2]
    facts = SequenceFacts(
        prefix=found.prefix,
        grid=tuple(found.grid),
        image=(height, width),
        boxes=found.boxes,
        cells=found.cells,
        owner=found.owners(),
        middle=found.middle,
        count=len(found.tokens),
        width=found.tokens.shape[1],
        cut=found.cut,
        added=found.added,
    )
    return frame(facts, {"pixels": found.pixels})


class Token(BaseModel):
    token: int
    name: str
    row: int | None
    column: int | None
    place: str
    """How its number comes about."""
    values: list[float]
    """A patch's pixels as the model gets them, flattened channel by channel, row by row."""
    projected: list[float]
    position: list[float] | None
    """What is added for the place; None where positions work elsewhere."""
    vector: list[float]
    length: float
    """The vector's norm."""


@router.get("/tokens/one")
def one(asked: Asked, here: Here) -> Token:
    """One token: its pixels, its projection, its position and their sum."""
    found = _sequence(asked, here)
    count, token = len(found.tokens), found.middle if asked.token < 0 else asked.token
    require(token < count, f"token {token} is not among {count:,}; take 0 to {count - 1}")
    index, vector = token - len(found.prefix), found.tokens[token]
    row, column = found.place(index)
    return Token(
        token=token,
        name=found.prefix[token] if index < 0 else f"patch {index}",
        row=row,
        column=column,
        place=found.number(token),
        values=_rounded(found.values(index)) if index >= 0 else [],
        projected=_rounded(found.projected[token]),
        position=None if found.added else _rounded(vector - found.projected[token]),
        vector=_rounded(vector),
        length=float(vector.norm()),
    )


def _sequence(asked: Question, here: Session) -> Sequence:
    side = default_size(asked, here)
    return here.once(
        ("tokens", asked.image, asked.weights, side),
        lambda: run_sequence(here.subject(asked.image, asked.weights, side)),
    )


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


# ── other ways to cut ───────────────────────────────────────────────────────────────────────────────────────────


class Kinds(BaseModel):
    kinds: list[Kind]
    formulas: list[Formula]


@router.get("/tokens")
def kinds(asked: Asked, here: Here) -> Kinds:
    """Ways to cut the same image for the planned model, with what each costs; adaptive is asked by itself."""
    config = _whole(asked, here)
    stride = Size(min(asked.stride, asked.patch_height), min(asked.stride, asked.patch_width))
    return Kinds(kinds=kinds_of(config, stride), formulas=_formulas(config, stride))


class PyramidFacts(BaseModel):
    patches: tuple[int, ...]
    """Sides of the levels' patches, finest first; the arrays are named by them."""


@router.get("/tokens/pyramid", response_class=Frame, response_model=Header[PyramidFacts])
def pyramid(asked: Asked, here: Here) -> Frame:
    """The image at every level of the hierarchical way: one mean colour a token."""
    image = _whole(asked, here).image
    means = here.once(("pyramid", asked.image, image), lambda: pyramid_means(here.image(asked.image), image))
    levels = {str(side): cells for side, cells in zip(PYRAMID, means, strict=True)}
    return frame(PyramidFacts(patches=PYRAMID), levels)


class TreeFacts(BaseModel):
    kind: Kind
    patches: list[Pair]
    """Finest first."""
    counts: list[int]
    """Leaves of every size."""
    kept: int
    finest: int
    saved: float
    image: Pair


@router.get("/tokens/adaptive", response_class=Frame, response_model=Header[TreeFacts])
def adaptive(asked: Asked, here: Here) -> Frame:
    """The quadtree that a threshold gives on the image, its cost, and its tokens back on the finest grid."""
    config = _whole(asked, here)
    spec = adaptive_of(config, asked.threshold)
    detail = here.once(
        ("detail", asked.image, config.image, spec.patches),
        lambda: detail_of(here.image(asked.image), config.image, spec),
    )
    leaves = leaves_of(detail, asked.threshold)
    kept, finest = sum(leaves.counts), leaves.levels.size
    facts = TreeFacts(
        kind=spread_of(config, spec, kept),
        patches=[tuple(patch) for patch in spec.patches],
        counts=leaves.counts,
        kept=kept,
        finest=finest,
        saved=1 - kept / finest,
        image=tuple(spec.fit(config.image, "resize").fitted),
    )
    return frame(facts, {"levels": leaves.levels, "dense": leaves.dense})


def _whole(asked: Question, here: Session) -> ViTConfig:
    """The planned model on the image that its patches divide."""
    config = described(asked, here)
    return config.but(image=config.fit(config.image).fitted, remainder="error")


def _formulas(config: ViTConfig, stride: Size) -> list[Formula]:
    (height, width), (down, across), (rows, columns) = config.image, config.patch, config.grid
    overlapping = Patches(patch=config.patch, stride=stride).fit(config.image, "resize")
    return [
        Formula(
            name="regular tokens",
            symbols="(H / P) · (W / P)",
            numbers=f"({height} / {down}) · ({width} / {across}) = {rows} · {columns} = {short(config.grid.area)}",
        ),
        Formula(
            name="overlapping tokens",
            symbols="((H − P) / S + 1) · ((W − P) / S + 1)",
            numbers=f"(({overlapping.fitted.height} − {down}) / {stride.height} + 1) · "
            f"(({overlapping.fitted.width} − {across}) / {stride.width} + 1) = {short(overlapping.grid.area)}",
        ),
        Formula(
            name="a token's number",
            symbols="prefix + row · columns + column",
            numbers=f"the last patch: {config.prefix.count} + {rows - 1} · {columns} + {columns - 1} = "
            f"{short(position_id(rows - 1, columns - 1, config.grid, config.prefix.count))}",
        ),
    ]
