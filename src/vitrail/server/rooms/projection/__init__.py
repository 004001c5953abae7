"""Room 2, projection: the matrix that turns a patch into a token, its cost and its filters."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Patches
from vitrail.plan.laws import TEXT_VOCABULARY, Projection, projection
from vitrail.server.arrays import Frame, Header
from vitrail.server.controls import Foldered, Seen, choice, number
from vitrail.server.default_size import default_size
from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Pair, Shape, described
from vitrail.server.rooms.projection.projection_filters import FilterFacts, filter_frame
from vitrail.server.rooms.projection.projection_timing import Measured, measure
from vitrail.server.rooms.projection.projection_vocabulary import Vocabulary, vocabulary_frame
from vitrail.server.session import SessionDep

__all__ = ["Question", "router"]

router = APIRouter()


class Question(Shape, Seen, Foldered):
    """A model to plan, a loaded model, an image, and a filter."""

    shown: Literal["filters", "principal"] = choice(
        "filters",
        label="Show",
        about="The model's filters, or their principal components",
        words={"filters": "filters", "principal": "principal"},
    )
    order: Literal["variance", "norm", "index"] = choice(
        "variance",
        label="Sorted by",
        about="Standard deviation of the response over your image, norm of the filter, or index",
        words={"variance": "response", "norm": "norm", "index": "index"},
    )
    filter: int = number(
        -1, -1, 8191, label="Filter", about="Index of the filter or principal component; −1 is the first shown"
    )


Asked = Annotated[Question, Query()]

# ── cost ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Curve(BaseModel):
    """Square patches of increasing side."""

    patch: list[int]
    inputs: list[int]
    params: list[int]


class Answer(BaseModel):
    patch: Pair
    side: float
    """Side of a square patch with the same area."""
    channels: int
    width: int
    inputs: int
    """P²·C, the values of a patch."""
    params: int
    bias: bool
    multiply_adds: int
    """Multiply-adds for one patch."""
    compression: float
    """Input values per output value."""
    rank_bound: int
    lost_directions: int
    even_side: float
    """Side of a square patch with as many values as the token."""
    curve: Curve
    vocabulary: int
    lookup_params: int
    lookup_ratio: float
    formulas: list[Formula]


@router.get("/projection")
def projection_costs(asked: Asked, session: SessionDep) -> Answer:
    """Return the projection of the planned model: its parameters, and whether it compresses."""
    config = described(asked, session)
    costs, bias = projection(config.patch, config.width, config.channels), _bias(config)
    sides = range(2, 65)
    curve = [projection(Size(side, side), config.width, config.channels) for side in sides]
    params = costs.params - (0 if bias else config.width)
    return Answer(
        patch=config.patch,
        side=sqrt(config.patch.area),
        channels=config.channels,
        width=config.width,
        inputs=costs.inputs,
        params=params,
        bias=bias,
        multiply_adds=costs.inputs * config.width,
        compression=float(costs.compression),
        rank_bound=costs.rank_bound,
        lost_directions=costs.lost_directions,
        even_side=sqrt(config.width / config.channels),
        curve=Curve(
            patch=list(sides),
            inputs=[each.inputs for each in curve],
            params=[each.params - (0 if bias else config.width) for each in curve],
        ),
        vocabulary=TEXT_VOCABULARY,
        lookup_params=costs.lookup_params,
        lookup_ratio=costs.lookup_params / params,
        formulas=_formulas(config, costs, bias, params),
    )


def _bias(config: ViTConfig) -> bool:
    assert isinstance(config.embedding, Patches)
    return config.embedding.bias


def _formulas(config: ViTConfig, costs: Projection, bias: bool, params: int) -> list[Formula]:
    (height, width), each, inputs = config.patch, config.width, costs.inputs
    values = f"{height} · {width} · {config.channels}"
    xavier, he = sqrt(2 / (inputs + each)), sqrt(2 / inputs)
    return [
        Formula(
            name="values per patch",
            symbols="P² · C",
            numbers=f"{values} = {short(inputs)}",
        ),
        Formula(
            name="values per token",
            symbols="D = heads · width of a head",
            numbers=f"{config.num_heads} · {config.head_width} = {short(each)}",
        ),
        Formula(
            name="in : out",
            symbols="P² · C / D",
            numbers=f"{short(inputs)} / {short(each)} = {float(costs.compression):.2f}",
        ),
        Formula(
            name="parameters",
            symbols="D · (P² · C + 1)" if bias else "D · P² · C (no bias)",
            numbers=f"{each} · ({values}{' + 1' if bias else ''}) = {short(params)}",
        ),
        Formula(
            name="directions lost",
            symbols="P² · C − min(P² · C, D)",
            numbers=f"{short(inputs)} − min({short(inputs)}, {each}) = {short(costs.lost_directions)}",
        ),
        Formula(
            name="patch side that neither compresses nor expands",
            symbols="P = √(D / C)",
            numbers=f"√({each} / {config.channels}) = {short(sqrt(each / config.channels))}",
        ),
        Formula(
            name="lookup table of a text model",
            symbols="V · D",
            numbers=f"{short(TEXT_VOCABULARY)} · {each} = {short(costs.lookup_params)}",
        ),
        Formula(
            name="Xavier initialisation: standard deviation of a weight",
            symbols="√(2 / (P² · C + D))",
            numbers=f"√(2 / ({short(inputs)} + {each})) = {xavier:.4f}",
        ),
        Formula(
            name="He initialisation: standard deviation of a weight",
            symbols="√(2 / (P² · C))",
            numbers=f"√(2 / {short(inputs)}) = {he:.4f}",
        ),
    ]


# ── filters ─────────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/projection/filters", response_class=Frame, response_model=Header[FilterFacts])
def filters(asked: Asked, session: SessionDep) -> Frame:
    """Return the filters of the loaded model as pictures, and the response of each filter on the image."""
    side = default_size(asked, session)
    return session.once(
        ("projection filters", asked.image, asked.weights, side),
        lambda: filter_frame(session.subject(asked.image, asked.weights, side)),
    )


# ── implementations and initialisation ──────────────────────────────────────────────────────────────────────────


@router.get("/projection/measured")
def measured(asked: Asked, session: SessionDep) -> Measured:
    """Run the projection in three implementations on the image, and with newly initialised weights."""
    side = default_size(asked, session)
    return session.once(
        ("projection measured", asked.image, asked.weights, side),
        lambda: measure(session.subject(asked.image, asked.weights, side)),
    )


# ── vocabulary ──────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/projection/vocabulary", response_class=Frame, response_model=Header[Vocabulary])
def vocabulary(asked: Asked, session: SessionDep) -> Frame:
    """Return clusters of the tokens of patches of the image or of a dropped folder, as pictures, and their likeness."""
    side = default_size(asked, session)
    size = session.seen_size(asked.weights, side)
    return session.once(
        ("vocabulary", asked.folder or asked.image, asked.weights, size),
        lambda: vocabulary_frame(asked.image, asked.folder, asked.weights, side, session),
    )
