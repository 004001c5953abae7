"""Room 3, tokens: the image as a sequence of tokens, and other kinds of patch embedding side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size, position_id
from vitrail.parts import Adaptive, Patches
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Asking, number
from vitrail.server.default_size import default_size
from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Box, Pair, Shape, described
from vitrail.server.rooms.tokens.cuts import (
    PYRAMID,
    Cut,
    Kind,
    adaptive_cut,
    adaptive_kind,
    adaptive_of,
    kinds_of,
    pyramid_cut,
)
from vitrail.server.rooms.tokens.sequence import Sequence, run_sequence
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Asked", "CutKind", "Question", "TreeFacts", "cut_of", "router", "tree_facts"]

router = APIRouter()


class Question(Shape, Asking):
    """A loaded model for the sequence, and a planned model for the kinds of patch embedding."""

    stride: int = number(8, 1, 64, unit="px", label="Stride", about="Distance between overlapping patches")
    threshold: float = number(
        0.5,
        0,
        3,
        step=0.01,
        label="Threshold",
        about="A cell splits if its standard deviation is at least this fraction of the image's",
    )


Asked = Annotated[Question, Query()]
CutKind = Literal["adaptive", "pyramid"]


# ── the sequence ────────────────────────────────────────────────────────────────────────────────────────────────


class SequenceFacts(BaseModel):
    prefix: tuple[str, ...]
    grid: Pair
    image: Pair
    boxes: list[Box]
    """Top, left, height and width of every patch, in pixels."""
    cells: list[Box]
    """Boxes like these, but without overlap."""
    owner: list[int]
    """The token that covers each cell of the grid, in row-major order."""
    middle: int
    """The token of the patch in the middle, shown by default."""
    count: int
    projection: str
    """How a patch becomes a vector."""
    no_position: str
    """Why no position is added; empty if one is."""


@router.get("/tokens/sequence", response_class=Frame, response_model=Header[SequenceFacts])
def sequence(asked: Asked, session: SessionDep) -> Frame:
    """Return the image, and the box of every token in it."""
    tokens = _sequence(asked, session)
    facts = SequenceFacts(
        prefix=tokens.prefix,
        grid=tokens.grid,
        image=tokens.pixels.shape[:2],
        boxes=tokens.boxes,
        cells=tokens.cells,
        owner=tokens.owners(),
        middle=tokens.middle,
        count=len(tokens.vectors),
        projection=tokens.projection,
        no_position=tokens.no_position,
    )
    return frame(facts, {"pixels": tokens.pixels})


class Token(BaseModel):
    token: int
    row: int | None
    column: int | None
    place: str
    """How the index of the token is computed."""
    values: list[float]
    """The normalised pixels of the patch, flattened by channel, row and column."""
    projected: list[float]
    position: list[float] | None
    """The position embedding; None if none is added."""
    vector: list[float]
    length: float
    """The norm of the vector."""


@router.get("/tokens/one")
def one(asked: Asked, session: SessionDep) -> Token:
    """Return one token: its pixels, its projection, its position and their sum."""
    tokens = _sequence(asked, session)
    count, token = len(tokens.vectors), tokens.middle if asked.token < 0 else asked.token
    require(token < count, f"token {token} is not among the {count:,} tokens; use 0 to {count - 1}")
    index, vector = token - len(tokens.prefix), tokens.vectors[token]
    row, column = tokens.place(index)
    return Token(
        token=token,
        row=row,
        column=column,
        place=tokens.index_formula(token),
        values=_rounded(tokens.values(index)) if index >= 0 else [],
        projected=_rounded(tokens.projected[token]),
        position=None if tokens.no_position else _rounded(vector - tokens.projected[token]),
        vector=_rounded(vector),
        length=float(vector.norm()),
    )


def _sequence(asked: Question, session: Session) -> Sequence:
    side = default_size(asked, session)
    return session.once(
        ("tokens", asked.image, asked.weights, side),
        lambda: run_sequence(session.subject(asked.image, asked.weights, side)),
    )


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


# ── kinds of patch embedding ────────────────────────────────────────────────────────────────────────────────────


class Kinds(BaseModel):
    kinds: list[Kind]
    formulas: list[Formula]


@router.get("/tokens")
def kinds(asked: Asked, session: SessionDep) -> Kinds:
    """Return the kinds of patch embedding for the planned model, with their costs, except adaptive patches."""
    config = _whole(asked, session)
    stride = Size(min(asked.stride, asked.patch_height), min(asked.stride, asked.patch_width))
    return Kinds(kinds=kinds_of(config, stride), formulas=_formulas(config, stride))


class PyramidFacts(BaseModel):
    patches: tuple[int, ...]
    """Patch sides of the levels, finest first, which are also the names of the arrays."""


@router.get("/tokens/pyramid", response_class=Frame, response_model=Header[PyramidFacts])
def pyramid(asked: Asked, session: SessionDep) -> Frame:
    """Return the image at every level of hierarchical patches, with one mean colour per token."""
    from vitrail.server.rooms.tokens.cells import cut_cells, pyramid_means

    cut = cut_of("pyramid", asked, session)
    means = session.once(
        ("pyramid", asked.image, cut), lambda: pyramid_means(cut_cells(session.image(asked.image), cut))
    )
    levels = {str(side): cells.numpy() for side, cells in zip(PYRAMID, means, strict=True)}
    return frame(PyramidFacts(patches=PYRAMID), levels)


class TreeFacts(BaseModel):
    kind: Kind
    patches: list[Pair]
    """Finest first."""
    counts: list[int]
    """Patches of each size."""
    kept: int
    finest: int
    saved: float
    image: Pair
    formulas: list[Formula]


@router.get("/tokens/adaptive", response_class=Frame, response_model=Header[TreeFacts])
def adaptive(asked: Asked, session: SessionDep) -> Frame:
    """Return the quadtree of the image at a threshold, its cost, and its tokens on the finest grid."""
    from vitrail.server.rooms.tokens.cells import cut_cells, detail_of, quadtree_of

    cut = cut_of("adaptive", asked, session)
    detail = session.once(("detail", asked.image, cut), lambda: detail_of(cut_cells(session.image(asked.image), cut)))
    leaves = quadtree_of(detail, asked.threshold)
    facts = tree_facts(asked, session, leaves.counts.tolist())
    return frame(facts, {"levels": leaves.levels.numpy(), "dense": leaves.dense.numpy()})


def cut_of(kind: CutKind, asked: Question, session: Session) -> Cut:
    """Return how the image is cut into the smallest patches of a kind, for the planned model."""
    return (adaptive_cut if kind == "adaptive" else pyramid_cut)(_whole(asked, session))


def tree_facts(asked: Question, session: Session, counts: list[int]) -> TreeFacts:
    """Return the cost of a quadtree, given its patches of each size, finest first."""
    config = _whole(asked, session)
    spec = adaptive_of(config, asked.threshold)
    fitted = spec.fit(config.image, "resize")
    kept, finest = sum(counts), fitted.grid.area
    kind = adaptive_kind(config, spec, kept)
    return TreeFacts(
        kind=kind,
        patches=list(spec.patches),
        counts=counts,
        kept=kept,
        finest=finest,
        saved=1 - kept / finest,
        image=fitted.fitted,
        formulas=[*_leaf_formulas(spec, counts, finest), *kind.formulas],
    )


def _leaf_formulas(spec: Adaptive, counts: list[int], finest: int) -> list[Formula]:
    kept, sides = sum(counts), [f"{patch.height} × {patch.width}" for patch in spec.patches]
    return [
        Formula(
            name="patch tokens",
            symbols=" + ".join(f"patches of {side}" for side in sides),
            numbers=f"{' + '.join(map(short, counts))} = {short(kept)}",
        ),
        Formula(
            name="saved",
            symbols="1 − tokens / tokens of the finest grid",
            numbers=f"1 − {short(kept)} / {short(finest)} = {1 - kept / finest:.2%}",
        ),
    ]


def _whole(asked: Question, session: Session) -> ViTConfig:
    """Return the planned model, with the image size that its patches divide."""
    config = described(asked, session)
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
            name="index of a token",
            symbols="prefix + row · columns + column",
            numbers=f"last patch: {config.prefix.count} + {rows - 1} · {columns} + {columns - 1} = "
            f"{short(position_id(rows - 1, columns - 1, config.grid, config.prefix.count))}",
        ),
    ]
